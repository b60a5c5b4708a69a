"""A calibration as a pair of plans: what it measures, in which order, and that it is a job like any other."""

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.experiments.expand import Selection
from harness.experiments.load import load_config
from harness.experiments.narrow import Narrowing
from harness.plan import CONDITIONS, CONDITIONS_IN_TURNS, PAIRS_IN_TURNS, PARTNERS, SLOWDOWNS, JobPlan, Pair
from harness.plan_file import read_plan
from harness.results.record import Record, read_record
from main import main
from pipeline import calibrate as module
from pipeline.calibrate import calibration_pair, calibration_pairs
from pipeline.report.calibration import read_calibrations
from pipeline.submission import render
from pipeline.watching.cancel import cancel
from tests.made.config_text import MINIMAL
from tests.made.project import QUICK, BehavingProject, make_behaving_project, without_slurm

MNIST = Selection(benchmarks=("mnist",), use_cases=(1,), data="sample")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.yaml"
    path.write_text(MINIMAL)
    return path


def plans(config: Path, selection: Selection = MNIST, **narrowing: Any) -> tuple[JobPlan, ...]:
    selection = replace(selection, narrowing=Narrowing(**narrowing))
    (pair,) = calibration_pairs(load_config(config), selection, rounds=4)
    return pair.jobs


def test_first_variant_of_each_framework_under_every_condition_with_one_epoch(config: Path) -> None:
    jax, torch = plans(config)
    assert (jax.name, torch.name) == ("any/jax_mnist_1_calibration", "any/torch_mnist_1_calibration")
    assert [variant.key for variant in torch.variants] == [f"cnn-b64-fp32-step.eager-{name}" for name in CONDITIONS]
    planted = {(variant.execution_mode, variant.planted_slowdown) for variant in jax.variants}
    assert planted == {("step.jit", fraction) for fraction in CONDITIONS.values()}
    for plan in (jax, torch):
        assert (plan.settings["epochs"], plan.settings["momentum"], plan.protocol.replicates) == (1, 0.9, 4)
        assert (plan.data, plan.quick, plan.force) == ("sample", False, False)
        assert plan.screening is None  # every condition has every round
    other = replace(MNIST, benchmarks=("cifar10",), use_cases=(3,), frameworks=("torch",), quick=True, force=True)
    (plan,) = plans(config, other, batch_sizes=(32,))
    assert plan.variants[0].key == "cnn-b32-fp32-norms-vmap.eager-unslowed_a"
    assert "epochs" not in plan.settings
    assert (plan.quick, plan.force, plan.protocol.max_blocks) == (True, True, 6)
    # A batch of 63 is not in the file. `step.eager` is PyTorch's, so JAX has its own mode.
    found = plans(config, batch_sizes=(63,), execution_modes=("step.eager",))
    of_batch_63 = ["cnn-b63-fp32-step.jit-unslowed_a", "cnn-b63-fp32-step.eager-unslowed_a"]
    assert [plan.variants[0].key for plan in found] == of_batch_63


def test_every_round_has_all_conditions_in_an_order_of_its_own(config: Path) -> None:
    def in_order() -> list[list[tuple[int, str | None]]]:
        return [[(one.replicate, one.variant.planted) for one in plan.measurements()] for plan in plans(config)]

    assert in_order() == in_order()
    orders = set()
    for order in in_order():
        assert Counter(order) == Counter((number, name) for number in range(4) for name in CONDITIONS)
        assert [number for number, _ in order] == sorted(number for number, _ in order)
        names = [tuple(name for number, name in order if number == one) for one in range(4)]
        # Two rounds are each other's opposite: each of two processes is first as often.
        assert names[0] == names[1][::-1] and names[2] == names[3][::-1]
        orders |= {*names}
    assert len(orders) > 4


def test_in_turns_each_slowdown_has_a_base_of_its_own(config: Path) -> None:
    """No condition of one pairing is taken for one of the other."""
    (pair,) = calibration_pairs(load_config(config), MNIST, rounds=2, pairing="interleaved")
    names = [variant.planted for variant in pair.jobs[0].variants]
    assert names == list(CONDITIONS_IN_TURNS) and len({*CONDITIONS, *names}) == 4 + 6
    slowed = {variant.planted: variant.planted_slowdown for variant in pair.jobs[0].variants}
    for name, (base, other) in PAIRS_IN_TURNS.items():
        assert (slowed[base], slowed[other]) == (0.0, SLOWDOWNS.get(name, 0.0))
        assert (PARTNERS[base], PARTNERS[other]) == (other, base)
    assert {each.variant.planted for each in [*pair.jobs[0].measurements()][:6]} == set(names)
    several = pair.model_copy(update={"cell": pair.cell.model_copy(update={"devices": 2})})
    with pytest.raises(ConfigError, match="on several devices no processes take turns"):
        calibration_pair(several, rounds=2, quick=True, pairing="interleaved")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[BehavingProject]:
    project = make_behaving_project(tmp_path)
    yield project
    cancel(project.results)


