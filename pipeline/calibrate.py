"""`main.py calibrate`: each framework against itself, alike and with known slowdowns planted in the step.

A calibration is a pair of plans like any other. Its variants are one variant under each of CONDITIONS, or of
CONDITIONS_IN_TURNS, or of both (harness/plan.py), and its replicates are the rounds.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from harness.errors import ConfigError
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.paths import Results
from harness.plan import (
    CONDITIONS,
    CONDITIONS_IN_TURNS,
    PAIRS_IN_TURNS,
    SLOWDOWNS,
    JobPlan,
    MeasurementSettings,
    Pair,
    Pairing,
    Scalar,
    Variant,
)
from pipeline.measure import JobFlags, hand_over, runs_here_without_gpu
from pipeline.report.calibration import FEWEST_ROUNDS, read_calibrations
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


Kind = Pairing | Literal["both"]
"""Of which pairing it is."""
CONDITIONS_OF: Mapping[Kind, tuple[str, ...]] = {
    "together": tuple(CONDITIONS),
    "interleaved": tuple(CONDITIONS_IN_TURNS),
    "both": (*CONDITIONS, *CONDITIONS_IN_TURNS),
}


def calibrate(
    selection: Selection,
    flags: JobFlags,
    *,
    rounds: int | None,
    kind: Kind | None,
    percents: Sequence[int] | None = None,
) -> int:
    """Submit it; with --wait, follow it and print the table. Returns the exit status.

    Args:
        kind: None takes the pairing of experiments.yaml, and where that is `auto` the one that it means here.
        percents: the slowdowns that are planted; None for all.
    """
    config = load_config(flags.config, flags.profile)
    kind = kind or config.pairing
    if kind == "auto":
        cells = [pair.cell for pair in expand(config, selection)]
        is_on_cpu = runs_here_without_gpu(flags.executor) or all(cell.is_for_cpu for cell in cells)
        kind = "interleaved" if is_on_cpu and all(cell.devices == 1 for cell in cells) else "together"
    pairs = calibration_pairs(config, selection, rounds=rounds or (FEWEST_ROUNDS if selection.quick else 20), kind=kind)
    pairs = [_with_slowdowns(pair, percents) for pair in pairs] if percents else pairs
    # The frameworks are not compared here, so their jobs take turns replicate by replicate at the most.
    flags = replace(flags, pairing="together")
    return hand_over(pairs, config, flags, print_table)


def calibration_pairs(config: Config, selection: Selection, *, rounds: int, kind: Kind = "together") -> list[Pair]:
    """Raises ConfigError where experiments.yaml has no such cell or variant, or processes cannot take turns there."""
    pairs = expand(config, replace(selection, quick=False))
    return [calibration_pair(pair, rounds=rounds, quick=selection.quick, kind=kind) for pair in pairs]


def calibration_pair(pair: Pair, *, rounds: int, quick: bool, kind: Kind = "together") -> Pair:
    """The calibration of both sides of a pair of the full matrix. Raises ConfigError as calibration_pairs."""
    if pair.cell.devices > 1 and set(CONDITIONS_OF[kind]) & CONDITIONS_IN_TURNS.keys():
        raise ConfigError(
            f"{pair.cell.name}: on several devices no processes take turns, so only the pairing `together` can be "
            f"calibrated there: --pairing together"
        )
    cell = pair.cell.model_copy(update={"is_calibration": True})
    changes = {
        "cell": cell,
        "protocol": (QUICK_PROTOCOL if quick else PROTOCOL).model_copy(update={"replicates": rounds}),
        "quick": quick,
        "screening": None,
    }
    jobs = tuple(
        plan.model_copy(update=changes | {"variants": _variants(plan, kind), "settings": _settings(plan)})
        for plan in pair.jobs
    )
    return Pair(cell=cell, jobs=jobs)


def _with_slowdowns(pair: Pair, percents: Collection[int]) -> Pair:
    left_out = [name for name, fraction in SLOWDOWNS.items() if round(100 * fraction) not in percents]
    conditions = {*left_out, *(one for name in left_out for one in PAIRS_IN_TURNS[name])}
    return pair.model_copy(
        update={
            "jobs": tuple(
                plan.model_copy(
                    update={"variants": tuple(one for one in plan.variants if one.planted not in conditions)}
                )
                for plan in pair.jobs
            )
        }
    )


def _settings(plan: JobPlan) -> dict[str, Scalar]:
    return plan.settings | ({"epochs": 1} if "epochs" in plan.settings else {})


def _variants(plan: JobPlan, kind: Kind) -> tuple[Variant, ...]:
    """The first of the plan's variants under each condition."""
    if not plan.variants:
        raise ConfigError(f"{plan.name}: experiments.yaml excludes every variant of it; there is nothing to calibrate")
    return tuple(plan.variants[0].model_copy(update={"planted": name}) for name in CONDITIONS_OF[kind])


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
