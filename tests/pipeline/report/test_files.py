"""What the report writes: LaTeX that a real LaTeX sets, figures, a page that nothing in a record can break."""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.paths import Results
from harness.results.record import Record
from pipeline.report.charts import PAGE, PRINT, specification
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.compare import sections
from pipeline.report.environments import environments_table
from pipeline.report.figures import section_charts
from pipeline.report.files import latex_tables, section_names
from pipeline.report.table import LONGEST_TABULAR, latex_escaped
from tests.made.explained_records import launch_bound_pair
from tests.made.patience import patience
from tests.made.report_records import A100, CELL, H200, csv_lines, passed, plain, record, save, section_of, text
from tests.pipeline.report.shown import page_of, reported
from tests.pipeline.report.test_tables import full, sweep
from tests.pipeline.report.test_why import PEAKS

NASTY = r"a<b>&\_{}%$#^~|--\"é中</script><!--"
TWO = CELL.model_copy(update={"use_case": 2, "devices": 2})
STRANGE = CELL.model_copy(update={"benchmark": NASTY, "use_case": 9, "use_case_name": NASTY})


def records(replicates: int = 4, **changes: Any) -> list[Record]:
    speeds: list[Any] = [("jax", "step.jit", 3000), ("jax", "scan.jit", 2500)]
    speeds += [("torch", "step.eager", 1000), ("torch", "step.compiled", 2000)]
    return [
        full(framework, mode, speed * size / 100, number, batch_size=size, **{"model": "cnn", "cell": CELL} | changes)
        for framework, mode, speed in speeds
        for size in (100, 200)
        for number in range(replicates)
    ]


def test_text_is_escaped_for_latex() -> None:
    expected = {"a_b & 5 %": r"a\_b \& 5 \%", r"\input{x}": r"\textbackslash{}input\{x\}", "one\ntwo": "one two"}
    expected |= {"$#^~": r"\$\#\textasciicircum{}\textasciitilde{}", "Müller 中": "Muller ?", "a--b": "a-{}-{}b"}
    assert {text: latex_escaped(text) for text in expected} == expected


@pytest.mark.latex
def test_every_table_compiles(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        if os.environ.get("REQUIRE_LATEX") == "1":
            pytest.fail("REQUIRE_LATEX=1, and there is no pdflatex")
        pytest.skip("there is no pdflatex (Debian: texlive-latex-base and texlive-latex-recommended)")
    timed = {"phases": {NASTY: [0.001, 0.002], "zero_gradients": [0.001]}}
    long = [record("jax", "step.jit", batch_size=size) for size in range(1, LONGEST_TABULAR + 20)]
    others = [*records(environment=A100, details=timed), *records(cell=STRANGE), *records(quick=True)]
    compared = sections([*records(), *others, *long], passed)
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


def test_every_chart_is_drawn_and_the_frameworks_look_the_same_everywhere() -> None:
    import vl_convert

    bound = sections(launch_bound_pair(), passed, PEAKS)
    others = sections([*records(), *sweep()], passed)
    charts = [chart for section in others + bound for chart in section_charts(section)]
    over = ("throughput_over_batch_size", "throughput_over_models")
    assert {chart.name for chart in charts} == {"ratio", "learning_accuracy", *over, "time_by_class"}
    for chart in charts:
        svg = vl_convert.vegalite_to_svg(specification(chart, PRINT))
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert svg.count('role="graphics-symbol"') >= len(chart.points)
        assert "var(" not in svg and "NaN" not in svg, chart.name
        of_page = json.dumps(specification(chart, PAGE))
        if '"color": {"field": "framework"' in of_page:
            assert '"category": ["var(--jax)", "var(--torch)", "var(--text)", "var(--muted)"]' in of_page
            assert '"domain": ["JAX", "PyTorch"]' in of_page


def test_the_data_of_the_charts() -> None:
    section = section_of([one for one in records() if one.measurement.variant.batch_size == 100])
    data = {chart.name: chart.points for chart in section_charts(section)}
    (ratio,) = data["ratio"]
    assert (ratio["ratio"], ratio["verdict"], ratio["words"]) == (1.5, "JAX faster", "JAX, 1.50 ×")
    curve = [(p["epoch"], p["time_s"], p["metric"]) for p in data["learning_accuracy"] if p["framework"] == "PyTorch"]
    assert curve == [(1, 2.0, 0.5), (2, 4.0, 0.75)]
    assert "throughput_over_batch_size" not in data  # one batch size makes no line


def test_the_learning_curve_is_that_of_the_tasks_metric() -> None:
    html = page_of(records(cell=CELL.model_copy(update={"benchmark": "text"})))
    assert "Test perplexity over training time" in html and "learning_perplexity" in html
    assert "test perplexity</th>" in html and "time to perplexity, s</th>" in html
    assert "accuracy" not in Page(html).text.replace("test accuracy, top 5", "")


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
    html = page_of([*records(**strange), failed], [NASTY])
    page = Page(html)
    assert page.text.count(NASTY) >= 5
    assert len(re.findall("<script", html)) - len(re.findall(r"<script", html.split("<script>")[1])) == 3
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    charts = json.loads(data[1])
    assert {point["place"] for point in charts["data"]["s0"]["ratio"][1]} == {"cnn-b100-fp32", "cnn-b200-fp32"}


def test_a_page_of_nothing_but_failures() -> None:
    failed = record("jax", "step.jit", outcome="out_of_memory", reason="tried to allocate 9 GiB", result=None)
    page = Page(page_of([failed], ["x.json: schema version 99; this code reads 1."]))
    assert "JAX cnn-b100-fp32-step.jit: out of memory: tried to allocate 9 GiB" in page.text
    assert "x.json: schema version 99" in page.text


def test_environments_are_told_once_for_all_records_of_the_same() -> None:
    here = H200 | {"python": "3.11.1", "packages": {"jax": "0.10.2", "numpy": "2.3"}, "node": "n1"}
    lines = environments_table([*records(), record("jax", "step.jit", environment=here)]).lines
    assert [line.cells for line in lines if line.is_group] == [
        ["JAX of unknown version on NVIDIA H200: 16 records"],
        ["JAX of unknown version on NVIDIA H200: 1 record"],
        ["PyTorch of unknown version on NVIDIA H200: 16 records"],
    ]
    facts = [line.cells for line in lines]
    assert ["nodes", "n1"] in facts and ["packages", "jax 0.10.2, numpy 2.3"] in facts and ["Python", "3.11.1"] in facts


def test_the_report_writes_its_folder_anew(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    for one in records(replicates=1):
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


def test_a_folder_of_results_folders_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("east", "west"):
        save(record("jax", "step.jit"), Results(root=tmp_path / "published" / name))
    monkeypatch.chdir(tmp_path)
    console = plain(200)
    assert report_command(Results(root=tmp_path / "published"), ReportOptions(), console) == 1
    assert text(console) == "Holds results folders: east, west. --results published/east\n"


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
