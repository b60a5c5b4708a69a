"""The LaTeX tables of papers, from made-up records whose every number can be worked out."""

import csv
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.results.parity import Judgement
from harness.results.record import Latency, Record
from pipeline.report.compare import Judge, Section, sections
from pipeline.report.csv_files import csv_text
from pipeline.report.files import latex_tables
from pipeline.report.models import models_of
from pipeline.report.paper_tables import paper_tables
from pipeline.report.table import Table
from pipeline.report.tables import models_table
from tests.made.patience import patience
from tests.made.report_records import CPU, passed, record
from tests.made.vision_records import INFERENCE, TRAINING, vision_record, vision_records


def section_of(found: list[Record], judge: Judge = passed) -> Section:
    (section,) = sections(found, judge)
    return section


def lines_of(table: Table) -> list[str]:
    return [" & ".join(line.cells) for line in table.lines]


def pair(batch_size: int, *, model: str = "resnet50", replicates: int = 4, **changes: Any) -> list[Record]:
    return [
        one
        for one in vision_records(replicates=replicates, **changes)
        if (one.measurement.variant.model, one.measurement.variant.batch_size) == (model, batch_size)
    ]


def test_the_full_table_of_inference() -> None:
    full, _ = paper_tables(section_of([*pair(1), *pair(128)]))
    assert " & ".join(column.title for column in full.columns) == (
        "model & precision & batch norm & inputs & batch & framework & mode & images/s & p50, ms & p95, ms & p99, ms & "
        "mean, ms & mJ/image & TFLOP/s & step, MiB & process, MiB & cold, s & warm, s"
    )
    # A call takes 1 ms + 4.0873 G / 8e12 s = 1.5109 ms at speed 1; over 1.5, 1.007 ms.
    # Of 100 calls 93 take that, 5 twice, 2 three times that; the mean is 1.09 of it. 350 W for it are 353 mJ.
    # 2 * 4.0873 G in it are 8.12 TFLOP/s. 256 MiB and 1 for each image.
    same = "resnet50 & bf16 & folded & on device"
    assert lines_of(full)[0] == (
        f"{same} & 1 & JAX & forward.jit_graph (best of 2) & 993 & 1.01 & 2.01 & 3.02 & 1.1 & 353 & 8.12 & 257 & 2,048"
        " & 20 & 4"
    )
    # 128 images: 66.397 ms at speed 1; over 1.25, 53.12 ms.
    assert lines_of(full)[3] == (
        f"{same} & 128 & PyTorch & forward.compiled_graph (best of 2) & 2,410 & 53.1 & 106 & 159 & 57.9 & 145 & 19.7"
        " & 384 & 2,048 & 20 & 4"
    )


def test_the_summary_of_inference_has_the_ratios_of_the_comparison() -> None:
    section = section_of([*pair(1), *pair(128)])
    _, summary = paper_tables(section)
    assert lines_of(summary) == [
        "resnet50 & bf16 & folded & on device & 128 & 2,892 & 2,410 & 1.20 [1.20, 1.20] JAX faster & 1 & 1.01 & 1.21"
        " & 0.83 [0.83, 0.83]"
    ]
    assert [row.ratio.value for row in section.rows if row.ratio] == pytest.approx([1.2, 1.2])


def test_a_ratio_of_p50_is_that_of_the_latencies() -> None:
    """JAX's calls take twice as long as they did, its blocks do not: 2 / 1.2 times as long as PyTorch's."""
    calls = [
        with_calls(one, 2.0 if one.measurement.framework == "jax" else 1.0, one.measurement.replicate)
        for one in pair(1)
    ]
    (row,) = section_of(calls).rows
    assert row.comparison is not None and row.ratio is not None and row.ratio.verdict == "JAX faster"
    of_p50 = row.comparison.of_quantities["step_time_p50_s"]
    assert (of_p50.value, of_p50.replicates) == (pytest.approx(2 / 1.2), 4)
    assert of_p50.interval == pytest.approx((2 / 1.2, 2 / 1.2))
    (line,) = csv.DictReader(csv_text([section_of(calls)]).splitlines()[:2])
    of_csv = [float(line[f"step_time_p50_s_ratio{end}"]) for end in ("", "_low", "_high")]
    assert of_csv == [of_p50.value, *(of_p50.interval or ())]


