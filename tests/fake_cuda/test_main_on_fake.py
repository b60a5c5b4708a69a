"""All of main.py on the fake CUDA, from the command to the report: PyTorch's side, as JAX does not run on it.

It runs in a copy of the repository, in which without_numbers.py replaces the guard against the fake.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.paths import Results
from harness.results.record import Record, read_record
from tests.fake_cuda.conftest import Environment
from tests.fake_cuda.environment import CARD, words_of
from tests.made.gpu_specs import GPU_SPECS
from tests.made.processes import run_python
from tests.made.project import copy_repository

SECOND = "GPU-face0000-0000-0000-0000-000000000002"
A100_WATTS = 200.0
"""Half of its limit, all the time."""
TICK_JOULES = 0.1 * A100_WATTS
"""Of the energy counter."""


class Copy:
    """A copy of the repository that measures on the fake."""

    def __init__(self, root: Path) -> None:
        self.root, self.results = root, Results(root=root / "results")
        copy_repository(root)
        guard = root / "harness" / "measure" / "fake_cuda_guard.py"
        shutil.copyfile(Path(__file__).with_name("without_numbers.py"), guard)

    def main(self, environment: Mapping[str, str], *arguments: str) -> tuple[int, str]:
        """Its status, and what it prints."""
        done = run_python(
            "main.py",
            *arguments,
            env={**environment, "COLUMNS": "300", "WANDB_MODE": "disabled"},
            cwd=self.root,
            quiet_s=200,
        )
        return done.returncode, done.stdout + done.stderr

    def measure(self, environment: Mapping[str, str], *arguments: str) -> tuple[int, str]:
        where = ["--benchmark", "mnist", "--use_case", "1", "--data", "sample", "--framework", "torch"]
        how = ["--quick", "--executor", "local", "--wait"]
        return self.main(environment, *where, *how, *arguments)

    def printed_by_jobs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.results.jobs.rglob("*_log.out")))

    def records(self) -> list[Record]:
        return [read_record(path) for path in self.results.records().rglob("*.json")]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_from_submission_to_report(on_card: Environment, copy: Copy) -> None:
    """On the second of two cards, which is named by its UUID."""
    second = on_card("a100", devices=2) | {"CUDA_VISIBLE_DEVICES": SECOND}
    status, said = copy.measure(second, "--execution_mode", "step.eager_graph")
    assert status == 0, said + copy.printed_by_jobs()
    [record] = copy.records()
    result, environment = record.result, record.environment
    assert record.outcome == "ok" and result is not None

    gpu, framework = environment["gpu"], environment["framework"]
    assert (gpu["uuid"], gpu["index"], framework["device_uuid"], framework["device_count"]) == (SECOND, 1, SECOND, 1)
    assert not {"other_gpu_read", "low_clocks", "throttled", "other_processes"} & record.flags.keys()

    assert gpu["absent"] == {} and result.energy.absent is result.memory.absent is None
    assert result.energy.gross_joules is not None and result.energy.window_s is not None
    ticks = result.energy.gross_joules / TICK_JOULES
    assert ticks == pytest.approx(round(ticks)) and ticks >= 1
    assert result.gpu_states and result.gpu_states[0]["power_watts"] == A100_WATTS
    assert result.held_back is not None and list(result.held_back.seconds.values()) == [0.0] * 5
    memory = result.memory
    assert memory.process_bytes == memory.device_used_bytes == memory.pool_peak_bytes
    assert result.details["witness"]["cuda_graph_replays"] == 1
    assert result.explanation is None and "saw nothing run" in (result.explanation_absent or "")

    assert [(point.train_loss, point.test_metric) for point in result.epochs] == [(0.0, 0.0)] * 3  # computed by nobody
    assert "NVIDIA A100-SXM4-80GB" in said


@pytest.mark.nightly
def test_out_of_memory_in_a_capture_is_tried_once_more(on_card: Environment, copy: Copy) -> None:
    """With expandable segments; and then it is an answer for good."""
    small = {CARD: words_of(replace(GPU_SPECS["a100"], memory_bytes=64 * 2**20))}
    _, said = copy.measure(on_card("a100") | small, "--execution_mode", "step.eager_graph")
    [record] = copy.records()
    assert record.outcome == "out_of_memory", said + copy.printed_by_jobs()
    assert "private pools (e.g., CUDA Graphs)" in (record.reason or "")  # so it was inside the capture
    # A phase that takes long is reported again, behind the measurement's name.
    assert copy.printed_by_jobs().count("| out of memory; once more, with the GPU's memory in one piece") == 1
    assert "1 measured, 0 had a record, 0 failed" in copy.printed_by_jobs()
