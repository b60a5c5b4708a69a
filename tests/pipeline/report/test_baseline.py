"""Each framework against itself, in two results folders: a planted slowdown ends with 1. By hand-made throughputs with
known answers."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from harness.paths import Results
from harness.plan import Framework
from harness.results.record import Record
from harness.results.statistics import unpaired_interval
from main import main
from pipeline.report.baseline import baseline_table, changes_of
from tests.made.report_records import CPU, record, save

THEN = CPU | {"node": "n1", "packages": {"jax": "0.10.2", "torch": "2.14.1"}}
NOW = CPU | {"node": "n2", "packages": {"jax": "0.10.2", "torch": "2.15.0"}}
SIDES: list[tuple[Framework, str]] = [("jax", "step.jit"), ("torch", "step.eager")]
WOBBLE = (0.99, 1.0, 1.01, 1.0)
"""Of the replicates: 0.8 % of standard deviation."""


def made(environment: dict[str, Any], ended_at: str, factor: float = 1.0) -> list[Record]:
    """Four replicates of both; PyTorch's throughput is times the factor."""
    found = []
    for framework, mode in SIDES:
        speed = 1000 * (factor if framework == "torch" else 1)
        of_all: dict[str, Any] = {"environment": environment, "ended_at": ended_at}
        found += [record(framework, mode, speed * one, replicate=n, **of_all) for n, one in enumerate(WOBBLE)]
    return found


Report = Callable[..., tuple[int, str]]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    """The command, which returns its exit status and all that it wrote, without line breaks."""

    def command(results: Path, *flags: str) -> tuple[int, str]:
        try:
            code = main(["report", "--results", str(results), *flags])
        except SystemExit as refused:
            code = int(refused.code or 0)
        return code, " ".join("".join(capsys.readouterr()).split())

    return command


def fill(folder: Path, *records: Record) -> Path:
    for one in records:
        save(one, Results(root=folder))
    return folder


OCTOBER, NOVEMBER = "2026-10-31T23:59:59+00:00", "2026-11-01T00:00:00+00:00"


def test_a_planted_slowdown_of_5_percent_ends_with_1_and_none_without_it(tmp_path: Path, report: Report) -> None:
    then = str(fill(tmp_path / "then", *made(THEN, OCTOBER)))
    slow = fill(tmp_path / "slow", *made(NOW, NOVEMBER, 0.95))
    code, shown = report(slow, "--baseline", then, "--fail-above", "3%")
    assert code == 1, shown
    assert "Slower by more than 3 %: mnist, use case 1 (train), on CPU: Xeon: PyTorch cnn-b100-fp32-step.eager" in shown
    # s = 0.00816 of four logarithms on each side: 0.95 * exp(+-2.447 * 0.00816 * sqrt(2 / 4)).
    assert "0.950 (0.937 to 0.964), 2.14.1 -> 2.15.0; not the same: node, libraries." in shown
    assert shown.count("Slower by more than") == 1  # JAX is as fast as before
    with (slow / "report/baseline.csv").open(newline="") as file:
        jax, torch = csv.DictReader(file)
    assert (torch["release_then"], torch["release_now"], torch["verdict"]) == ("2.14.1", "2.15.0", "slower")
    assert float(torch["ratio_now_over_then"]) == pytest.approx(0.95)
    assert (float(jax["ratio_now_over_then"]), jax["verdict"]) == (pytest.approx(1), "undecided")
    assert report(slow, "--baseline", then, "--fail-above", "5")[0] == 0  # it is 5 %, and no more
    assert report(slow, "--baseline", then)[0] == 0  # nothing was to fail

    same = fill(tmp_path / "same", *made(NOW, NOVEMBER))
    code, shown = report(same, "--baseline", then, "--fail-above", "3%")
    assert (code, "Nothing is slower by more than 3 % with 95 % confidence." in shown) == (0, True), shown


def test_what_the_command_line_refuses(tmp_path: Path, report: Report) -> None:
    folder = fill(tmp_path / "a", *made(NOW, NOVEMBER))
    other = str(fill(tmp_path / "b"))
    Path(other).mkdir()
    for flags, words in (
        (["--baseline", "2026-13"], "--baseline 2026-13: is no folder; valid: the path of another results folder"),
        (["--fail-above", "3%"], "--fail-above: goes with --baseline"),
        (["--baseline", other, "--fail-above", "3x"], "3x: a slowdown below 100 %, such as 3%"),
        (["--baseline", other, "--update-readme"], "--publish and --update-readme cannot be combined with --baseline"),
        (["--results", other], "--results: a report is about one results folder; make a report of each folder"),
    ):
        code, shown = report(folder, *flags)
        assert (code, words in shown) == (2, True), shown
    code, shown = report(folder, "--baseline", other, "--fail-above", "3%")
    assert (code, "Nothing was measured both in the baseline and here" in shown) == (1, True)


def test_each_release_is_compared_with_the_newest_of_the_baseline() -> None:
    oldest = made(THEN | {"packages": {"jax": "0.10.0", "torch": "2.13.0"}}, "2026-09-01T00:00:00+00:00", 2.0)
    newest = made(NOW | {"packages": {"jax": "0.10.2", "torch": "2.16.0"}}, "2026-12-01T00:00:00+00:00", 1.1)
    again = made(THEN, "2026-10-01T00:00:00+00:00", 0.5)[4:]  # of the same release: the newer records count
    then, now = [*again, *made(THEN, OCTOBER), *oldest], [*made(NOW, NOVEMBER), *newest]
    changes, missing = changes_of(then, now)
    found = {one.releases: round(one.ratio, 4) for one in changes if one.framework == "torch"}
    assert found == {("2.14.1", "2.15.0"): 1.0, ("2.14.1", "2.16.0"): 1.1}
    assert missing == []
    assert [one.releases for one in changes if one.framework == "jax"] == [("0.10.2", "0.10.2")]


def test_what_was_not_measured_again_is_named_and_one_process_has_no_interval() -> None:
    changes, missing = changes_of(made(THEN, OCTOBER), made(NOW, NOVEMBER, 0.5)[4:5])
    assert missing == ["mnist, use case 1 (train), on CPU: Xeon: JAX cnn-b100-fp32-step.jit"]
    (torch,) = changes
    assert (torch.interval, torch.verdict, torch.is_slower_by(0.03)) == (None, "no interval", False)
    assert baseline_table(changes, missing, None).notes == [
        f"In the baseline, and not measured since: {missing[0]}.",
        "Without interval and verdict, as a side has one process: 1 of 1.",
        "Not the same then and now: node (1 of 1), libraries (1 of 1).",
    ]


def test_the_interval_is_welch_s() -> None:
    now, then = [95.0, 97.0, 96.0, 99.0, 94.0], [100.0, 104.0, 99.0]
    test = stats.ttest_ind([*map(math.log, now)], [*map(math.log, then)], equal_var=False)
    freedom = math.floor(test.df)  # rounded down, as the project's other intervals: a little wider
    centre = math.fsum(map(math.log, now)) / 5 - math.fsum(map(math.log, then)) / 3
    reach = centre / test.statistic * stats.t.ppf(0.975, freedom)
    expected = math.exp(centre - reach), math.exp(centre + reach)
    assert unpaired_interval(now, then) == pytest.approx(sorted(expected), rel=1e-3)
    assert unpaired_interval([2.0, 2.0], [1.0, 1.0]) == pytest.approx((2, 2))
    assert unpaired_interval([2.0], [1.0, 1.1]) is None
