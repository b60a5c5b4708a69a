"""From the records of calibrations to how often a verdict is right; in the table and the report."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

from harness.paths import Results
from harness.plan import CONDITIONS_IN_TURNS, PAIRS_IN_TURNS, SLOWDOWNS
from harness.results.record import Record
from harness.results.sequential import LogRatio, Verdict
from pipeline.report import command
from pipeline.report.calibration import (
    A_A,
    Round,
    calibrated_devices,
    calibrations_of,
    judge,
    most_pairs,
    read_calibrations,
    rows_of,
    spread,
    swapped,
    table,
    trust_sentences,
)
from tests.made.calibration_records import ENVIRONMENT, HERE, calibration, process, processes
from tests.made.report_records import CPU, record, save
from tests.pipeline.report.shown import reported


def one_round(a: float, b: float, number: int) -> Round:
    """Throughputs of both unslowed processes; the slowed ones are slower than 100. A base is started first in even
    rounds, and no two rounds have quite the same ratios."""

    def ratio(base: float, other: float) -> LogRatio:
        return LogRatio(number, math.log(base / other) + number / 1e9, number % 2 == 0)

    alike = ratio(a, b)
    slowed = {name: 100 / (1 + planted) for name, planted in SLOWDOWNS.items()}
    return {A_A: (alike, swapped(alike))} | {name: (ratio(a, one), ratio(b, one)) for name, one in slowed.items()}


def test_what_is_right() -> None:
    verdicts: tuple[Verdict, ...] = ("JAX faster", "PyTorch faster", "same", "undecided")
    assert [judge(0.0, verdict) for verdict in verdicts] == ["wrong", "wrong", "right", "undecided"]
    assert [judge(0.02, verdict) for verdict in verdicts] == ["right", "wrong", "wrong", "undecided"]


def test_shares_by_hand() -> None:
    """Four rounds whose first process is 2 % faster than the second, and is started first in the even two. In A/A the
    base of a trial's places is started first in turns, so a ratio is 1.02 where an even round stands on a place that
    wants the base first, or an odd one on another. Of the six sequences of two even and two odd rounds, the two that
    alternate have four equal ratios: wrong. The others have both, and decide nothing."""
    rounds = [one_round(102, 100, number) for number in range(4)]
    assert rows_of(rounds[:3]) == {}
    assert spread([*rounds, one_round(100, 102, 4)]) == pytest.approx(math.log(1.02))  # the root mean square
    assert [most_pairs(count) for count in (3, 4, 5, 6, 8, 11, 12, 30)] == [0, 4, 4, 6, 8, 8, 12, 12]
    rows = rows_of(rounds)
    shares = rows[A_A].shares
    assert shares["right"] == 0
    assert shares["wrong"] == pytest.approx(1 / 3, abs=0.06)  # four standard errors of 1000 trials
    assert shares["wrong"] + shares["undecided"] == pytest.approx(1)
    # Against +2 % a coin of each round chooses the base. Of four rounds two are of each order: where both orders have
    # one of each base, 4 of 16, the error is 0.0198 / sqrt(8), of which 4.303 are 0.0301, and the mean is 0.0297:
    # undecided. Where one has, it is 0.0198 / 4: 0.0213, and the mean 0.0248 or 0.0347: right, as where neither has.
    two = rows["slower_2_percent"]
    assert (two.shares["right"], two.shares["wrong"]) == (pytest.approx(3 / 4, abs=0.055), 0)
    text = table([two], 0.5)
    assert "| planted | right | wrong | undecided | median ratio | its error | pairs | minutes |" in text
    assert text.splitlines()[-1].startswith("| +2 % | ") and text.endswith(" % | 4.0 | 2.0 |")


# Which records are one calibration.


def test_only_complete_rounds_of_what_was_planted_count() -> None:
    (cut,) = calibrations_of(processes(4)[:-1])
    assert (cut.rounds, [one[A_A][0].jax_first for one in cut.complete]) == (3, [True, False, True])
    assert calibration(4).rounds == 4
    failed = process(4, "unslowed_a", outcome="failed", reason="out of luck", result=None)
    (other,) = calibrations_of([*processes(4), failed])
    assert (other.rounds, len(other.records)) == (4, 16)
    (few,) = calibrations_of([one for one in processes(4) if one.measurement.variant.planted != "slower_2_percent"])
    assert (few.rounds, [*few.rows]) == (4, [A_A, "slower_5_percent"])
    shuffled = processes(5)
    random.Random(1).shuffle(shuffled)  # the order of files changes nothing
    (one,) = calibrations_of(shuffled)
    assert one.complete == calibration(5).complete


def test_what_is_measured_again_replaces_the_older() -> None:
    again = process(1, "unslowed_b", throughput=900.0, ended_at="2026-11-22T10:00:00+00:00")
    (one,) = calibrations_of([again, *processes(3)])
    alike = [math.exp(each[A_A][0].value) for each in one.complete]
    assert alike == pytest.approx([1, 1010 / 900, 1])
    of_second = [math.exp(each["slower_2_percent"][1].value) for each in one.complete]
    assert of_second == pytest.approx([1.02, 1.02 * 900 / 1010, 1.02])


def test_other_devices_versions_and_lengths_are_other_calibrations() -> None:
    gpu = {"gpu": {"name": "NVIDIA H200", "uuid": "GPU-1"}, "framework": {"version": "2.15.0", "platform": "cuda"}}
    others: list[dict[str, Any]] = [{"node": "n2"}, {"packages": {"torch": "2.16.0"}}, gpu]
    found = calibrations_of(
        [*processes(3), *processes(1, quick=True)]
        + [one for other in others for one in processes(1, environment=ENVIRONMENT | other)]
    )
    assert sorted(one.rounds for one in found) == [1, 1, 1, 1, 3]
    assert {one.device for one in found} == {"CPU: A CPU", "NVIDIA H200"}


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
    ratios = {name: math.exp(pair[0].value) for name, pair in other.complete[3].items()}
    assert ratios == pytest.approx({A_A: 1.0} | {name: 1 + planted for name, planted in SLOWDOWNS.items()})
    for row in (*one.rows.values(), *other.rows.values()):
        assert row.ratio == pytest.approx(row.true_ratio)
        assert (row.shares["right"], row.pairs) == (1.0, 4)
    (lost,) = calibrations_of(pairs_in_turns(4, slower_2_percent_in_turns_1="alone"))
    assert lost.rounds == 3


def test_a_base_of_its_own_is_swapped_in_a_a_only() -> None:
    """The first unslowed process of each pair is 2 % faster. A/A is as by hand above; against +2 % the ratio never
    changes, which is right."""
    ratios = [LogRatio(number, math.log(1.02) + number / 1e9, number % 2 == 0) for number in range(4)]
    rounds = [{A_A: (one, swapped(one))} | {name: (one, one) for name in SLOWDOWNS} for one in ratios]
    rows = rows_of(rounds)
    assert rows[A_A].shares["wrong"] == pytest.approx(1 / 3, abs=0.06)
    assert rows["slower_2_percent"].shares["right"] == 1.0


def blind_records(rounds: int) -> list[Record]:
    """All that was planted is there, but the 2 %: that is as fast as without."""
    changes: dict[str, Any] = {"flags": {"throttled": "by heat"}, "day": "2026-11-22"}
    blind = [process(n, "slower_2_percent", throughput=1000 * (1 + n / 100), **changes) for n in range(rounds)]
    others = processes(rounds, day="2026-11-22")
    return [one for one in others if one.measurement.variant.planted != "slower_2_percent"] + blind


def test_a_file_that_is_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "a.json"
    link.symlink_to(link)
    _, (refused,) = read_calibrations([tmp_path])
    assert str(link) in refused


def test_how_far_verdicts_can_be_trusted_in_words() -> None:
    blind = calibrations_of(blind_records(4))
    assert trust_sentences(calibrated_devices(blind, [HERE])[HERE]) == [
        "Measured on this device, one after the other, 4 rounds from 2026-11-22, within 4 pairs: of two equal "
        "programs, a side was named in 0.0 % (PyTorch) of trials; a true difference of 2 % was found in 0.0 % "
        "(PyTorch); a true difference of 5 % was found in 100.0 % (PyTorch). Flags of PyTorch then: throttled in 4 of "
        "16 processes."
    ]
    for none in ([], [calibration(4, quick=True)], [calibration(3)]):
        assert trust_sentences(none)[0].startswith("Not calibrated on this device: `python main.py calibrate`")


def test_the_whole_report_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = Results(root=tmp_path / "published")
    monkeypatch.setattr(command, "PUBLISHED_CALIBRATIONS", published.calibration)
    results = Results(root=tmp_path / "results")
    here = CPU | {"cpu": {"model": "A CPU"}}
    sides = (("jax", "step.jit"), ("torch", "step.eager"))
    found = [record(*side, environment=environment) for environment in (here, CPU) for side in sides]
    for one in blind_records(4):
        save(one, published)
    for one in processes(4, data="real"):
        save(one, results)
    broken = results.calibration / "broken.json"
    broken.write_text("{")
    output, page = reported(results, *found)
    assert f"Warning: {broken}: not a record" in output and broken.name in page
    assert output.count("a true difference of 2 % was found in 0.0 % (PyTorch)") == 1
    assert output.count("Not calibrated on this device") == 1
    assert "batch 256" not in output  # no comparison takes what was planted
