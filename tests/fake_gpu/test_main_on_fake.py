"""All of main.py on a fake GPU, from the command to the report: PyTorch's side, as JAX runs on no fake.

The results folder is marked for it (harness/results/fake_gpu.py). What kernels would compute is left out, as records
say; all else is what a real GPU would get.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.fake_gpu.environment import card_words
from harness.paths import Results
from harness.results.fake_gpu import HEADLINE, LEFT_OUT
from harness.results.record import Record, read_record
from harness.work.cards import card
from tests.fake_gpu.conftest import Environment
from tests.made.processes import run_python
from tests.made.project import copy_repository

GPUS = ["GPU-face0000-0000-0000-0000-000000000001", "GPU-face0000-0000-0000-0000-000000000002"]
A100_WATTS = 200.0
"""Half of its limit, all the time."""
TICK_JOULES = 0.1 * A100_WATTS
"""Of the energy counter."""
ONCE_MORE = "out of memory; once more, with the GPU's memory in one piece"


class Copy:
    """Of the repository, with a marked results folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        copy_repository(root)
        self.results = Results(root=root / "results")
        self.results.root.mkdir()
        self.results.fake_gpu.touch()

    def main(self, environment: dict[str, str], *arguments: str) -> str:
        done = run_python("main.py", *arguments, env=environment | {"COLUMNS": "300"}, cwd=self.root, quiet_s=200)
        self.status = done.returncode
        return done.stdout + done.stderr

    def measure(self, environment: dict[str, str], use_case: int, *arguments: str) -> str:
        where = ["--benchmark", "mnist", "--use_case", str(use_case), "--data", "sample", "--framework", "torch"]
        how = ["--quick", "--no-baseline", "--executor", "local", "--wait"]
        return self.main(environment, *where, *how, *arguments)

    def records(self) -> list[Record]:
        return [read_record(path) for path in sorted(self.results.records().rglob("*.json"))]

    def said_by_jobs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.results.jobs.rglob("*_log.out")))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def require_half_the_limit(joules: float | None, window_s: float | None) -> None:
    assert joules is not None and window_s is not None
    # One tick by the counter, and one for a reader that a busy machine keeps from its clock.
    assert joules == pytest.approx(A100_WATTS * window_s, abs=2 * TICK_JOULES)


def test_from_submission_to_report(on_card: Environment, copy: Copy) -> None:
    """On the second of two cards, which is named by its UUID."""
    second = on_card("a100", devices=2) | {"CUDA_VISIBLE_DEVICES": GPUS[1]}
    said = copy.measure(second, 1, "--execution_mode", "step.eager_graph")
    assert copy.status == 0, said + copy.said_by_jobs()
    [record] = copy.records()
    result, environment = record.result, record.environment
    assert (record.outcome, result is not None) == ("ok", True)
    assert result is not None

    gpu, framework = environment["gpu"], environment["framework"]
    assert (gpu["uuid"], gpu["index"], framework["device_uuid"], framework["device_count"]) == (GPUS[1], 1, GPUS[1], 1)
    assert gpu["absent"] == {}
    assert not {"other_gpu_read", "low_clocks", "throttled", "other_processes"} & record.flags.keys()

    require_half_the_limit(result.energy.gross_joules, result.energy.window_s)
    assert result.energy.absent is None
    assert result.gpu_states
    assert result.gpu_states[0] == {
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1200,
        "temperature_c": 51,
        "power_watts": A100_WATTS,
        "throttle_reasons": (),
        "other_processes": 0,
    }
    assert result.held_back is not None
    assert set(result.held_back.seconds.values()) == {0.0}
    assert len(result.held_back.seconds) == 5
    memory = result.memory
    assert memory.process_bytes == memory.device_used_bytes == memory.pool_peak_bytes
    assert memory.absent is None

    assert result.details["witness"]["cuda_graph_replays"] == 1
    assert result.explanation is None
    assert "saw nothing run" in (result.explanation_absent or "")

    # What is left out, and that it is a fake.
    assert (result.checks, record.parity) == ([], None)
    assert [(point.train_loss, point.test_metric) for point in result.epochs] == [(0.0, 0.0)] * 3
    assert environment["fake_gpu"]["left_out"] == LEFT_OUT
    assert {"FAKE_CUDA_CARD is set", "a fake CUDA is preloaded"} < set(environment["fake_gpu"]["found"])
    assert {"harness.measure.clock", "torch_runner.use_cases.train", "fake_gpu"} <= set(environment["code"])
    assert HEADLINE.upper() in said
    assert said.index(HEADLINE.upper()) < said.index("images/s")
    assert "FAKE NVIDIA A100-SXM4-80GB" in said
    assert not (copy.results.root / "wandb").exists()

    # The same again is measured no second time, and elsewhere nothing of it counts.
    said = copy.measure(second, 1, "--execution_mode", "step.eager_graph")
    assert (copy.status, len(copy.records())) == (0, 1), said
    copy.results.fake_gpu.unlink()
    without = {name: value for name, value in second.items() if not name.startswith(("FAKE_", "LD_", "CUDA_"))}
    said = copy.main(without, "report", "--no-figures")
    assert (copy.status, HEADLINE in said, "No records" in said) == (1, True, True)


def test_out_of_memory_in_a_capture_is_tried_once_more(on_card: Environment, copy: Copy) -> None:
    """With expandable segments; and then it is an answer for good."""
    small = replace(card("a100"), memory_bytes=64 * 2**20)
    said = copy.measure(
        on_card("a100") | {"FAKE_CUDA_CARD": card_words(small)}, 1, "--execution_mode", "step.eager_graph"
    )
    [record] = copy.records()
    assert record.outcome == "out_of_memory", said + copy.said_by_jobs()
    assert "private pools (e.g., CUDA Graphs)" in (record.reason or "")  # so it was inside the capture
    assert copy.said_by_jobs().count(ONCE_MORE) == 1
    assert "1 measured, 0 had a record, 0 failed" in copy.said_by_jobs()


@pytest.mark.nightly
def test_a_slice_and_a_card_without_energy(on_card: Environment, copy: Copy) -> None:
    """What NVML refuses is absent, with its reason, and costs nothing else."""
    eager = ["--execution_mode", "step.eager"]
    first_slice = "MIG-face0000-0000-0000-0000-000000000101"
    sliced = {"FAKE_CUDA_MIG": "1", "CUDA_VISIBLE_DEVICES": first_slice}
    copy.measure(on_card("a100", devices=2) | sliced, 1, *eager)
    copy.measure(on_card("rtx3080") | {"FAKE_NVML": "no_energy,stranger"}, 1, *eager, "--set", "epochs=1")
    of_slice, of_card = sorted(copy.records(), key=lambda record: record.started_at)
    assert [record.outcome for record in (of_slice, of_card)] == ["ok", "ok"], copy.said_by_jobs()
    assert of_slice.result is not None and of_card.result is not None
    assert of_slice.environment["gpu"]["uuid"] == first_slice
    assert "whole board" in (of_slice.result.energy.absent or "")
    assert of_slice.result.gpu_states[0]["sm_clock_mhz"] == 1410
    assert of_card.result.energy.gross_joules is None
    assert "Not Supported" in (of_card.result.energy.absent or "")
    assert of_card.result.memory.device_used_bytes is None  # somebody else was there before
    assert of_card.flags["other_processes"] == "up to 1 other process(es) used the same GPU"
