"""From records to log ratios, flags and an estimate, worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats

from harness.plan import FRAMEWORKS, MeasurementSettings
from harness.results.ratios import (
    NOT_FAIR,
    RecordPair,
    Replicate,
    chi_square_quantile,
    estimate_of,
    flags_of,
    log_ratios_of_quads,
    replicate_of,
)
from harness.results.record import Blocks, InTurns
from harness.results.sequential import LogRatio
from tests.made.records import blocks
from tests.made.report_records import CPU, record, with_result


def blocks_of(times_s: Sequence[float], samples: int = 1) -> Blocks:
    return blocks(list(times_s), calls=samples, samples=1)


def pair_of(
    number: int,
    jax: Sequence[float],
    torch: Sequence[float],
    *,
    jax_first: bool = True,
    turns: tuple[str | None, str | None] = (None, None),
    most: int = 12,
    **changes: Any,
) -> RecordPair:
    """By logarithms of samples per second, a block each. `turns`: their name on each side."""
    made = []
    for framework, rates, name, is_first in zip(
        FRAMEWORKS, (jax, torch), turns, (jax_first, not jax_first), strict=True
    ):
        started_at = f"2026-11-21T10:00:{'00' if is_first else '30'}+00:00"
        environment = CPU | {"pairing": {"turns": name}}
        one = record(framework, "step", replicate=number, environment=environment, started_at=started_at, **changes)
        in_turns = InTurns(is_first=is_first, waited_s=1.0, busy_s=0.0) if name else None
        measurement = one.measurement.model_copy(update={"protocol": MeasurementSettings(replicates=most)})
        one = with_result(one, blocks=blocks_of([math.exp(-rate) for rate in rates]), in_turns=in_turns)
        made.append(one.model_copy(update={"measurement": measurement}))
    return made[0], made[1]


def pairs_of(*values: float, **changes: Any) -> list[RecordPair]:
    """One block a side; who starts alternates. Block times differ from replicate to replicate."""
    return [pair_of(n, [value + n / 1e4], [n / 1e4], jax_first=n % 2 == 0, **changes) for n, value in enumerate(values)]


# One replicate.


def test_ratio_of_neighbouring_blocks_by_hand() -> None:
    """Two quads: log 2 and half of log 40. Blocks of A have 3 samples, those of B 6; the fifth of A is alone."""
    a = blocks_of([0.3, 0.3, 0.6, 0.3, 9.0], samples=3)  # 10, 10, 5 and 10 samples/s
    b = blocks_of([1.2, 1.2, 6.0, 4.8], samples=6)  # 5, 5, 1 and 1.25: the quads are 10 * 10 / (5 * 5), 50 / 1.25
    assert log_ratios_of_quads(a, b) == pytest.approx([math.log(4) / 2, math.log(40) / 2])
    assert log_ratios_of_quads(b, a) == pytest.approx([-math.log(4) / 2, -math.log(40) / 2])
    assert log_ratios_of_quads(blocks_of([1.0]), b) == []
    # A is 2 % faster, on a machine that gets slower by 0.2 % with each block of the order A B B A.
    a, b = (
        [s * math.exp(0.002 * (4 * k + n)) for k in range(9) for n in at] for s, at in ((1, (0, 3)), (1.02, (1, 2)))
    )
    assert log_ratios_of_quads(blocks_of(a), blocks_of(b)) == pytest.approx([math.log(1.02)] * 9, abs=1e-12)


def test_replicate_in_turns_by_hand() -> None:
    """Quads of 0.00, 0.02 and 0.06: quartiles 0.01 and 0.04, so an error of 1.2533 * 0.03 / 1.349 / sqrt(3)."""
    found = replicate_of(*pair_of(7, [0.0, 0.0, 0.04, 0.0, 0.06, 0.06], [0.0] * 6, turns=("t", "t")))
    assert found.log_ratio == (7, pytest.approx(0.02), True)
    assert (found.in_turns, found.drift) == (True, None)
    assert found.error == pytest.approx(0.0160917, rel=1e-4)
    drifting = [*[0.0] * 8, *[0.05] * 2, *[0.03] * 2]  # six quads: the first two 0, the last two 0.05 and 0.03
    assert replicate_of(*pair_of(0, drifting, [0.0] * 12, turns=("t", "t"))).drift == pytest.approx(0.04)
    assert replicate_of(*pair_of(0, [0.0] * 4, [0.0] * 4, turns=("t", "t"))).error is None  # two quads


def test_replicate_of_processes_after_each_other_by_hand() -> None:
    """Tenths of two blocks: of JAX +-0.01, an error of sqrt(10 * 0.01**2 / 9 / 10) = 0.0033333; of PyTorch +-0.02."""
    ours, theirs = ([sign * size for sign in (1, 1, -1, -1)] * 5 for size in (0.01, 0.02))
    found = replicate_of(*pair_of(0, ours, [0.0] * 20))
    assert (found.in_turns, found.error) == (False, pytest.approx(0.0033333, rel=1e-4))
    assert replicate_of(*pair_of(0, ours, theirs)).error == pytest.approx(math.hypot(1, 2) / 300)
    assert replicate_of(*pair_of(0, ours, theirs[:9])).error is None  # no tenths of nine
    rising = [0.0] * 7 + [0.03] * 7 + [0.05] * 6
    assert replicate_of(*pair_of(0, rising, rising[::-1])).drift == pytest.approx(0.1)
    assert replicate_of(*pair_of(0, rising, [0.0] * 5)).drift is None
    # Medians of the rates: 3 over 2.
    found = replicate_of(*pair_of(0, [math.log(3)] * 2, [math.log(2)], jax_first=False))
    assert found.log_ratio == (0, pytest.approx(math.log(1.5)), False)


def test_in_turns_with_one_block_the_ratio_is_that_of_throughputs() -> None:
    """Who is first is what the turns say: both are started at once, and a record's time is that of what came before."""
    jax, torch = pair_of(0, [0.5], [0.2], jax_first=False, turns=("t", "t"))
    expected = Replicate(LogRatio(0, pytest.approx(0.3), False), False, None, None)
    assert replicate_of(jax, torch) == expected
    early = jax.model_copy(update={"started_at": "2026-11-21T09:59:59+00:00"})
    assert replicate_of(early, torch) == expected
    assert replicate_of(early, torch.model_copy(update={"environment": {}})).log_ratio.jax_first
    with pytest.raises(ValueError, match="blocks on both sides"):
        replicate_of(jax, torch.model_copy(update={"result": None}))


