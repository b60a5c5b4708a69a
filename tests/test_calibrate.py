"""The instrument's own calibration: the plant, the trials, the table, and a run with fake frameworks."""

import json
import math
import random
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness import measure, planted_slowdown
from harness.config import load_config
from harness.errors import ConfigError, ProjectError, RecordError
from harness.measure import time_block, time_call
from harness.paths import REPOSITORY
from harness.planted_slowdown import PlantedSlowdown
from harness.record import Blocks
from harness.statistics import Verdict
from main import main
from pipeline.calibrate import Choice, new_calibration, resumed, what_is_left
from pipeline.calibration import (
    CONDITIONS,
    NOT_PUBLISHED,
    PART_OF_DOCS,
    PLANTED,
    PUBLISHED,
    Calibration,
    Process,
    describe,
    judge,
    published_text,
    read_calibration,
    rounds_of,
    rows_of,
    spread,
    table,
    trials,
    update_docs,
    write_calibration,
)
from tests.config_text import MINIMAL, changed
from tests.fake_repository import QUICK, Repository, make_repository, without_slurm

READ_S = 2.0**-20
"""What each look at the clock costs in here, so that waiting for it to pass ends."""


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.waits = 0
        for timed in (measure, planted_slowdown):
            monkeypatch.setattr(timed, "perf_counter", self.read)

    def read(self) -> float:
        self.now_s += READ_S
        return self.now_s

    def step(self) -> str:
        """Enqueues 1 s of work; as on a GPU, the call itself returns at once."""
        return "output"

    def wait(self, output: object) -> None:
        assert output == "output"
        self.waits += 1
        self.now_s += 8.0


# The plant.


@pytest.mark.parametrize("fraction", [0.01, 0.02, 0.05, 0.10])
def test_a_block_takes_exactly_so_much_longer(monkeypatch: pytest.MonkeyPatch, fraction: float) -> None:
    clock = Clock(monkeypatch)
    planted = PlantedSlowdown(fraction, clock.step, clock.wait)
    for _ in range(2):  # the second block starts anew, whatever lies between
        clock.now_s += 100
        assert time_block(planted.step, planted.wait, 8) == pytest.approx(8 * (1 + fraction), abs=10 * READ_S)
    assert time_call(planted.step, planted.wait) == pytest.approx(8 * (1 + fraction), abs=10 * READ_S)
    assert clock.waits == 3


def test_a_wait_without_a_call_is_not_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    planted = PlantedSlowdown(0.5, clock.step, clock.wait)
    planted.wait("output")
    assert clock.now_s == 8.0


# From processes to shares.


def blocks(samples_per_s: float) -> Blocks:
    return Blocks(
        calls_per_block=10,
        steps_per_call=1,
        samples_per_step=10,
        block_times_s=[100 / samples_per_s] * 3,
        warmup_times_s=[],
    )


def one_round(a: float, a2: float, *, base: float = 100.0) -> dict[str, float]:
    slowed = {name: base / (1 + planted) for name, planted in PLANTED.items()}
    return {"A": a, "A'": a2} | slowed


@pytest.mark.parametrize(
    ("planted", "verdict", "answer"),
    [
        (0.0, "same", "right"),
        (0.0, "undecided", "undecided"),
        (0.0, "JAX faster", "wrong"),
        (0.0, "PyTorch faster", "wrong"),
        (0.02, "JAX faster", "right"),
        (0.02, "undecided", "undecided"),
        (0.02, "PyTorch faster", "wrong"),
        (0.02, "same", "wrong"),
    ],
)
def test_what_is_right(planted: float, verdict: Verdict, answer: str) -> None:
    assert judge(planted, verdict) == answer


def test_a_perfect_instrument_is_always_right() -> None:
    rows = rows_of([one_round(100, 100)] * 5)
    assert [(row.replicates, row.condition) for row in rows] == [
        (count, name) for count in (3, 5) for name in ("A/A", "+1 %", "+2 %", "+5 %", "+10 %")
    ]
    for row in rows:
        assert row.ratio == pytest.approx(row.true_ratio)
        if row.condition != "+1 %":  # 1.01 is the edge of `same`: rounding decides
            assert row.shares == {"right": 1.0, "wrong": 0.0, "undecided": 0.0}


