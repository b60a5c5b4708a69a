"""The parity gate in the job: which programs it runs, and what a fault in one of them costs. Real processes; the
framework in them is tests/made/fake_framework."""

from pathlib import Path

import numpy as np

from harness.plan import FRAMEWORKS
from harness.results.parity import ParityNumbers
from harness.results.parity_file import read_parity
from harness.results.record import Record
from tests.made.patience import slowdown
from tests.made.project import BehavingProject


def files(repository: BehavingProject) -> list[Path]:
    return sorted(repository.results.records().rglob("parity-*.npz"))


def numbers_of(record: Record, repository: BehavingProject) -> ParityNumbers:
    assert record.parity is not None
    measurement = record.measurement
    return read_parity(repository.results.records(measurement.cell, measurement.framework) / record.parity)


def logs(repository: BehavingProject) -> list[str]:
    """What the parity processes said, one after the other."""
    return [path.read_text() for path in sorted(repository.results.records().rglob("parity-*Z-????.log"))]


def test_one_process_does_all_keys_and_the_records_name_their_files(repository: BehavingProject) -> None:
    plan = repository.plan("well", replicates=2)
    [variant] = plan.variants
    variants = (variant, variant.model_copy(update={"batch_size": 4}))
    status, output, _ = repository.run(plan.model_copy(update={"variants": variants}))
    assert status == 0, output
    (path,) = files(repository)  # two batch sizes, two replicates, one program
    assert [record.parity for record in repository.records()] == [path.name] * 4
    kept = read_parity(path)
    assert kept.metadata.outcome == "ok"
    assert kept.metadata.key.execution_mode == "well.eager"
    assert kept.metadata.environment["framework"]["version"] == "1.2.3"
    assert {"job", "node", "git", "scheduler"} <= kept.metadata.environment.keys()
    np.testing.assert_array_equal(kept.kept["outputs"], [0, 1, 2, 3])
    assert logs(repository) == ["rank 0 computes cnn-b16-fp32-well.eager\n"]


def test_fault_in_one_program_costs_no_other(repository: BehavingProject) -> None:
    timeout_s = round(6 * slowdown())
    faults = {
        "parity_is_killed": ("failed", "the measurement's process was killed by SIGKILL"),
        "well": ("ok", "None"),
        "parity_raises": ("failed", "KeyError: 'conv9'"),
        "parity_is_refused": ("refused", "this mode needs an NVIDIA GPU"),
        "gated": ("ok", "None"),
        "parity_sleeps": ("timeout", f"not done after {timeout_s} s; log: "),
    }
    repository.gate.touch()
    status, output, _ = repository.run(repository.plan(*faults, timeout_s=timeout_s))
    assert status == 0, output
    records = repository.by_mode()
    assert {mode: record.outcome for mode, record in records.items()} == dict.fromkeys(faults, "ok")
    for mode, (outcome, reason) in faults.items():
        found = numbers_of(records[mode], repository).metadata
        assert found.outcome == outcome and str(found.reason).startswith(reason)
    assert "no parity numbers, so no ratio: cnn-b16-fp32-parity_raises.eager: failed: KeyError: 'conv9'" in output
    lines = [log.splitlines() for log in logs(repository)]
    assert [[line.rpartition("-")[2] for line in log if line.startswith("rank")] for log in lines] == [
        ["parity_is_killed.eager"],
        ["well.eager", "parity_raises.eager"],
        ["parity_is_refused.eager", "gated.eager", "parity_sleeps.eager"],
    ]


def test_several_devices_compute_them_together(repository: BehavingProject) -> None:
    status, output, _ = repository.run(repository.plan("parity_is_killed", "well", devices=2))
    assert status == 0, output
    records = repository.by_mode()
    killed, well = (numbers_of(records[mode], repository) for mode in ("parity_is_killed", "well"))
    assert killed.metadata.outcome == "failed"
    assert str(killed.metadata.reason).startswith("rank 1 on ")
    assert well.kept["loss"] == 2.0
    assert well.metadata.key.devices == 2
    assert len(files(repository)) == 2


def test_what_is_measured_already_is_not_proved_again(repository: BehavingProject) -> None:
    for force, count in ((False, 2), (False, 2), (True, 4)):
        assert repository.run(repository.plan("well", "prints_much", force=force))[0] == 0
        assert len(files(repository)) == count


def test_what_another_code_has_proved_is_proved_again(repository: BehavingProject) -> None:
    """A job goes on after a requeue; somebody has edited the runner meanwhile."""
    folder = repository.job(repository.plan("raises"))  # a measurement that fails is tried again

    def run_again() -> list[str]:
        repository.resume(folder)
        return [str(record.parity) for record in repository.records()]

    run_again()
    first, second = run_again()
    assert first == second
    repository.change("torch_runner/use_cases/behave.py", ("import gc\n", "import gc\n\nCHANGED = 1\n"))
    *before, changed = run_again()
    assert set(before) == {first}
    assert changed != first
    old, new = (read_parity(path).metadata.environment["code"] for path in files(repository))
    assert {name for name in new if new[name] != old[name]} == {"torch_runner"}


def test_a_model_that_differs_is_not_timed_and_costs_no_other(repository: BehavingProject) -> None:
    """Of outputs 0, 1, 2, 3 and 0, 1, 2, 4: the difference is 1, the larger norm the root of 21."""
    same = {"gate": str(repository.gate), "pid": str(repository.root / "torch-pid")}  # so that the work is equal
    pair = repository.pair(("parity_differs",), ("parity_differs",), replicates=2, settings=same)
    status, output, folder = repository.run(pair)
    assert status == 1, output
    records = repository.records()
    cause = "outputs: relative error 2.2e-1, allowed 5.0e-5; the other tensor agrees"
    found = {(record.measurement.framework, record.outcome, record.reason) for record in records}
    assert found == {(framework, "failed", f"not timed: {cause}") for framework in FRAMEWORKS}
    assert f"cnn: not timed: {cause}" in output
    assert str(repository.heartbeat(folder).last_error).endswith(f"not timed: {cause}")
    assert all(record.result is None for record in records)
    status, output, _ = repository.run(repository.plan("parity_differs"))  # compared with nothing
    assert status == 0 and {record.outcome for record in repository.records()[len(records) :]} == {"ok"}, output
