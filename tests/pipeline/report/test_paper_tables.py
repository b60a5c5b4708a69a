"""The LaTeX tables of papers, from made-up records whose every number can be worked out."""

import csv
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.results.parity import Judgement
from harness.results.record import Latency, Record
from pipeline.report.compare import Judge, Section, sections
from pipeline.report.files import section_names
from pipeline.report.models import models_of
from pipeline.report.paper_tables import (
    inference_full,
    inference_summary,
    models_table,
    paper_tables,
    training_full,
    training_summary,
)
from pipeline.report.tables import csv_text, latex_tables
from tests.made.patience import patience
from tests.made.report_records import CPU, passed, record
from tests.made.vision_records import INFERENCE, TRAINING, vision_record, vision_records

HEAD = (
    "model & batch & framework & mode & images/s & p50, ms & p95, ms & p99, ms & mean, ms & mJ/image & TFLOP/s & "
    "step, MiB & process, MiB & cold, s & warm, s"
)


def section_of(found: list[Record], judge: Judge = passed) -> Section:
    (section,) = sections(found, judge)
    return section


def lines_of(table: str) -> list[str]:
    """Between the rules, without the ends."""
    body = table.split("\\midrule\n")[1].split("\\bottomrule")[0]
    return [line.removesuffix(r" \\") for line in body.splitlines()]


def below(table: str) -> list[str]:
    """What stands below it, without its LaTeX."""
    return re.findall(r"\\footnotesize (.*)\\par", table)


def pair(batch_size: int, *, model: str = "resnet50", replicates: int = 4, **changes: Any) -> list[Record]:
    return [
        one
        for one in vision_records(replicates=replicates, **changes)
        if (one.measurement.variant.model, one.measurement.variant.batch_size) == (model, batch_size)
    ]


def test_the_full_table_of_inference() -> None:
    table = inference_full(section_of([*pair(1), *pair(128)]))
    assert table.splitlines()[4] == HEAD + r" \\"
    # A call takes 1 ms + 4.0873 G / 8e12 s = 1.5109 ms at speed 1; over 1.5, 1.007 ms.
    # Of 100 calls 93 take that, 5 twice, 2 three times that; the mean is 1.09 of it. 350 W for it are 353 mJ.
    # 2 * 4.0873 G in it are 8.12 TFLOP/s. 256 MiB and 1 for each image.
    assert lines_of(table)[0] == (
        r"resnet50 & 1 & JAX & forward.jit\_graph (best of 2) & 993 & 1.01 & 2.01 & 3.02 & 1.1 & 353 & 8.12 & 257"
        r" & 2,048 & 20 & 4"
    )
    # 128 images: 66.397 ms at speed 1; over 1.25, 53.12 ms.
    assert lines_of(table)[3] == (
        r"resnet50 & 128 & PyTorch & forward.compiled\_graph (best of 2) & 2,410 & 53.1 & 106 & 159 & 57.9 & 145"
        r" & 19.7 & 384 & 2,048 & 20 & 4"
    )
    assert below(table)[0] == "Everywhere precision: bf16, batch norm: folded, inputs: on device."
    assert not any("The two sides" in line for line in below(table))  # there is no ratio here


def test_the_summary_of_inference_has_the_ratios_of_the_comparison() -> None:
    section = section_of([*pair(1), *pair(128)])
    table = inference_summary(section)
    mark = r"\textsuperscript{1}"
    ratio = f"1.20 [1.20, 1.20]{mark}"
    of_p50 = "0.83 [0.83, 0.83]"
    assert lines_of(table) == [f"resnet50 & 2,892 & 2,410 & {ratio} JAX faster & 1.01 & 1.21 & {of_p50}{mark}"]
    assert "batch of the throughput: 128, batch of the p50: 1." in below(table)[1]
    (note, *_) = below(inference_summary(section_of(pair(1))))
    assert note.endswith("code, pairing; resnet50-{}b1-{}bf16-{}folded-{}on\\_device.")  # two ratios of one row
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
    table = inference_summary(section_of(found))
    assert lines_of(table)[0].endswith(r"& 1.21 & --\textsuperscript{2}")
    assert below(table)[1] == r"\textsuperscript{2} None: no replicate waited for a step on both sides."


def with_calls(one: Record, factor: float, replicate: int) -> Record:
    """Calls that take `factor` times as long, and in each replicate a little more."""
    assert one.result is not None and one.result.latency is not None
    factor *= 1 + replicate / 1000
    latency = Latency(steps_per_call=1, call_times_s=[time_s * factor for time_s in one.result.latency.call_times_s])
    return one.model_copy(update={"result": one.result.model_copy(update={"latency": latency})})


def test_the_tables_of_training() -> None:
    found = vision_records(TRAINING)
    section = section_of([one for one in found if one.measurement.variant.model == "resnet50"])
    full, summary = training_full(section), training_summary(section)
    # 32 images in 17.349 ms at speed 1, so 128,000 of them in 69.4 s; over 1.5, 46.3 s. 350 W: 16,193 J.
    # Three forward passes of 2 * 4.0873 G for each of 2,767 images/s are 67.8 TFLOP/s; with speed 1.5 of them 67.8.
    start = r"resnet50 & 32 & JAX & step.jit\_graph (best of 2) & 2,767 & 46.3 & 75.0\% & 99 & 16,193 & 127 & 2.5"
    assert lines_of(full)[0] == rf"{start} & 67.8 & 288 & 2,048 & 20 & 4"
    assert lines_of(summary)[0].startswith(
        r"resnet50 & 2,892 & 2,410 & 44.3 & 53.1 & 75.0\% & 75.0\% & 99 & 99 & 15,493 & 18,591 & 121 & 145 & 1.20"
    )
    assert "Everywhere precision: bf16, batch: 128." in below(summary)


