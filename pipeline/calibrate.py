"""`main.py calibrate`: each framework against itself, alike and with known slowdowns planted in the step.

A calibration is a pair of plans like any other. Its variants are one variant under each of CONDITIONS, or of
CONDITIONS_IN_TURNS (harness/plan.py), and its replicates are the rounds.
"""

from dataclasses import replace

from harness.errors import ConfigError
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.paths import Results
from harness.plan import (
    CONDITIONS,
    CONDITIONS_IN_TURNS,
    JobPlan,
    MeasurementSettings,
    Pair,
    Pairing,
    Scalar,
    Variant,
)
from pipeline.measure import JobFlags, hand_over, runs_here_without_gpu
from pipeline.report.calibration import COMMAND, FEWEST_ROUNDS, describe, read_calibrations

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
"""Blocks as in real measurements, and fewer of them: a round is four processes, or six."""
QUICK_PROTOCOL = PROTOCOL.model_copy(
    update={"warmup_s": 0.2, "warmup_min_calls": 2, "min_blocks": 6, "max_blocks": 6, "latency_calls": 3}
)
EXPLANATION = """\
Right is `same` for A/A and `faster` for a slowdown; wrong in A/A is any `faster`.
Trials share rounds, so their shares are not independent: the number of rounds says how much this rests on."""


def calibrate(selection: Selection, flags: JobFlags, *, rounds: int | None, pairing: Pairing | None) -> int:
    """Submit it; with --wait, follow it and print the table. Returns the exit status.

    Args:
        pairing: the one that is calibrated. None takes that of experiments.yaml, and where that is `auto` the one that
            it means here.
    """
    config = load_config(flags.config, flags.profile)
    pairing = pairing or config.pairing
    if pairing == "auto":
        cells = [pair.cell for pair in expand(config, selection)]
        is_on_cpu = runs_here_without_gpu(flags.executor) or all(cell.is_for_cpu for cell in cells)
        pairing = "interleaved" if is_on_cpu and all(cell.devices == 1 for cell in cells) else "together"
    rounds = rounds or (FEWEST_ROUNDS if selection.quick else 20)
    pairs = calibration_pairs(config, selection, rounds=rounds, pairing=pairing)
    # The frameworks are not compared here, so their jobs take turns replicate by replicate at the most.
    flags = replace(flags, pairing="together")
    return hand_over(pairs, config, flags, print_table)


def calibration_pairs(
    config: Config, selection: Selection, *, rounds: int, pairing: Pairing = "together"
) -> list[Pair]:
    """Raises ConfigError where experiments.yaml has no such cell or variant, or processes cannot take turns there."""
    pairs = expand(config, replace(selection, quick=False))
    return [calibration_pair(pair, rounds=rounds, quick=selection.quick, pairing=pairing) for pair in pairs]


def calibration_pair(pair: Pair, *, rounds: int, quick: bool, pairing: Pairing = "together") -> Pair:
    """The calibration of both sides of a pair of the full matrix. Raises ConfigError as calibration_pairs."""
    if pair.cell.devices > 1 and pairing == "interleaved":
        raise ConfigError(
            f"{pair.cell.name}: on several devices no processes take turns, so only the pairing `together` can be "
            f"calibrated there: --set pairing=together"
        )
    cell = pair.cell.model_copy(update={"is_calibration": True})
    changes = {
        "cell": cell,
        "protocol": (QUICK_PROTOCOL if quick else PROTOCOL).model_copy(update={"replicates": rounds}),
        "quick": quick,
        "screening": None,
    }
    jobs = tuple(
        plan.model_copy(update=changes | {"variants": _variants(plan, pairing), "settings": _settings(plan)})
        for plan in pair.jobs
    )
    return Pair(cell=cell, jobs=jobs)


def _settings(plan: JobPlan) -> dict[str, Scalar]:
    return plan.settings | ({"epochs": 1} if "epochs" in plan.settings else {})


def _variants(plan: JobPlan, pairing: Pairing) -> tuple[Variant, ...]:
    """The first of the plan's variants under each condition."""
    if not plan.variants:
        raise ConfigError(f"{plan.name}: experiments.yaml excludes every variant of it; there is nothing to calibrate")
    conditions = CONDITIONS_IN_TURNS if pairing == "interleaved" else CONDITIONS
    return tuple(plan.variants[0].model_copy(update={"planted": name}) for name in conditions)


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
