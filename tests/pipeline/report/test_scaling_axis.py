"""The same work over the number of devices, from made-up records."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness.plan import Cell
from harness.results.record import Record
from pipeline.report.charts import LONGEST_LINE
from pipeline.report.compare import sections
from pipeline.report.files import figures, report_files
from pipeline.report.page import page_html
from pipeline.report.scaling_axis import scaling_chart, scaling_over_devices, scaling_panels
from tests.made.report_records import H200, passed, record


def on(devices: int, nodes: int = 1) -> Cell:
    return Cell(gpu="any", benchmark="mnist", use_case=2, use_case_name="train", devices=devices, nodes=nodes)


def strong() -> list[Record]:
    """JAX keeps 75 % and 80 % on two devices in its two replicates, and PyTorch half on four."""
    found = []
    for number in range(2):
        for devices, jax, torch in ((1, 1000, 2000), (2, 1500 + 100 * number, 3600), (4, 2000, 4000)):
            of: dict[str, Any] = {"replicate": number, "batch_size": 128, "cell": on(devices)}
            found += [record("jax", "step.jit", jax, **of), record("torch", "step.compiled", torch, **of)]
    return found


def test_a_table_has_each_number_of_devices_with_efficiency_and_interval() -> None:
    """The interval as in test_compare.py: Student's t of 12.706 with one degree of freedom."""
    table = scaling_over_devices(sections(strong(), passed))
    assert [column.title for column in table.columns][:3] == ["devices", "JAX samples / s", "JAX keeps"]
    head, *lines = [line.cells for line in table.lines]
    assert head == ["mnist, Train, cnn-b128-fp32; strong: batch 128 over all devices; on NVIDIA H200"]
    assert [line[:5] for line in lines] == [
        ["1", "1,000", "100%", "2,000", "100%"],
        ["2", "1,550", "77% [51%, 117%]", "3,600", "90% [90%, 90%]"],
        ["4", "2,000", "50% [50%, 50%]", "4,000", "50% [50%, 50%]"],
    ]
    assert [line[6:] for line in lines] == [["step.jit", "step.compiled"]] * 3
    # As `report --use_case 2` shows them: what ran on one device is another use case, and no line.
    several = [section for section in sections(strong(), passed) if section.setup.cell.devices > 1]
    lines = [line.cells for line in scaling_over_devices(several).lines[1:]]
    assert [(line[0], line[4]) for line in lines] == [("2", "90% [90%, 90%]"), ("4", "50% [50%, 50%]")]
    assert scaling_over_devices(several[:1]).lines == []  # one number of devices is no scaling


def test_weak_scaling_holds_the_batch_of_each_device() -> None:
    found = [record("jax", "step.jit", 1000, batch_size=64)]
    found += [record("jax", "step.jit", 900 * n, batch_size=64 * n, cell=on(n)) for n in (2, 8)]
    (panel,) = scaling_panels(sections(found, passed))
    assert panel.label == "mnist, Train, cnn-b64-fp32; weak: batch 64 on each device; on NVIDIA H200"
    assert list(panel.points) == [(1, 1), (2, 1), (8, 1)]
    kept = [side.efficiency for point in panel.points.values() for side in point.sides.values()]
    assert kept[0] is None and [one.value for one in kept[1:] if one] == pytest.approx([0.9, 0.9])


def test_as_many_devices_on_more_nodes_are_a_point_of_their_own() -> None:
    found = [record("jax", "step.jit", speed, cell=on(8, nodes)) for nodes, speed in ((1, 7000), (2, 5000))]
    compared = sections([record("jax", "step.jit", 1000), *found], passed)
    strong, *_ = (panel for panel in scaling_panels(compared) if panel.kind == "strong")
    assert list(strong.points) == [(1, 1), (8, 1), (8, 2)]
    _, *lines = scaling_over_devices(compared).lines
    assert [(line.cells[0], line.cells[1]) for line in lines] == [
        ("1", "1,000"),
        ("8", "7,000"),
        ("8 on 2 nodes", "5,000"),
    ]
    assert [section.setup.devices for section in compared[1:]] == ["8 x NVIDIA H200", "8 x NVIDIA H200, 2 nodes"]


def test_other_settings_are_another_panel_and_say_so() -> None:
    """Else both would be one zigzag of the figure."""
    found = [
        record("jax", "step.jit", 1000 * n, cell=on(n), batch_size=64, settings={"epochs": 2, "momentum": momentum})
        for n in (1, 2)
        for momentum in (0.5, 0.9)
    ]
    compared = sections(found, passed)
    strong = [panel.label.rpartition(" on ")[2] for panel in scaling_panels(compared) if panel.kind == "strong"]
    assert sorted(strong) == ["NVIDIA H200 (momentum 0.5)", "NVIDIA H200 (momentum 0.9)"]
    assert len({point["group"] for point in scaling_chart(compared).points}) == 2 * len(scaling_panels(compared))


def test_the_figure_of_the_page_is_that_of_the_files_and_no_line_of_a_heading_is_cut(tmp_path: Path) -> None:
    """Of one number of devices there is none."""
    long = H200 | {"gpu": {"name": "NVIDIA H100 80GB HBM3 of a very long name that is cut at the edge"}}
    found = [one.model_copy(update={"environment": long}) for one in strong()]
    compared = sections(found, passed)
    chart = scaling_chart(compared)
    of_jax = [point for point in chart.points if point["framework"] == "JAX" and point["devices"] == 2]
    assert [point["group"].rpartition(" | ")[2] for point in of_jax] == ["samples / s", "efficiency, %"]
    assert of_jax[1]["value"] == pytest.approx(100 * math.sqrt(0.75 * 0.8), rel=1e-4)
    html = page_html(compared, found, (), Path("results"))
    drawn = json.loads(html.partition('<script type="application/json" id="charts">')[2].partition("</script>")[0])
    ((name, (looks, points)),) = drawn["data"]["overall"].items()
    assert (name, points, drawn["specifications"][looks]["data"]) == (chart.name, chart.points, {"name": chart.name})
    assert html.count(f'data-chart="{chart.name}" data-place="overall"') == 1
    lines = {line for point in chart.points for line in point["group"].split(" | ")}
    assert {"samples / s", "strong: batch 128 over all devices"} < lines
    assert max(map(len, lines)) <= LONGEST_LINE
    assert 'data-place="overall"' not in page_html(compared[:1], found, (), Path("results"))
    for of, count in ((compared, 1), (compared[:1], 0)):
        names = [one.path.name for one in figures(report_files(tmp_path), of)]
        assert names.count(chart.name) == count