def test_shares_by_hand() -> None:
    """Three rounds whose A is 2 % faster than A'. Which is the base is a coin each: with three equal coins of eight,
    all three ratios are 1.02 or all 1 / 1.02, which is wrong; else one differs, which is undecided."""
    a_a, _, two, *_ = rows_of([one_round(102, 100)] * 3)
    assert a_a.shares["right"] == 0
    assert a_a.shares["wrong"] == pytest.approx(0.25, abs=0.055)  # four standard errors of 1000 trials
    assert a_a.shares["wrong"] + a_a.shares["undecided"] == pytest.approx(1)
    # Against +2 %: with A' always, log 1.02 three times: right. With A always, log 1.04: right. Else a spread of
    # 0.0114 around a mean under 0.04, with t[2] * 0.0114 / sqrt(3) = 0.0284: means 0.0264 (undecided), 0.0330 (right).
    assert two.shares["right"] == pytest.approx(5 / 8, abs=0.062)
    assert two.shares["wrong"] == 0
    assert "| 3 | A/A | 0.0 % | " in table([a_a, two])
    assert two.goal == "right ≥ 90 %: missed"
    assert a_a.goal == "wrong ≤ 5 %: missed"


def test_trials_are_subsets_drawn_evenly_and_always_the_same() -> None:
    drawn = list(trials(5, 3))
    assert drawn == list(trials(5, 3))
    assert len(drawn) == 1000
    assert all(len({number for number, _ in trial}) == 3 for trial in drawn)
    seen = Counter(number for trial in drawn for number, _ in trial)
    for number in range(5):  # each is in 3 of 5: 600 of 1000, standard error 15
        assert seen[number] == pytest.approx(600, abs=62)
    swapped = sum(swap for trial in drawn for _, swap in trial)
    assert swapped == pytest.approx(1500, abs=110)  # standard error 27


def test_spread_by_hand() -> None:
    # Logs 0.0198026 and -0.0198026: root mean square 0.0198026.
    assert spread([one_round(102, 100), one_round(100, 102)]) == pytest.approx(0.0198026, rel=1e-5)


# The file.


def made_calibration(rounds: int, *, quick: bool = False) -> Calibration:
    config = load_config(REPOSITORY / "experiments.yaml")
    choice = Choice(frameworks=("torch",), benchmark="mnist", use_case=1, data="sample", quick=quick)
    processes = [
        Process(
            framework="torch",
            round=number,
            condition=condition,
            blocks=blocks(1000 * (1 + number / 100) / (1 + planted)),
            load_average=0.25,
            started_at="2026-11-21T10:00:00+00:00",
            duration_s=9.5,
        )
        for number in range(1, rounds + 1)
        for condition, planted in CONDITIONS.items()
    ]
    environment = {
        "python": "3.11.7",
        "cpu": {"model": "A CPU", "affinity": [0, 1]},
        "gpu": {"absent": "no NVIDIA driver"},
        "framework": {"version": "2.15.0", "platform": "cpu"},
    }
    return new_calibration(config, choice, rounds=rounds).model_copy(
        update={"processes": processes, "environments": {"torch": environment}, "started_at": "2026-11-21T10:00:00"}
    )


def test_file_keeps_raw_times_and_is_read_back(tmp_path: Path) -> None:
    calibration = made_calibration(3)
    path = tmp_path / "made" / "calibration.json"
    write_calibration(calibration, path)
    assert read_calibration(path) == calibration
    assert json.loads(path.read_text())["processes"][0]["blocks"]["block_times_s"] == [100 / 1010] * 3


def test_incomplete_rounds_are_left_out() -> None:
    calibration = made_calibration(4)
    cut = calibration.model_copy(update={"processes": calibration.processes[:-1]})
    # The speed of a round, here 1 % more each, cancels in its ratios.
    assert [one["A"] for one in rounds_of(cut, "torch")] == pytest.approx([1010, 1020, 1030])
    assert len(rounds_of(calibration, "torch")) == 4


