"""`main.py calibrate`: each framework against itself, alike and with known slowdowns planted in the step.

A calibration is a pair of plans like any other. Its variants are one variant under each of CONDITIONS
(harness/plan.py), and its replicates are the rounds.
"""

from dataclasses import replace

from harness.errors import ConfigError
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.paths import Results
from harness.plan import CONDITIONS, JobPlan, MeasurementSettings, Pair, Scalar, Variant
from pipeline.measure import JobFlags, hand_over
from pipeline.report.calibration import read_calibrations
from pipeline.report.calibrations import COMMAND, describe

PROTOCOL = MeasurementSettings(
    warmup_s=1.0,
    max_blocks=60,
    max_time_s=10.0,
    latency_calls=10,
    latency_max_time_s=2.0,
    energy_window_s=1.0,
    idle_s=0.0,
    timeout_s=900.0,
)
"""Blocks as in real measurements, and fewer of them: a round is six processes."""
QUICK_PROTOCOL = PROTOCOL.model_copy(
    update={"warmup_s": 0.2, "warmup_min_calls": 2, "min_blocks": 6, "max_blocks": 6, "latency_calls": 3}
)
EXPLANATION = """\
Right is `same` for A/A and `faster` for a slowdown; wrong in A/A is any `faster`. 1 % is the very edge of `same`.
Trials share rounds, so their shares are not independent: the number of rounds says how much this rests on."""


def calibrate(selection: Selection, flags: JobFlags, *, rounds: int | None) -> int:
    """Submit it; with --wait, follow it and print the table. Returns the exit status."""
    config = load_config(flags.config)
    pairs = calibration_pairs(config, selection, rounds=rounds or (3 if selection.quick else 12))
    return hand_over(pairs, config, flags, print_table)


def calibration_pairs(config: Config, selection: Selection, *, rounds: int) -> list[Pair]:
    """Raises ConfigError where experiments.yaml has no such cell or variant."""
    pairs = expand(config, replace(selection, quick=False))
    return [calibration_pair(pair, rounds=rounds, quick=selection.quick) for pair in pairs]


def calibration_pair(pair: Pair, *, rounds: int, quick: bool) -> Pair:
    """The calibration of both sides of a pair of the full matrix. Raises ConfigError where it has no variant."""
    cell = pair.cell.model_copy(update={"is_calibration": True})
    changes = {
        "cell": cell,
        "protocol": (QUICK_PROTOCOL if quick else PROTOCOL).model_copy(update={"replicates": rounds}),
        "quick": quick,
        "screening": None,
    }
    jobs = tuple(
        plan.model_copy(update=changes | {"variants": _conditions(plan), "settings": _settings(plan)})
        for plan in pair.jobs
    )
    return Pair(cell=cell, jobs=jobs)


def _settings(plan: JobPlan) -> dict[str, Scalar]:
    return plan.settings | ({"epochs": 1} if "epochs" in plan.settings else {})


def _conditions(plan: JobPlan) -> tuple[Variant, ...]:
    """The first of the plan's variants under each condition."""
    if not plan.variants:
        raise ConfigError(f"{plan.name}: experiments.yaml excludes every variant of it; there is nothing to calibrate")
    return tuple(plan.variants[0].model_copy(update={"planted": name}) for name in CONDITIONS)


def print_table(results: Results) -> int:
    """What the results folder's calibrations say. 1 if there is none, else 0."""
    found, refused = read_calibrations([results.calibration])
    for sentence in refused:
        print(f"Warning: {sentence}")
    if not found:
        print(f"No calibration in {results.calibration}. Measure first: {COMMAND}")
        return 1
    print(f"{describe(found)}\n\n{EXPLANATION}")
    return 0