def test_without_a_waited_for_call_there_is_no_ratio_of_p50() -> None:
    """Where one replicate has none, it is that of the others."""

    def silent(one: Record) -> Record:
        assert one.result is not None
        return one.model_copy(update={"result": one.result.model_copy(update={"latency": None})})

    found = [silent(one) if one.measurement.replicate == 2 else one for one in pair(1)]
    (row,) = section_of(found).rows
    assert row.comparison is not None and row.comparison.of_quantities["step_time_p50_s"].replicates == 3
    found = [silent(one) if one.measurement.framework == "jax" else one for one in pair(1)]
    _, summary = paper_tables(section_of(found))
    assert lines_of(summary)[0].endswith("& 1.21 & --")
    assert "--: no pair waited for a step on both sides (JAX / PyTorch, of the p50)." in summary.notes


def with_calls(one: Record, factor: float, replicate: int) -> Record:
    """Calls that take `factor` times as long, and in each replicate a little more."""
    assert one.result is not None and one.result.latency is not None
    factor *= 1 + replicate / 1000
    latency = Latency(steps_per_call=1, call_times_s=[time_s * factor for time_s in one.result.latency.call_times_s])
    return one.model_copy(update={"result": one.result.model_copy(update={"latency": latency})})


def test_the_tables_of_training() -> None:
    found = vision_records(TRAINING)
    section = section_of([one for one in found if one.measurement.variant.model == "resnet50"])
    full, summary = paper_tables(section)
    # 32 images in 17.349 ms at speed 1, so 128,000 of them in 69.4 s; over 1.5, 46.3 s. 350 W: 16,193 J.
    # Three forward passes of 2 * 4.0873 G for each of 2,767 images/s are 67.8 TFLOP/s; with speed 1.5 of them 67.8.
    start = "resnet50 & bf16 & 32 & JAX & step.jit_graph (best of 2) & 2,767 & 46.3 & 75.0% & 99 & 16,193 & 127 & 2.5"
    assert lines_of(full)[0] == f"{start} & 67.8 & 288 & 2,048 & 20 & 4"
    assert lines_of(summary)[0].startswith(
        "resnet50 & bf16 & 128 & 2,892 & 2,410 & 44.3 & 53.1 & 75.0% & 75.0% & 99 & 99 & 15,493 & 18,591 & 121 & 145"
        " & 1.20"
    )


def test_what_has_no_number_has_a_reason() -> None:
    crash = "CUDA_ERROR_ILLEGAL_ADDRESS"
    jax = [
        vision_record(
            "jax", "step.jit", "vit_b_16", size, 1.0, cell=TRAINING, outcome="failed", reason=crash, result=None
        )
        for size in (32, 128)
    ]
    torch = [vision_record("torch", "step.eager", "vit_b_16", 32, 1.0, cell=TRAINING)]
    full, summary = paper_tables(section_of([*jax, *torch]))
    # The batch of 128 was tried by JAX only, and has a line too.
    assert [(line.cells[0], line.cells[2], line.cells[3]) for line in full.lines] == [
        ("vit_b_16", "32", "JAX"),
        ("vit_b_16", "32", "PyTorch"),
        ("vit_b_16", "128", "JAX"),
    ]
    assert set(full.lines[0].cells[5:]) == {"--"}
    assert any(note.startswith(f"--: failed: {crash} (mode, images/s, ") for note in full.notes)
    # 32 images in 71.25 ms, 128,000 in 285 s, at 350 W.
    assert lines_of(summary) == ["vit_b_16 & bf16 & 32 & 449 & 285 & 75.0% & 99 & 99,754 & 779 & --"]
    assert any(note.startswith(f"No JAX images/s: failed: {crash}") for note in summary.notes)


def test_a_column_without_any_number_is_left_out_with_its_reason() -> None:
    found = pair(1, replicates=1, calls=200, on_gpu=False, environment=CPU, sizes={"image_size": 64})
    full, _ = paper_tables(section_of([quick_sample(one) for one in found]))
    titles = [column.title for column in full.columns]
    assert titles[-4:] == ["p95, ms", "mean, ms", "cold, s", "warm, s"]
    for note in (
        "No p99, ms: 200 calls were waited for, and this takes 368.",
        "No mJ/image: no NVIDIA driver.",
        "No TFLOP/s: operations not declared for this model in this use case and size.",
    ):
        assert note in full.notes


