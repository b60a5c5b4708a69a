"""Tables and charts of inference and training, from made-up records whose every number can be worked out."""

from typing import Any

import pytest

from harness.results.record import Record
from pipeline.report.charts import Chart
from pipeline.report.figures import section_charts
from pipeline.report.table import Table
from pipeline.report.tables import modes_table
from tests.made.report_records import CPU, record, section_of
from tests.made.vision_records import TRAINING, vision_record, vision_records
from tests.pipeline.report.shown import answers_of


def pair(batch_size: int, *, model: str = "resnet50", replicates: int = 4, **changes: Any) -> list[Record]:
    return [
        one
        for one in vision_records(replicates=replicates, **changes)
        if (one.measurement.variant.model, one.measurement.variant.batch_size) == (model, batch_size)
    ]


def by_title(table: Table, place: int) -> dict[str, str]:
    return dict(zip((column.title for column in table.columns), table.lines[place].cells, strict=True))


def test_a_table_has_all_numbers_of_each_mode() -> None:
    """A call takes 1 ms + 4.0873 G / 8e12 s = 1.5109 ms at speed 1; over 1.5, 1.007 ms. Of 100 calls 93 take that, 5
    twice, 2 three times that. 350 W for it are 353 mJ; 2 * 4.0873 G in it are 8.12 TFLOP/s. 256 MiB and 1 for each
    image."""
    table = modes_table(section_of([*pair(1), *pair(128)]))
    modes = [f"JAX forward.{run}" for run in ("jit_graph", "jit")]
    modes += [f"PyTorch forward.{run}" for run in ("compiled_graph", "eager")]
    assert [line.cells[0] for line in table.lines] == [
        *("resnet50-b1-bf16-folded-on_device", *modes),
        *("resnet50-b128-bf16-folded-on_device", *modes),
    ]
    shown = by_title(table, 1)
    assert shown["samples/s"] == "993" and shown["in the ratio"].startswith("best of 2")
    expected = {
        "step p50, ms": "1.01",
        "step p95, ms": "2.01",
        "step p99, ms": "3.02",
        "energy gross, mJ/sample": "353",
    }
    expected |= {"achieved, TFLOP/s": "8.12", "compile, cold, s": "20", "compile, warm, s": "4 (1 of 4)"}
    assert {name: shown[name] for name in expected} == expected


def test_a_table_of_training() -> None:
    """32 images in 17.349 ms at speed 1, so 128,000 of them in 69.4 s; over 1.5, 46.3 s. 350 W: 16,193 J. Three forward
    passes of 2 * 4.0873 G for each of 2,767 images/s are 67.8 TFLOP/s."""
    found = [one for one in vision_records(TRAINING) if one.measurement.variant.model == "resnet50"]
    shown = by_title(modes_table(section_of(found)), 1)
    expected = {"epoch, s": "46.3", "energy of an epoch, J": "16,193", "achieved, TFLOP/s": "67.8"}
    expected |= {"test accuracy": "75.0%", "test accuracy, top 5, %": "99", "input of an epoch, s": "2.5"}
    assert shown["samples/s"] == "2,767" and {name: shown[name] for name in expected} == expected


def test_what_has_no_number_has_no_column_and_a_reason() -> None:
    found = pair(1, replicates=1, calls=200, on_gpu=False, environment=CPU, sizes={"image_size": 64})
    table = modes_table(section_of(found))
    titles = {column.title for column in table.columns}
    assert not titles & {"step p99, ms", "energy gross, mJ/sample", "achieved, TFLOP/s"}
    assert any("Energy: no NVIDIA driver" in note for note in table.notes)


def test_the_terminal_shows_p99_beside_p50_on_80_columns() -> None:
    modes = (("torch", "forward.max_autotune_graph", 2.0), ("jax", "taps.tuned_graph", 1.0))
    found = [vision_record(side, mode, "mobilenet_v3_small", 1, speed) for side, mode, speed in modes]
    shown = answers_of([section_of(found)], 80, details=True)
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines())
    (head,) = [line for line in shown.splitlines() if "p50" in line]
    assert [word for word in head.split() if word.startswith("p")] == ["p50", "p95", "p99"]
    # A call takes 1 ms + 55.6 M / 8e12 s, over 2.
    (line,) = [line for line in shown.splitlines() if "PyTorch forward.max_autotune_graph" in line]
    assert line.split()[2:6] == ["1,986", "0.503", "1.01", "1.51"]


# Throughput by batch size.


def over_batch_sizes(found: list[Record]) -> Chart | None:
    charts = {chart.name: chart for chart in section_charts(section_of(found))}
    return charts.get("throughput_over_batch_size")


def test_a_group_for_each_model_precision_and_options() -> None:
    found = [
        *vision_records(replicates=1),
        *vision_records(replicates=1, precision="fp32"),
        vision_record("jax", "forward.jit", "resnet50", 1, 1.0, precision="tf32"),  # one batch size makes no line
    ]
    chart = over_batch_sizes(found)
    assert chart is not None
    models = ("efficientnet_b0", "mobilenet_v3_small", "resnet50", "vit_b_16")
    labels = [f"{model} | {precision}, folded, on_device" for model in models for precision in ("bf16", "fp32")]
    assert list(dict.fromkeys(point["group"] for point in chart.points)) == labels
    point = next(one for one in chart.points if (one["group"], one["mode"]) == (labels[4], "forward.jit_graph"))
    # 1 ms + 4.0873 G / 8e12 s, over a speed of 1.5.
    assert point["throughput"] == pytest.approx(1500 / (1 + 4.0873 / 8), rel=1e-4)
    assert (point["value"], point["chosen"]) == (1, True)
    assert over_batch_sizes(pair(1)) is None


def test_other_settings_have_groups_of_their_own() -> None:
    found = [
        record("jax", "step.jit", batch_size=size, settings={"epochs": epochs})
        for size in (100, 200)
        for epochs in (2, 3)
    ]
    chart = over_batch_sizes(found)
    labels = {point["group"] for point in chart.points} if chart else set()
    assert len(labels) == 2 and all(label.startswith("cnn | fp32 (settings ") for label in labels)


def test_the_best_mode_is_chosen_at_each_batch_size_and_worthless_ones_are_left_out() -> None:
    found = [
        *(record("torch", "step.eager", 900, batch_size=size) for size in (1, 8)),
        record("torch", "step.compiled", 500, batch_size=1),
        record("torch", "step.compiled", 2000, batch_size=8),
        record("torch", "loop.eager", 9000, batch_size=8, flags={"recompiled": "1 compilation"}),
    ]
    chart = over_batch_sizes(found)
    assert chart and {(one["value"], one["mode"]): one["chosen"] for one in chart.points} == {
        (1, "step.eager"): True,
        (1, "step.compiled"): False,
        (8, "step.eager"): False,
        (8, "step.compiled"): True,
    }