# Flags of a ratio.

FOUR = (0.08, 0.04, 0.12, 0.06)
"""Squares of 0.001 within the two orders: a spread of sqrt(0.001 / 2) = 2.2 %."""


def replicates(
    *values: float, error: float | None = 0.03, drift: float | None = None, in_turns: bool = False, orders: int = 2
) -> list[Replicate]:
    return [Replicate(LogRatio(n, value, n % orders == 0), in_turns, error, drift) for n, value in enumerate(values)]


def test_a_pair_that_knows_little_is_imprecise() -> None:
    assert flags_of(replicates(0.1, error=0.02)) == flags_of(replicates(0.1, error=None)) == {}
    for in_turns, help_ in ((True, "longer windows (max_time_s)"), (False, "turns (pairing: interleaved)")):
        found = flags_of(replicates(0.1, error=0.025, in_turns=in_turns))
        assert found == {"imprecise": f"a pair knows its ratio to 2.5%; {help_} would help"}


@pytest.mark.parametrize(
    ("values", "error", "orders", "differ"),
    [
        # The 0.99 quantile of chi square with 2 degrees is 9.2103: 0.001 is above 9.2103 * error**2 up to 0.010420.
        (FOUR, 0.0103, 2, True),
        (FOUR, 0.0105, 2, False),
        # One order, 3 degrees: squares of 0.0035 about the mean 0.075, 11.345 * error**2 up to 0.017564.
        (FOUR, 0.0174, 1, True),
        (FOUR, 0.0177, 1, False),
        (FOUR[:3], 0.001, 2, False),  # before the first look
        (FOUR, None, 2, False),
    ],
)
def test_replicates_that_differ_by_more_than_what_is_inside_them(
    values: tuple[float, ...], error: float | None, orders: int, differ: bool
) -> None:
    found = flags_of(replicates(*values, error=error, orders=orders))
    assert list(found) == ["processes_differ"] * differ
    if differ and orders == 2:
        assert found["processes_differ"].startswith("replicates differ by 2.2%, and each knows its ratio to 1.0%; more")


