"""What the report writes: LaTeX that a real LaTeX sets, figures, a page that nothing in a record can break."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.paths import Results
from pipeline.report.charts import PRINT, specification
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.compare import sections
from pipeline.report.figures import section_charts
from pipeline.report.files import latex_tables, section_names
from pipeline.report.table import LONGEST_TABULAR, Line, Table, group, latex, latex_escaped, markdown, numbers, texts
from tests.made.constructed_records import sweep, trained
from tests.made.explained_records import launch_bound_pair
from tests.made.patience import patience
from tests.made.report_records import A100, CELL, H200, csv_lines, passed, plain, record, save, section_of, text
from tests.pipeline.report.shown import page_of, reported
from tests.pipeline.report.test_why import PEAKS

NASTY = r"a<b>&\_{}%$#^~|--\"é中</script><!--"
STRANGE = CELL.model_copy(update={"benchmark": NASTY, "use_case": 9, "use_case_name": NASTY})


def test_text_is_escaped_for_latex_and_markdown() -> None:
    expected = {"a_b & 5 %": r"a\_b \& 5 \%", r"\input{x}": r"\textbackslash{}input\{x\}", "one\ntwo": "one two"}
    expected |= {"$#^~": r"\$\#\textasciicircum{}\textasciitilde{}", "Müller 中": "Muller ?", "a--b": "a-{}-{}b"}
    assert {text: latex_escaped(text) for text in expected} == expected
    table = Table(
        name="x",
        title="Modes [all]",
        caption="Medians.",
        columns=[*texts("mode"), *numbers("samples/s")],
        lines=[group("cnn_1"), Line(["JAX a|b", "3,000"], "jax"), Line(["PyTorch", "2 %"], "torch", is_pale=True)],
        notes=["None of a_b."],
    )
    of_latex = latex(table, ["where"])
    assert r"\multicolumn{2}{l}{\textbf{cnn\_1}} \\" in of_latex and r"PyTorch & 2 \% \\" in of_latex
    assert r"None of a\_b." in of_latex and of_latex.startswith("% where")
    assert markdown(replace(table, lines=table.lines[1:])) == (
        "| mode | samples/s |\n| --- | --- |\n| JAX a/b | 3,000 |\n| PyTorch | 2 % |\n\nMedians. None of a_b."
    )


@pytest.mark.latex
def test_every_table_compiles(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        if os.environ.get("REQUIRE_LATEX") == "1":
            pytest.fail("REQUIRE_LATEX=1, and there is no pdflatex")
        pytest.skip("there is no pdflatex (Debian: texlive-latex-base and texlive-latex-recommended)")
    timed = {"phases": {NASTY: [0.001, 0.002], "zero_gradients": [0.001]}}
    long = [record("jax", "step.jit", batch_size=size) for size in range(1, LONGEST_TABULAR + 20)]
    others = [*trained(environment=A100, details=timed), *trained(cell=STRANGE), *trained(quick=True)]
    compared = sections([*trained(), *others, *long], passed)
    tables = latex_tables(compared)
    assert {"overview", "mnist-1-train-nvidia-h200-answers"} < tables.keys()
    assert "mnist-1-train-nvidia-a100-phases" in tables and "mnist-1-train-nvidia-h200-phases" not in tables
    assert any(table.count(r"\begin{tabular}") > 1 for table in tables.values())
    for name, table in tables.items():
        (tmp_path / f"{name}.tex").write_text(table)
    inputs = "\n".join(rf"\input{{{name}}}\clearpage" for name in tables)
    (tmp_path / "all.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs,graphicx}}\begin{{document}}{inputs}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout, "a table is wider than the page"
    assert (tmp_path / "all.pdf").read_bytes().startswith(b"%PDF")


def test_every_chart_is_drawn() -> None:
    import vl_convert

    compared = [*sections(launch_bound_pair(), passed, PEAKS), *sections([*trained(), *sweep()], passed)]
    charts = [chart for section in compared for chart in section_charts(section)]
    over = ("throughput_over_batch_size", "throughput_over_models")
    assert {chart.name for chart in charts} == {"ratio", "learning_accuracy", *over, "time_by_class"}
    for chart in charts:
        svg = vl_convert.vegalite_to_svg(specification(chart, PRINT))
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert svg.count('role="graphics-symbol"') >= len(chart.points)
        assert "var(" not in svg and "NaN" not in svg, chart.name


def test_file_names_of_sections_are_unique() -> None:
    of_mnist = [record("jax", "step.jit", **one) for one in ({}, {"quick": True}, {"data": "sample"})]
    cells = [CELL.model_copy(update={"benchmark": name}) for name in ("m n", "m-n", "../m-n")]
    compared = sections([*of_mnist, *(record("jax", "step.jit", cell=cell) for cell in cells)], passed)
    assert sorted(section_names(compared).values()) == [
        *(f"m-n-1-train-nvidia-h200{ending}" for ending in ("", "-2", "-3")),
        *(f"mnist-1-train-nvidia-h200{ending}" for ending in ("", "-quick", "-sample")),
    ]
    long = section_of([record("jax", "step.jit", environment=H200 | {"gpu": {"name": "x" * 5000}})])
    assert list(section_names([long]).values()) == ["mnist-1-train-" + "x" * 136]


class Page(HTMLParser):
    """Its text, and whether every tag is closed."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_nothing_in_a_record_can_break_the_page() -> None:
    environment = H200 | {"gpu": {"name": NASTY, "uuid": NASTY}, "packages": {NASTY: NASTY}, "node": NASTY}
    strange: dict[str, Any] = {"cell": STRANGE, "environment": environment}
    failed = record("jax", "scan.jit", outcome="failed", reason=NASTY, result=None, **strange)
    html = page_of([*trained(**strange), failed], [NASTY])
    assert Page(html).text.count(NASTY) >= 5
    assert len(re.findall("<script", html)) - len(re.findall(r"<script", html.split("<script>")[1])) == 3
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    charts = json.loads(data[1])
    assert {point["place"] for point in charts["data"]["s0"]["ratio"][1]} == {"cnn-b100-fp32", "cnn-b200-fp32"}
    assert NASTY in Page(page_of([failed])).text  # of nothing but failures


