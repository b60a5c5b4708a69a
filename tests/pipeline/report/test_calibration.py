"""From the records of calibrations to how often a verdict is right."""

import math
import random
from collections import Counter

import pytest

from harness.plan import CONDITIONS_IN_TURNS, PAIRS_IN_TURNS, SLOWDOWNS
from harness.results.record import Record
from harness.results.statistics import Verdict
from pipeline.report.calibration import Trust, calibrations_of, judge, rows_of, spread, trials
from pipeline.report.calibrations import describe, table
from tests.made.calibration_records import ENVIRONMENT, calibration, process, processes


def one_round(a: float, b: float) -> dict[str, float]:
    slowed = {name: 100 / (1 + planted) for name, planted in SLOWDOWNS.items()}
    return {"unslowed_a": a, "unslowed_b": b} | slowed


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
        (count, name) for count in (3, 5) for name in ("A/A", *SLOWDOWNS)
    ]
    for row in rows:
        assert row.ratio == pytest.approx(row.true_ratio)
        if row.condition != "slower_1_percent":  # 1.01 is the edge of `same`: rounding decides
            assert row.shares == {"right": 1.0, "wrong": 0.0, "undecided": 0.0}


def test_shares_by_hand() -> None:
    """Three rounds whose first is 2 % faster than the second. Which is the base is a coin each: with three equal coins
    of eight, all three ratios are 1.02 or all 1 / 1.02, which is wrong; else one differs, which is undecided."""
    a_a, _, two, *_ = rows_of([one_round(102, 100)] * 3)
    assert a_a.shares["right"] == 0
    assert a_a.shares["wrong"] == pytest.approx(0.25, abs=0.055)  # four standard errors of 1000 trials
    assert a_a.shares["wrong"] + a_a.shares["undecided"] == pytest.approx(1)
    # Against +2 %: with the second always, log 1.02 three times: right. With the first always, log 1.04: right. Else a
    # spread of 0.0114 around a mean under 0.04, with t[2] * 0.0114 / sqrt(3) = 0.0284: means 0.0264 (undecided),
    # 0.0330 (right).
    assert two.shares["right"] == pytest.approx(5 / 8, abs=0.062)
    assert two.shares["wrong"] == 0
    assert "| 3 | A/A | 0.0 % | " in table([a_a, two])
    assert "| 3 | +2 % | " in table([a_a, two])
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


# Which records are one calibration.


def test_only_complete_rounds_count() -> None:
    (cut,) = calibrations_of(processes(4)[:-1])
    assert [one["unslowed_a"] for one in cut.complete] == pytest.approx([1000, 1010, 1020])
    assert calibration(4).rounds == 4
    failed = process(4, "unslowed_a", outcome="failed", reason="out of luck", result=None)
    (other,) = calibrations_of([*processes(4), failed])
    assert (other.rounds, len(other.records)) == (4, 24)


def test_the_order_of_files_changes_nothing() -> None:
    shuffled = processes(5)
    random.Random(1).shuffle(shuffled)
    (one,) = calibrations_of(shuffled)
    assert one.complete == calibration(5).complete


def test_what_is_measured_again_replaces_the_older() -> None:
    again = process(1, "unslowed_b", throughput=900.0, ended_at="2026-11-22T10:00:00+00:00")
    (one,) = calibrations_of([again, *processes(3)])
    assert [each["unslowed_b"] for each in one.complete] == pytest.approx([1000, 900, 1020])


def test_other_devices_versions_and_lengths_are_other_calibrations() -> None:
    gpu = {"gpu": {"name": "NVIDIA H200", "uuid": "GPU-1"}, "framework": {"version": "2.15.0", "platform": "cuda"}}
    others = (
        processes(1, environment=ENVIRONMENT | {"node": "n2"}),
        processes(1, environment=ENVIRONMENT | {"packages": {"torch": "2.16.0"}}),
        processes(1, environment=ENVIRONMENT | gpu),
        processes(1, quick=True),
    )
    found = calibrations_of([*processes(3), *(record for other in others for record in other)])
    assert sorted(one.rounds for one in found) == [1, 1, 1, 1, 3]
    assert {one.device for one in found} == {"CPU: A CPU", "NVIDIA H200"}


def test_false_verdicts_are_those_between_two_that_are_alike() -> None:
    slower = [process(number, "unslowed_b", throughput=900.0) for number in range(3)]
    rest = [one for one in processes(3) if one.measurement.variant.planted != "unslowed_b"]
    (one,) = calibrations_of([*rest, *slower])
    (trust,) = one.trust
    # Which of the two is the base is chance: in a quarter of the trials it is the same one in all three rounds.
    assert trust.false_in_aa == pytest.approx(0.25, abs=0.05)
    assert calibration(3).trust == (Trust(replicates=3, false_in_aa=0.0, found=1.0),)
    assert calibration(2).trust == ()


# Processes that took turns, two by two


def pairs_in_turns(rounds: int, **lost: str) -> list[Record]:
    """Every slowdown exactly as large as it is called; in later rounds the machine is slower, for both of a pair.
    `lost`: the turns of one process of a round's pair, by its condition."""
    found = []
    for number in range(rounds):
        for name, pair in PAIRS_IN_TURNS.items():
            for condition in pair:
                turns = lost.get(f"{condition}_{number}", f"{name} {number}")
                environment = ENVIRONMENT | {"pairing": {"kind": "interleaved", "turns": turns}}
                throughput = 1000 / (1 + number) / (1 + CONDITIONS_IN_TURNS[condition])
                found.append(process(number, condition, environment=environment, throughput=throughput))
    return found


def test_pairs_in_turns_are_a_calibration_of_their_own() -> None:
    one, other = calibrations_of([*processes(5), *pairs_in_turns(5)])
    assert [one.is_interleaved, other.is_interleaved] == [False, True]
    assert [one.rounds, other.rounds] == [5, 5]
    assert other.complete[3] == pytest.approx({"A/A": 1.0} | {name: 1 + planted for name, planted in SLOWDOWNS.items()})
    assert other.spread == pytest.approx(0.0, abs=1e-12)
    for row in rows_of(other.complete):
        assert row.ratio == pytest.approx(row.true_ratio)
        if row.condition != "slower_1_percent":
            assert row.shares["right"] == 1.0
    assert "(cnn-b256-fp32-step.eager, sample data), interleaved, on 2 CPUs" in describe([other])
    assert "interleaved" not in describe([one])


def test_a_round_with_a_pair_that_did_not_take_its_turns_to_the_end_is_not_complete() -> None:
    (one,) = calibrations_of(pairs_in_turns(4, slower_2_percent_in_turns_1="alone"))
    assert one.rounds == 3


def test_a_base_of_its_own_is_swapped_in_a_a_only() -> None:
    """The first unslowed process of each pair is 2 % faster. With it as the base or with the other one, by chance: of
    eight cases two have three equal ratios, which is wrong. Against +2 % the ratio never changes, which is right."""
    rounds = [{"A/A": 1.02} | {name: 1.02 for name in SLOWDOWNS}] * 3
    a_a, _, two, *_ = rows_of(rounds)
    assert a_a.shares["wrong"] == pytest.approx(0.25, abs=0.055)
    assert two.shares["right"] == 1.0
    assert spread(rounds) == pytest.approx(math.log(1.02))
