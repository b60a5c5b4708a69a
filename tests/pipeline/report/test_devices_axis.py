"""Device against device, from made-up records."""

import re
from pathlib import Path
from typing import Any

from harness.plan import Cell
from harness.results.record import Energy, Record
from pipeline.report.charts import PRINT, specification
from pipeline.report.compare import sections
from pipeline.report.devices_axis import HEADS, cells, device_panels
from pipeline.report.figures import overview
from pipeline.report.files import section_names
from pipeline.report.page import page_html
from pipeline.report.readme import results_table, sample_table
from pipeline.report.tables import latex_tables
from pipeline.report.terminal import print_devices, print_sections
from pipeline.report.wording import WHOSE_SIDE
from tests.made.report_records import A100, CPU, H200, passed, plain, record, text

OF_CPU = Cell(gpu="cpu", benchmark="mnist", use_case=1, use_case_name="train")


def three_devices(**changes: Any) -> list[Record]:
    """JAX over PyTorch is 2 on the H200, 0.5 on the A100 and 1.25 on the CPU."""
    found = []
    for replicate in range(4):
        for environment, jax, torch, cell in (
            (H200, 8000, 4000, {}),
            (A100, 1000, 2000, {}),
            (CPU, 50, 40, {"cell": OF_CPU}),
        ):
            of_all = {"environment": environment, "replicate": replicate, **cell, **changes}
            found += [
                record("jax", "step.jit", jax, **of_all),
                record("torch", "step.eager", torch / 2, **of_all),
                record("torch", "step.compiled", torch, **of_all),
            ]
    return found


def test_a_panel_has_every_device_the_slowest_first() -> None:
    (panel,) = device_panels(sections(three_devices(), passed))
    assert (panel.place, panel.label) == ("mnist, Train on one CPU or GPU", "cnn-b100-fp32")
    assert list(panel.devices) == ["CPU: Xeon", "NVIDIA A100", "NVIDIA H200"]
    lines = [cells(device, one.row) for device, one in panel.devices.items()]
    assert [line[:3] for line in lines] == [
        ["CPU: Xeon", "50 (step.jit)", "40 (step.compiled)"],
        ["NVIDIA A100", "1,000 (step.jit)", "2,000 (step.compiled)"],
        ["NVIDIA H200", "8,000 (step.jit)", "4,000 (step.compiled)"],
    ]
    assert [line[3].partition(" ")[0] for line in lines] == ["1.25", "0.50", "2.00"]
    assert {len(line) for line in lines} == {len(HEADS)}


def test_every_table_of_ratios_says_which_side_of_1_is_whose(tmp_path: Path) -> None:
    """And its reader finds it beside that table: below it, or as its caption."""
    found = [*three_devices(), *three_devices(data="sample")]
    compared = sections(found, passed)
    console = plain(300)
    print_sections(compared[:1], console, {})
    print_devices(compared, console)
    assert " ".join(text(console).split()).count(WHOSE_SIDE) == 2
    tables = latex_tables(compared, section_names(compared))
    of_ratios = {name: table for name, table in tables.items() if "JAX / PyTorch" in table}
    assert {"overview", "devices"} < of_ratios.keys() and len(of_ratios) > len(compared)
    for name, table in of_ratios.items():
        shown = re.sub("^%.*$", "", table, flags=re.MULTILINE)
        assert shown.count(WHOSE_SIDE) == 1, name
    page = page_html(compared, {}, found, [], tmp_path)
    captions = re.findall("<caption>(.*?)</caption>.*?<thead>(.*?)</thead>", page, re.DOTALL)
    of_page = [
        WHOSE_SIDE in caption for caption, head in captions if "JAX / PyTorch" in head and ">quantity<" not in head
    ]
    assert len(of_page) == len(compared) + 2 and all(of_page)
    results, on_sample = results_table(compared, found), sample_table(compared, found)
    assert results.count(WHOSE_SIDE) == on_sample.count(WHOSE_SIDE) == 1


def test_other_settings_or_one_device_make_no_panel() -> None:
    found = three_devices()
    assert device_panels(sections(found[:3], passed)) == ()
    other = [record("jax", "step.jit", 10, environment=A100, settings={"epochs": 9}), *found[:3]]
    assert device_panels(sections(other, passed)) == ()
    quick = [record("jax", "step.jit", 10, environment=A100, quick=True), *found[:3]]
    assert device_panels(sections(quick, passed)) == ()


def test_the_same_device_by_two_names_stands_once_with_its_ratio() -> None:
    named = Cell(gpu="a100", benchmark="mnist", use_case=1, use_case_name="train")
    alone = record("jax", "step.jit", 7, environment=A100, cell=named)
    (panel,) = device_panels(sections([alone, *three_devices()], passed))
    assert panel.devices["NVIDIA A100"].row.ratio is not None


def test_terminal_latex_and_chart() -> None:
    compared = sections(three_devices(), passed)
    console = plain(140)
    print_devices(compared, console)
    printed = text(console)
    assert "Device against device" in printed and printed.index("CPU: Xeon") < printed.index("NVIDIA H200")
    table = latex_tables(compared, {one.setup: str(index) for index, one in enumerate(compared)})["devices"]
    assert [table.count(device) for device in ("CPU: Xeon", "NVIDIA A100", "NVIDIA H200")] == [1, 1, 1]
    drawing = overview(compared)
    assert [chart.name for chart in drawing.charts] == ["overview", "throughput_over_devices"]
    points = drawing.data["devices_throughput"]
    assert [(point["device"], point["framework"], point["throughput"]) for point in points[-2:]] == [
        ("NVIDIA H200", "JAX", 8000),
        ("NVIDIA H200", "PyTorch", 4000),
    ]
    import vl_convert

    spec = specification(drawing.charts[1], drawing.data, PRINT)
    assert "NVIDIA H200" in vl_convert.vegalite_to_svg(spec)


def test_energy_of_a_sample() -> None:
    """12 J for 1,000 samples on the A100, 3 J on the H200; a CPU has no counter."""
    found = []
    for one in three_devices():
        joules = {"NVIDIA A100": 12.0, "NVIDIA H200": 3.0}.get((one.environment.get("gpu") or {}).get("name", ""))
        energy = Energy(gross_joules=joules, window_s=5.0, busy_s=5.0, samples=1000) if joules else one.result.energy
        found.append(one.model_copy(update={"result": one.result.model_copy(update={"energy": energy})}))
    compared = sections(found, passed)
    (panel,) = device_panels(compared)
    assert [cells(device, one.row)[4:] for device, one in panel.devices.items()] == [["", ""], ["12", "12"], ["3", "3"]]
    drawing = overview(compared)
    assert [chart.name for chart in drawing.charts][2:] == ["energy_over_devices"]


def test_one_device_has_nothing_of_it() -> None:
    compared = sections(three_devices()[:3], passed)
    console = plain()
    print_devices(compared, console)
    assert text(console) == ""
    assert [chart.name for chart in overview(compared).charts] == ["overview"]