def test_the_report_writes_its_folder_anew(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    for one in trained(replicates=1):
        save(one, results)
    stale = results.report / "figures" / "old.svg"
    stale.parent.mkdir(parents=True)
    stale.touch()
    kept = stale.with_name("notes.txt")
    kept.touch()
    console = plain()
    assert report_command(results, ReportOptions(), console, passed) == 0
    assert not stale.exists() and kept.exists()
    assert text(console).splitlines()[-1] == f"Page: {results.report / 'report.html'}"
    figures = {path.name: path for path in (results.report / "figures").glob("*-ratio.*")}
    assert figures.keys() == {f"mnist-1-train-nvidia-h200-ratio.{ending}" for ending in ("svg", "pdf")}
    assert figures["mnist-1-train-nvidia-h200-ratio.pdf"].read_bytes().startswith(b"%PDF")
    assert {path.name for path in (results.report / "tables").iterdir()} == {
        "overview.tex",
        *(f"mnist-1-train-nvidia-h200-{name}.tex" for name in ("answers", "modes", "quantities", "sides")),
    }


def test_a_spreadsheet_computes_nothing_of_a_record() -> None:
    calc = section_of([record("jax", "step.jit", environment=H200 | {"gpu": {"name": '=cmd|"/c calc"!A1'}})])
    (line,) = csv_lines([calc])
    assert line["device"] == '\'=cmd|"/c calc"!A1'
    assert float(line["throughput_samples_per_s"]) == pytest.approx(1000)


def test_what_a_terminal_would_obey_is_shown_on_the_page(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    path = save(record("jax", "step.jit", environment=H200 | {"gpu": {"name": "card \x1b[31mred"}}), results)
    (path.parent / os.fsdecode(b"\xff.json")).write_text("{")
    for output in reported(results):
        assert r"card \u001b[31mred" in output and r"\udcff.json" in output and "\x1b" not in output