def test_a_ratio_that_changes_while_it_is_measured() -> None:
    """By more than 2 %, and by more than 3 * sqrt(6) of its error: of 0.003, 0.02205."""
    steady = {0.001: (-0.019, 0.019), 0.003: (0.0219,), None: (0.5,)}
    for error, drifts in steady.items():
        assert not [one for one in drifts if flags_of(replicates(0.1, error=error, drift=one))]
    assert list(flags_of(replicates(0.1, error=0.001, drift=0.021))) == ["drift"]
    assert list(flags_of(replicates(0.1, error=0.003, drift=-0.0222))) == ["drift"]
    three = replicates(0, 0, 0, error=0.0)
    found = [one._replace(drift=drift) for one, drift in zip(three, (0.03, -0.1, 0), strict=True)]
    assert flags_of(found)["drift"] == (
        "in 2 of 3 replicates the ratio changed while it was measured, by -9.5% in r1: it depends on when"
    )


def test_quantile_of_chi_square() -> None:
    for freedom in (*range(2, 31), 100):
        for share in (0.95, 0.99):
            assert chi_square_quantile(share, freedom) == pytest.approx(stats.chi2.ppf(share, freedom), rel=0.01)


# The estimate of a pair of modes.


def test_estimate_of_four_pairs_by_hand() -> None:
    """As in test_sequential.py: 0.075 with an error of 0.01118034, and 7.649 of these."""
    found = estimate_of(pairs_of(*FOUR))
    assert (found.left_out, found.flags) == (None, {})
    assert found.ratio.interval.high == pytest.approx(math.exp(0.075 + 7.649 * 0.01118034))
    assert (found.ratio.verdict, found.ratio.at_most) == ("undecided", 12)


def test_replicates_that_lost_their_turns_are_left_out() -> None:
    """0.3 as throughputs say; the four in turns are those above, each of one quad."""
    four = [pair_of(n, [v, v], [n / 1e4] * 2, jax_first=n % 2 == 0, turns=(f"t{n}",) * 2) for n, v in enumerate(FOUR)]
    found = estimate_of([*four, pair_of(4, [0.3] * 2, [0.0] * 2)])
    assert found.left_out == "1 of 5 replicates, which lost their turns"
    assert (found.ratio.replicates, found.flags) == (4, {})
    assert estimate_of([pair_of(4, [0.3] * 2, [0.0] * 2)]).left_out is None


def test_modes_that_took_turns_with_others_are_not_paired() -> None:
    for n, turns in enumerate([("t1", "t2"), ("t1", None)]):
        found = estimate_of([pair_of(n, [0.3] * 2, [0.0] * 2, turns=turns)])
        assert found.flags == {"not_paired": "its two modes took turns with other modes, and not with each other"}


def test_more_replicates_asked_for_after_a_look_have_a_confidence_sequence() -> None:
    four, twelve = pairs_of(*FOUR, most=4), pairs_of(*FOUR, 0.07, 0.05, most=12)
    found = estimate_of([*four, *twelve[4:]]).ratio
    assert (found.is_extended, found.at_most, found.replicates) == (True, 12, 6)
    few = pairs_of(*FOUR[:2], most=2)  # there was no look
    assert not estimate_of([*few, *twelve[2:]]).ratio.is_extended


def test_a_number_that_means_nothing_has_a_doubt() -> None:
    assert estimate_of(pairs_of(*FOUR, precision="default")).ratio.doubt == NOT_FAIR
    copied = pairs_of(*FOUR)
    copied[3] = copied[3][0], copied[2][1]
    assert estimate_of(copied).ratio.doubt == "identical replicates of PyTorch: copied records?"