def calibrated(project: BehavingProject, *, rounds: int) -> Pair:
    """Of PyTorch, with blocks of a few milliseconds."""
    pair = calibration_pair(project.pair(), rounds=rounds, quick=True)
    protocol = pair.jobs[1].protocol.model_copy(update=QUICK | {"replicates": rounds})
    return pair.model_copy(update={"jobs": (pair.jobs[1].model_copy(update={"protocol": protocol}),)})


def records(project: BehavingProject) -> list[Record]:
    return [read_record(path) for path in sorted(project.results.calibration.rglob("*.json"))]


def test_a_calibration_is_submitted_followed_and_resumed(
    project: BehavingProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The injected slowdowns are found to a tenth of a per cent, as the clock is simulated. Experiments.yaml has no
    words for the fake framework, so what is planned and where the scripts go is replaced."""
    monkeypatch.setattr(render, "write_scripts", partial(render.write_scripts, repository=project.root))
    where = ("--results", str(project.results.root))

    def calibrate(rounds: int) -> str:
        monkeypatch.setattr(module, "calibration_pairs", lambda *_, **_how: [calibrated(project, rounds=rounds)])
        assert main(["calibrate", "--quick", "--executor", "local", "--wait", *where]) == 0
        return capsys.readouterr().out

    assert "The table needs 4 complete rounds" in calibrate(1)
    assert calibrate(4).count("| A/A |") == 1  # those that are there are not measured again
    found = records(project)
    assert Counter(one.measurement.variant.planted for one in found) == dict.fromkeys(CONDITIONS, 4)
    assert {(one.outcome, one.parity) for one in found} == {("ok", None)}
    assert not list(project.results.root.rglob("*warm-start*"))
    assert not project.results.records().exists()  # no comparison meets them
    (calibration,), _ = read_calibrations([project.results.calibration])
    for one in calibration.complete:
        for name, fraction in SLOWDOWNS.items():
            values = [ratio.value for ratio in one[name]]
            assert values == pytest.approx([math.log(1 + fraction)] * len(values), abs=1e-3)
    assert calibrate(4).count("every measurement has a record") == 1
    assert main(["calibrate", "--table", *where]) == 0
    assert "Right is `same`" in capsys.readouterr().out


def test_its_script_works_by_hand(project: BehavingProject) -> None:
    pair = calibrated(project, rounds=1)
    scripts = project.scripts([pair])
    script = scripts["any/torch_mnist_1_calibration"]
    assert script == project.root / "slurm_scripts" / "torch_mnist_1_calibration.sh"
    assert read_plan(script.with_suffix(".json")).jobs == pair.jobs[:1]
    run = next(line for line in script.read_text().splitlines() if line.startswith("run=("))
    words = run.removeprefix("run=(").removesuffix(")").split()
    assert words[3:] == ["--plan", str(script.with_suffix(".json"))]
    by_hand = [sys.executable, *words[1:]]
    done = subprocess.run(by_hand, cwd=project.root, env=without_slurm(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(records(project)) == 4


def test_dry_run_shows_what_would_be_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "write_scripts", partial(render.write_scripts, repository=tmp_path))
    words = ["--quick", "--dry-run", "--executor", "slurm", "--results", str(tmp_path)]
    assert main(["calibrate", *words]) == 0
    shown = capsys.readouterr().out
    # Four rounds of A/A, 2 and 5 % by two frameworks: of four processes, and in turns of three pairs.
    assert re.search(r"^mnist train, calibration  any   1x1x1x1x1\+1  32 ", shown, re.MULTILINE)
    assert main(["calibrate", *words, "--set", "pairing=interleaved"]) == 0
    assert "  1x1x1x1x1+1  48 " in capsys.readouterr().out


def test_what_cannot_be_meant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    why = {"--rounds 3": "4 rounds at the least", "--table --rounds 20": "--rounds has no effect with --table, which m"}
    for words, complaint in why.items():
        with pytest.raises(SystemExit, match="2"):
            main(["calibrate", *words.split()])
        assert complaint in capsys.readouterr().err
    assert main(["calibrate", "--set", "epochs=2"]) == 2
    assert capsys.readouterr().err == "--set epochs: calibrate takes no setting but pairing\n"


def test_without_a_calibration_there_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "calibration" / "old.json"
    old.parent.mkdir()
    old.write_text(json.dumps({"schema_version": 1, "processes": []}))
    assert main(["calibrate", "--table", "--results", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert f"Warning: {old}: not a record of schema 2: schema_version: Input should be 2" in shown
    assert f"No calibration in {old.parent}. Measure first: python main.py calibrate" in shown
