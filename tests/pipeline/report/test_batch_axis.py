"""What the report shows of batch sizes, from made-up records."""

from xml.etree import ElementTree

import pytest

from harness.results.record import Record
from pipeline.report.batch_axis import batch_panels
from pipeline.report.charts import PRINT, specification, throughput_over_batch_size
from pipeline.report.compare import Section, sections
from pipeline.report.figures import section_drawing
from pipeline.report.terminal import print_details
from tests.made.report_records import passed, plain, record, text
from tests.made.vision_records import vision_record, vision_records


def section_of(found: list[Record]) -> Section:
    (section,) = sections(found, passed)
    return section


def charts_over_batch_sizes(found: list[Record]) -> list[str]:
    return [
        chart.name.removesuffix("_over_batch_size")
        for chart in section_drawing(section_of(found), {}).charts
        if chart.name.endswith("_over_batch_size")
    ]


def test_a_panel_for_each_model_precision_and_options() -> None:
    found = [
        *vision_records(replicates=1),
        *vision_records(replicates=1, precision="fp32"),
        vision_record("jax", "forward.jit", "resnet50", 1, 1.0, precision="tf32"),  # one batch size makes no line
    ]
    panels = batch_panels(section_of(found))
    models = ("efficientnet_b0", "mobilenet_v3_small", "resnet50", "vit_b_16")
    assert [panel.label for panel in panels] == [
        f"{model} | {precision}, folded, on_device" for model in models for precision in ("bf16", "fp32")
    ]
    assert [list(panel.rows) for panel in panels] == [[1, 8, 32, 128]] * 8


def test_other_settings_have_panels_of_their_own() -> None:
    found = [
        record("jax", "step.jit", batch_size=size, settings={"epochs": epochs})
        for size in (100, 200)
        for epochs in (2, 3)
    ]
    labels = [panel.label for panel in batch_panels(section_of(found))]
    assert len(set(labels)) == 2 and all(label.startswith("cnn | fp32 (settings ") for label in labels)


def test_the_best_mode_is_chosen_at_each_batch_size_and_worthless_ones_are_left_out() -> None:
    found = [
        *(record("torch", "step.eager", 900, batch_size=size) for size in (1, 8)),
        record("torch", "step.compiled", 500, batch_size=1),
        record("torch", "step.compiled", 2000, batch_size=8),
        record("torch", "loop.eager", 9000, batch_size=8, flags={"recompiled": "1 compilation"}),
    ]
    (panel,) = batch_panels(section_of(found))
    assert {(size, mode.execution_mode): is_best for size, mode, is_best in panel.points} == {
        (1, "step.eager"): True,
        (1, "step.compiled"): False,
        (8, "step.eager"): False,
        (8, "step.compiled"): True,
    }


def test_the_points_of_the_charts() -> None:
    drawing = section_drawing(section_of(vision_records()), {})
    found = next(
        point
        for point in drawing.data["batch_throughput"]
        if (point["group"].split(" | ")[0], point["mode"], point["batch_size"]) == ("resnet50", "forward.jit_graph", 1)
    )
    # 1 ms + 4.0873 G / 8e12 s, over a speed of 1.5.
    step_ms = (1 + 4.0873 / 8) / 1.5
    assert found["throughput"] == pytest.approx(1000 / step_ms, rel=1e-4)
    assert found["chosen"] is True and "low" in found


def test_every_chart_draws_every_mode_and_the_best_again() -> None:
    import vl_convert

    drawing = section_drawing(section_of(vision_records(replicates=1)), {})
    chart = throughput_over_batch_size()
    assert len(drawing.data[chart.data]) == 4 * 4 * 4  # models, batch sizes, modes
    svg = vl_convert.vegalite_to_svg(specification(chart, drawing.data, PRINT))
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert svg.count('aria-roledescription="point"') == 64 + 32


def test_a_chart_takes_two_batch_sizes() -> None:
    two = [one for one in vision_records(replicates=1) if one.measurement.variant.batch_size < 32]
    assert charts_over_batch_sizes(two) == ["throughput"]
    assert charts_over_batch_sizes([one for one in two if one.measurement.variant.batch_size == 1]) == []


def test_the_terminal_shows_p99_beside_p50_on_80_columns() -> None:
    console = plain(80)
    modes = (("torch", "forward.max_autotune_graph", 2.0), ("jax", "taps.tuned_graph", 1.0))
    found = [vision_record(side, mode, "mobilenet_v3_small", 1, speed) for side, mode, speed in modes]
    print_details(sections(found, passed), console, {})
    shown = text(console)
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines())
    (head,) = [line for line in shown.splitlines() if "p50" in line]
    assert [word for word in head.split() if word.startswith("p")] == ["p50", "p95", "p99"]
    # A call takes 1 ms + 55.6 M / 8e12 s, over 2.
    (line,) = [line for line in shown.splitlines() if "PyTorch forward.max_autotune_graph" in line]
    assert line.split()[2:6] == ["1,986", "0.503", "1.01", "1.51"]