def quick_sample(one: Record) -> Record:
    measurement = one.measurement.model_copy(update={"quick": True, "data": "sample"})
    return one.model_copy(update={"measurement": measurement})


def test_a_pair_that_the_gate_failed_has_the_gates_sentence() -> None:
    def judge(jax: Record, torch: Record) -> Judgement:
        return Judgement(state="failed", sentence="logits differ")

    _, summary = paper_tables(section_of(pair(1), judge))
    assert lines_of(summary) == ["resnet50 & bf16 & folded & on device & 1 & 993 & 827 & -- & 1 & 1.01 & 1.21 & --"]
    assert "--: parity failed: logits differ (JAX / PyTorch, JAX / PyTorch, of the p50)." in summary.notes


def test_other_settings_are_other_lines() -> None:
    found = [
        record("jax", "step.jit", cell=INFERENCE, options={"inputs": inputs}, settings={"weights": weights})
        for inputs in ("on_device", "on_host")
        for weights in ("drawn", "pretrained")
    ]
    _, summary = paper_tables(section_of(found))
    assert sorted({line.cells[2] for line in summary.lines}) == ["on device", "on host"]
    models = {line.cells[0] for line in summary.lines}
    assert len(models) == 2 and all(one.startswith("cnn (settings ") for one in models)


def test_only_inference_and_training_have_such_tables() -> None:
    other = INFERENCE.model_copy(update={"use_case_name": "many_models"})
    assert paper_tables(section_of([record("jax", "step.jit", cell=other)])) == []
    full, summary = paper_tables(section_of([record("jax", "step.jit")]))
    assert (full.name, summary.name) == ("full", "summary")
    head = " ".join(column.title for column in full.columns)
    assert "images/s" in head and "top 5" not in head and "input" not in head


def test_the_table_of_models() -> None:
    unknown = INFERENCE.model_copy(update={"benchmark": "gone"})
    found = models_of(
        sections(
            [*pair(1, model="vit_b_16"), record("jax", "step.jit"), record("jax", "step.jit", cell=unknown)], passed
        )
    )
    table = models_table(found)
    assert lines_of(table) == [
        "gone & cnn & not declared & not recorded & not declared & not declared & not declared & not declared",
        "imagenet100 & vit_b_16 & attention & 85,875,556 & 17.6 & 86,567,656 & 17.6 & 81.1%",
        "mnist & cnn & not declared & 26,010 & not declared & not declared & not declared & not declared",
    ]
    assert "Published: torchvision, IMAGENET1K_V1, with 1,000 outputs." in table.caption


def test_models_without_a_declared_size_have_the_counts_of_their_records() -> None:
    unknown = INFERENCE.model_copy(update={"benchmark": "gone"})
    counted = [
        one.model_copy(update={"result": one.result.model_copy(update={"parameter_count": count})})
        for count in (10, 2_000, 300)
        if (one := record("jax", "step.jit", batch_size=count, cell=unknown)).result
    ]
    (model,) = models_of(sections(counted, passed))
    assert model.parameters == "10 to 2,000"


@pytest.mark.latex
def test_these_tables_compile(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        if os.environ.get("REQUIRE_LATEX") == "1":
            pytest.fail("REQUIRE_LATEX=1, and there is no pdflatex")
        pytest.skip("there is no pdflatex (Debian: texlive-latex-base and texlive-latex-recommended)")
    failed = vision_record("jax", "taps.jit", "resnet50", 8, 1.0, outcome="failed", reason="a_b & 100 %", result=None)
    compared = sections([*vision_records(replicates=1), *vision_records(TRAINING, replicates=1), failed], passed)
    tables = latex_tables(compared, {}, {}, {})
    assert {name for name in tables if name.endswith(("full", "summary", "models"))} == {
        *(f"imagenet100-5-inference-nvidia-h200-{ending}" for ending in ("full", "summary")),
        *(f"imagenet100-1-train-nvidia-h200-{ending}" for ending in ("full", "summary")),
        "models",
    }
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
