"""Device against device, from made-up records."""

from typing import Any

from harness.plan import Cell
from harness.results.record import Energy, Record
from pipeline.report.compare import sections
from pipeline.report.devices_axis import device_panels, devices_table
from tests.made.report_records import A100, CPU, H200, passed, record, with_result

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
    title, *lines = (list(line.cells) for line in devices_table(sections(three_devices(), passed)).lines)
    assert title == ["mnist, Train: cnn-b100-fp32"]
    assert [line[:3] for line in lines] == [
        ["CPU: Xeon", "50 (step.jit)", "40 (step.compiled)"],
        ["NVIDIA A100", "1,000 (step.jit)", "2,000 (step.compiled)"],
        ["NVIDIA H200", "8,000 (step.jit)", "4,000 (step.compiled)"],
    ]
    assert [line[3].partition(" ")[0] for line in lines] == ["1.25", "0.50", "2.00"]


def test_other_settings_or_one_device_make_no_panel() -> None:
    found = three_devices()
    assert device_panels(sections(found[:3], passed)) == {}
    other = [record("jax", "step.jit", 10, environment=A100, settings={"epochs": 9}), *found[:3]]
    assert device_panels(sections(other, passed)) == {}
    quick = [record("jax", "step.jit", 10, environment=A100, quick=True), *found[:3]]
    assert device_panels(sections(quick, passed)) == {}


def test_the_same_device_by_two_names_stands_once_with_its_ratio() -> None:
    named = Cell(gpu="a100", benchmark="mnist", use_case=1, use_case_name="train")
    alone = record("jax", "step.jit", 7, environment=A100, cell=named)
    (devices,) = device_panels(sections([alone, *three_devices()], passed)).values()
    assert devices["NVIDIA A100"].ratio is not None


def test_energy_of_a_sample() -> None:
    """12 J for 1,000 samples on the A100, 3 J on the H200; a CPU has no counter."""
    found = []
    for one in three_devices():
        joules = {"NVIDIA A100": 12.0, "NVIDIA H200": 3.0}.get((one.environment.get("gpu") or {}).get("name", ""))
        energy = Energy(gross_joules=joules, window_s=5.0, busy_s=5.0, samples=1000) if joules else one.result.energy
        found.append(with_result(one, energy=energy))
    lines = devices_table(sections(found, passed)).lines[1:]
    assert [line.cells[4:] for line in lines] == [["", ""], ["12", "12"], ["3", "3"]]