def test_what_has_no_number_has_a_reason() -> None:
    crash = "CUDA_ERROR_ILLEGAL_ADDRESS"
    jax = [
        vision_record(
            "jax", "step.jit", "vit_b_16", size, 1.0, cell=TRAINING, outcome="failed", reason=crash, result=None
        )
        for size in (32, 128)
    ]
    torch = [vision_record("torch", "step.eager", "vit_b_16", 32, 1.0, cell=TRAINING)]
    section = section_of([*jax, *torch])
    full, summary = training_full(section), training_summary(section)
    # The batch of 128 was tried by JAX only, and has a line too.
    assert [line.split(" & ")[:3] for line in lines_of(full)] == [
        [r"vit\_b\_16", "32", "JAX"],
        [r"vit\_b\_16", "32", "PyTorch"],
        [r"vit\_b\_16", "128", "JAX"],
    ]
    assert set(lines_of(full)[0].split(" & ")[5:]) == {r"--\textsuperscript{1}"}
    assert below(full)[0] == rf"\textsuperscript{{1}} None: failed: {crash.replace('_', chr(92) + '_')}."
    none = r"--\textsuperscript{1}"
    # 32 images in 71.25 ms, 128,000 in 285 s, at 350 W.
    numbers = ("449", "285", r"75.0\%", "99", "99,754", "779")
    assert lines_of(summary) == [" & ".join([r"vit\_b\_16", *(f"{none} & {number}" for number in numbers), none])]


def test_a_column_without_any_number_is_left_out_with_its_reason() -> None:
    found = pair(1, replicates=1, calls=200, on_gpu=False, environment=CPU, sizes={"image_size": 64})
    found = [quick_sample(one) for one in found]
    section = section_of(found)
    text = inference_full(section)
    assert "p95, ms & mean, ms & cold, s & warm, s" in text
    assert below(text)[0] == "Quick run on sample data: not a result to quote."
    assert "No p99, ms: 200 calls were waited for, and this takes 368." in below(text)
    assert "No mJ/image: no NVIDIA driver." in below(text)
    assert "No TFLOP/s: operations not declared for this model in this use case and size." in below(text)


def quick_sample(one: Record) -> Record:
    measurement = one.measurement.model_copy(update={"quick": True, "data": "sample"})
    return one.model_copy(update={"measurement": measurement})


def test_a_pair_that_the_gate_failed_has_the_gates_sentence() -> None:
    def judge(jax: Record, torch: Record) -> Judgement:
        return Judgement(state="failed", sentence="logits differ")

    table = inference_summary(section_of(pair(1), judge))
    none = r"--\textsuperscript{1}"
    assert lines_of(table) == [f"resnet50 & 993 & 827 & {none} & 1.01 & 1.21 & {none}"]
    assert below(table)[0] == r"\textsuperscript{1} None: parity failed: logits differ."


def test_other_settings_are_other_lines() -> None:
    found = [
        record("jax", "step.jit", cell=INFERENCE, options={"inputs": inputs}, settings={"weights": weights})
        for inputs in ("on_device", "on_host")
        for weights in ("drawn", "pretrained")
    ]
    models = [line.split(" & ")[:2] for line in lines_of(inference_summary(section_of(found)))]
    assert sorted({one for _, one in models}) == ["on device", "on host"]
    assert len({one for one, _ in models}) == 2 and all(one.startswith("cnn (settings ") for one, _ in models)


def test_only_inference_and_training_have_such_tables() -> None:
    other = INFERENCE.model_copy(update={"use_case_name": "many_models"})
    assert paper_tables(section_of([record("jax", "step.jit", cell=other)])) == {}
    mnist = section_of([record("jax", "step.jit")])
    assert paper_tables(mnist).keys() == {"full", "summary"}
    head = paper_tables(mnist)["full"].splitlines()[4]
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
        r"imagenet100 & vit\_b\_16 & attention & 85,875,556 & 17.6 & 86,567,656 & 17.6 & 81.1\%",
        "mnist & cnn & not declared & 26,010 & not declared & not declared & not declared & not declared",
    ]
    assert r"Published: torchvision, IMAGENET1K\_V1, with 1,000 outputs." in below(table)


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
    tables = latex_tables(compared, section_names(compared))
    assert {name for name in tables if name.endswith(("full", "summary", "models"))} == {
        *(f"imagenet100-5-inference-nvidia-h200-{ending}" for ending in ("full", "summary")),
        *(f"imagenet100-1-train-nvidia-h200-{ending}" for ending in ("full", "summary")),
        "models",
    }
    for name, table in tables.items():
        (tmp_path / f"{name}.tex").write_text(table)
    inputs = "\n".join(rf"\input{{{name}}}\clearpage" for name in tables)
    (tmp_path / "all.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs,graphicx,longtable}}\begin{{document}}{inputs}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout, "a table is wider than the page"