def test_description_says_where_how_much_and_with_which_flags() -> None:
    made = made_calibration(4)
    flags: list[dict[str, str]] = [{"too_few_latency_calls": ""}] * 21
    flags += [{"imprecise": "", "drift": ""}, {"imprecise": ""}, {}]
    processes = [p.model_copy(update={"flags": f}) for p, f in zip(made.processes, flags, strict=True)]
    text = describe(made.model_copy(update={"processes": processes}))
    assert text.startswith(
        "**torch**, mnist, use case 1 (cnn-b256-fp32-eager, sample data), on 2 CPUs (A CPU), with torch 2.15.0 and "
        "Python 3.11.7. 4 rounds from 2026-11-21; load average 0.2 to 0.2. Two unslowed processes of a round differ by "
        "0.00 % (root mean square). Flags: imprecise in 2 of 24 processes, drift in 1. Too few rounds for 5 and 10 "
        "replicates.\n\n| replicates |"
    )
    assert "| 3 | +10 % | 100.0 % | 0.0 % | 0.0 % | 1.1000 | +0.00 % |  |" in text
    assert "no complete round yet" in describe(made_calibration(0))
    assert "The table needs 3 complete rounds" in describe(made_calibration(2))
    assert "A quick run: not a result to quote" in describe(made_calibration(3, quick=True))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "cannot be read as a calibration"),
        ("[]", "schema version None"),
        ('{"schema_version": 2}', "schema version 2; this code reads 1"),
        ('{"schema_version": 1}', "not a calibration: measurements"),
    ],
)
def test_what_is_no_calibration_is_refused_by_name(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(RecordError, match=complaint) as error:
        read_calibration(path)
    assert str(path) in str(error.value)


# The docs.


def test_docs_have_the_tables_of_the_published_calibrations() -> None:
    text = (REPOSITORY / "docs" / "measurement.md").read_text()
    assert PART_OF_DOCS.replaced(text, published_text(), "docs/measurement.md") == text


def test_what_the_docs_say_of_the_errors_is_in_the_published_calibration() -> None:
    text = (REPOSITORY / "docs" / "measurement.md").read_text()
    calibration = read_calibration(PUBLISHED / "20261121T232723.792811Z-3d28.json")
    for name, fraction in PLANTED.items():
        cells = [name, f"{math.log(1 + fraction):+.3f}"]
        for framework in ("jax", "torch"):
            logs = [math.log(math.sqrt(one["A"] * one["A'"]) / one[name]) for one in rounds_of(calibration, framework)]
            cells.append(f"{statistics.mean(logs):+.3f} ± {statistics.stdev(logs) / math.sqrt(len(logs)):.3f}")
        line = f"| {' | '.join(cells)} |"
        assert line in text, line


def test_what_the_docs_say_of_plants_in_one_process_is_in_the_records() -> None:
    text = (REPOSITORY / "docs" / "measurement.md").read_text()
    folder = REPOSITORY / "results" / "published" / "planted_slowdown"
    of_both = [json.loads((folder / f"{framework}-cpu.json").read_text())["rounds"] for framework in ("jax", "torch")]
    for name, fraction in {"A'": 0.0, **PLANTED}.items():
        cells = ["none" if name == "A'" else name, f"{math.log(1 + fraction):+.3f}"]
        for rounds in of_both:
            logs = [math.log(times_s[name] / times_s["A"]) for times_s in rounds]
            cells.append(f"{statistics.mean(logs):+.3f} ± {statistics.stdev(logs) / math.sqrt(len(logs)):.3f}")
        line = f"| {' | '.join(cells)} |"
        assert line in text, line


def test_docs_are_written_between_the_markers(tmp_path: Path) -> None:
    docs, folder = tmp_path / "page.md", tmp_path / "published"
    begin, end = PART_OF_DOCS.begin, PART_OF_DOCS.end
    docs.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    update_docs(docs, folder)
    assert docs.read_text() == f"before\n{begin}\n{NOT_PUBLISHED}\n{end}\nafter\n"
    write_calibration(made_calibration(3), folder / "a cpu.json")
    update_docs(docs, folder)
    assert docs.read_text() == f"before\n{begin}\n{describe(made_calibration(3))}\n{end}\nafter\n"


def test_docs_take_no_quick_run_and_need_their_markers(tmp_path: Path) -> None:
    docs, folder = tmp_path / "page.md", tmp_path / "published"
    docs.write_text("no markers")
    with pytest.raises(ProjectError, match="needs the lines"):
        update_docs(docs, folder)
    write_calibration(made_calibration(3, quick=True), folder / "quick.json")
    with pytest.raises(RecordError, match="quick run, which is not for publishing"):
        update_docs(docs, folder)


# What is measured.


def new(config: Path, **changes: Any) -> Calibration:
    asked: dict[str, Any] = {"benchmark": "mnist", "use_case": 1, "data": "sample", "quick": False} | changes
    return new_calibration(load_config(config), Choice(**asked), rounds=4)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.yaml"
    path.write_text(MINIMAL)
    return path


def test_first_variant_of_each_framework_with_one_epoch(config: Path) -> None:
    measurements = new(config).measurements
    assert {name: one.variant.key for name, one in measurements.items()} == {
        "jax": "cnn-b64-fp32-jit",
        "torch": "cnn-b64-fp32-eager",
    }
    assert new(config).data_dir == "data"
    assert all(one.settings["epochs"] == 1 and one.settings["momentum"] == 0.9 for one in measurements.values())
    other = new(config, use_case=3, frameworks=("torch",), batch_size=32, benchmark="cifar10").measurements
    assert {name: one.variant.key for name, one in other.items()} == {"torch": "cnn-b32-fp32-norms-eager"}
    assert "epochs" not in other["torch"].settings


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"benchmark": "mnits"}, "--benchmark mnits: not defined .* did you mean mnist"),
        ({"use_case": 7}, "--use_case 7: not defined .* valid: 1, 3"),
        ({"frameworks": ("pytorch",)}, "--framework pytorch: no such framework; valid: jax, torch"),
        ({"batch_size": 63}, "--batch_size 63: jax has no such variant in experiments.yaml; valid: 64"),
        ({"execution_mode": "jit"}, "--execution_mode jit: torch has no .* valid: eager, compiled.* --framework"),
    ],
)
def test_wrong_choices_are_answered_with_the_valid_ones(config: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        new(config, **changes)


def test_one_device_only(tmp_path: Path) -> None:
    path = tmp_path / "experiments.yaml"
    path.write_text(changed("    batch_sizes: [64]\n", "    batch_sizes: [64]\n    devices: 2\n"))
    with pytest.raises(ConfigError, match="is for 2 devices"):
        new(path)


def test_every_round_has_all_conditions_in_an_order_of_its_own(config: Path) -> None:
    plan = list(what_is_left(new(config)))
    assert plan == list(what_is_left(new(config)))
    assert Counter(plan) == Counter(
        (framework, number, condition)
        for framework in ("jax", "torch")
        for number in (1, 2, 3, 4)
        for condition in CONDITIONS
    )
    orders = {tuple(condition for _, _, condition in plan[start : start + 6]) for start in range(0, 48, 6)}
    assert len(orders) > 4
    assert [number for _, number, _ in plan] == sorted(number for _, number, _ in plan)


def test_what_is_measured_is_not_left() -> None:
    calibration = made_calibration(3)
    assert list(what_is_left(calibration)) == []
    cut = calibration.model_copy(update={"processes": calibration.processes[:-2]})
    assert {condition for _, _, condition in what_is_left(cut)} == {"+5 %", "+10 %"}


def test_resume_goes_on_to_more_rounds(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_calibration(made_calibration(3), path)
    assert len(list(what_is_left(resumed(path, rounds=5)))) == 12
    assert list(what_is_left(resumed(path, rounds=None))) == []


# The command, with a fake framework.


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = make_repository(tmp_path / "copy")
    shutil.copytree(REPOSITORY / "pipeline", made.root / "pipeline")
    shutil.copy(REPOSITORY / "main.py", made.root)
    return made


def begun(repository: Repository, mode: str) -> Path:
    """A calibration of the fake framework that has measured nothing yet."""
    (measurement, *_) = repository.plan(mode).measurements()
    path = repository.results.root / "calibration" / "begun.json"
    started = Calibration(
        measurements={"torch": measurement}, data_dir="data", rounds=3, seed=0, started_at="2026-11-21T10:00:00"
    )
    write_calibration(started, path)
    return path


def call(repository: Repository, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "main.py", "calibrate", *map(str, words)]
    return subprocess.run(command, cwd=repository.root, env=without_slurm(), capture_output=True, text=True)


def test_a_calibration_runs_saves_and_is_resumed(repository: Repository) -> None:
    path = begun(repository, "well")
    done = call(repository, "--resume", path)
    assert done.returncode == 0, done.stderr
    assert "[18/18] torch round 3 " in done.stdout
    assert "| 3 | A/A |" in done.stdout
    saved = read_calibration(path)
    assert {(one.round, one.condition) for one in saved.processes} == {
        (number, condition) for number in (1, 2, 3) for condition in CONDITIONS
    }
    assert saved.environments["torch"]["node"]
    for private in (str(repository.root), sys.executable):  # the file is made to be published
        assert private not in json.dumps(saved.environments)
    assert call(repository, "--from", path).stdout == done.stdout.partition("\n\n")[2]
    again = call(repository, "--resume", path)
    assert again.stdout.startswith("0 processes; ")
    assert read_calibration(path) == saved

    environment = saved.environments["torch"] | {"node": "elsewhere"}
    write_calibration(saved.model_copy(update={"environments": {"torch": environment}}), path)
    mixed = call(repository, "--resume", path, "--rounds", "4")
    assert mixed.returncode == 2
    assert "was elsewhere when this calibration was begun" in mixed.stderr
    assert len(read_calibration(path).processes) == 18


def test_a_failure_is_told_and_what_was_measured_is_kept(repository: Repository) -> None:
    path = begun(repository, "raises")
    done = call(repository, "--resume", path)
    assert done.returncode == 2
    assert "KeyError: 'conv9'" in done.stderr
    assert f"--resume {path}" in done.stderr
    assert read_calibration(path).processes == []


SLOWED = """\
import json, sys
from pathlib import Path
from pipeline.calibrate import _run_child
from pipeline.calibration import read_calibration
from harness.session import ChildTask
measurement = read_calibration(Path(sys.argv[1])).measurements["torch"]
times = []
for planted in (0.0, 3.0):
    task = ChildTask(measurement=measurement, data_dir="data", planted_slowdown=planted)
    blocks = _run_child(task, Path("log")).result.blocks
    times.append(sorted(blocks.block_times_s)[1] / blocks.calls_per_block)
print(json.dumps(times))
"""


def test_the_plant_reaches_the_child(repository: Repository) -> None:
    """Four times slower, so that a busy machine cannot hide it."""
    assert QUICK["min_blocks"] == QUICK["max_blocks"] == 3
    command = [sys.executable, "-c", SLOWED, str(begun(repository, "well"))]
    done = subprocess.run(command, cwd=repository.root, env=without_slurm(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plain_s, slowed_s = json.loads(done.stdout)
    assert slowed_s > 2 * plain_s


def test_fewer_than_three_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", "--rounds", "2"])
    assert "3 rounds at the least" in capsys.readouterr().err


def test_no_number_rests_on_the_order_of_a_set() -> None:
    """The same table from the same processes in any order."""
    calibration = made_calibration(5)
    shuffled = list(calibration.processes)
    random.Random(1).shuffle(shuffled)
    assert describe(calibration.model_copy(update={"processes": shuffled})) == describe(calibration)
