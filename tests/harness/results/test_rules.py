"""The rules of every version: what older ones say by hand, what they said when records were published, and that today's
thresholds are those of their version."""

import math

import pytest

from harness.packs import record_paths
from harness.paths import REPOSITORY, Results
from harness.results.parity_gate import ParityGate
from harness.results.record import read_record
from harness.results.rules import NEWEST, RULES, THRESHOLDS, Older, older_estimate
from harness.work.registration import _digest, is_as_registered, thresholds_by_name
from pipeline.report.compare import sections


def of(version: int, *log_ratios: float, spread: float = 0.0, doubt: str | None = None) -> Older:
    return Older(version, log_ratios, spread, doubt)


@pytest.mark.parametrize("version", [1, 2])
def test_up_to_the_second_version_it_is_students_t_from_three_replicates_on(version: int) -> None:
    """log 2 and +-0.1: error 0.1 / sqrt(3) = 0.0577350, t[2] = 4.303; t = 12.006, and p = 1 - t / sqrt(2 + t**2)."""
    found = older_estimate(of(version, math.log(2) - 0.1, math.log(2), math.log(2) + 0.1))
    reach, t = 4.303 * 0.0577350, math.log(2) / 0.0577350
    assert found.value == pytest.approx(2)
    assert found.interval == pytest.approx((2 * math.exp(-reach), 2 * math.exp(reach)), rel=1e-6)
    assert found.freedom == 2
    assert (found.replicates, found.verdict, found.at_most) == (3, "JAX faster", 0)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t**2), rel=1e-5)
    two = older_estimate(of(version, 0.5, 0.501))
    assert (two.verdict, two.p, two.freedom) == ("undecided", None, 1)
    assert two.interval.low == pytest.approx(math.exp(0.5005 - 12.706 * 0.0005))
    one = older_estimate(of(version, 0.5))
    assert (one.value, one.interval, one.verdict) == (pytest.approx(math.exp(0.5)), None, "undecided")


@pytest.mark.parametrize(("log_ratio", "verdict"), [(0.004, "same"), (0.008, "JAX faster"), (-0.008, "PyTorch faster")])
def test_same_is_an_interval_within_one_percent(log_ratio: float, verdict: str) -> None:
    """A reach of 4.303 * 0.001 / sqrt(3) = 0.00248, and log 1.01 = 0.00995."""
    assert older_estimate(of(2, log_ratio - 0.001, log_ratio, log_ratio + 0.001)).verdict == verdict


def test_only_the_first_version_has_a_veto_by_unstable() -> None:
    ratios = (0.69, 0.7, 0.71)
    assert older_estimate(of(2, *ratios, spread=0.9)).verdict == "JAX faster"
    assert older_estimate(of(1, *ratios, spread=0.25)).verdict == "JAX faster"
    found = older_estimate(of(1, *ratios, spread=0.26))
    assert (found.verdict, found.doubt) == ("undecided", "unstable: block times of a process spread by 26%")
    for version in (1, 2):
        assert older_estimate(of(version, *ratios, spread=0.26, doubt="copied")).doubt == "copied"


def test_what_is_published_is_as_registered_and_keeps_its_verdicts() -> None:
    """As README.md had them when the first version was the newest."""
    results = Results(root=REPOSITORY / "tests" / "pipeline" / "report" / "golden" / "cpu-2-cores")
    records = [read_record(path) for path in record_paths(results.records())]
    assert len(records) == 36
    for one in records:
        assert one.registration.rules_version == 1
        assert is_as_registered(one.registration, one.measurement.cell.use_case_name)
    rows = [row for section in sections(records, ParityGate(results).judge) for row in section.rows]
    found = {}
    for row in rows:
        assert (row.comparison.rules_version, row.comparison.newest.p) == (1, None)  # three pairs: no look
        estimate = row.comparison.estimate
        low, high = estimate.interval
        numbers = f"{estimate.value:.2f} [{low:.2f}, {high:.2f}]"
        found[numbers] = estimate.verdict, (estimate.doubt or "").partition(":")[0]
    assert found == {
        "1.06 [1.04, 1.09]": ("undecided", "unstable"),
        "0.26 [0.20, 0.32]": ("undecided", "unstable"),
        "0.79 [0.74, 0.84]": ("PyTorch faster", ""),
        "1.21 [0.86, 1.71]": ("undecided", ""),
    }


def test_todays_thresholds_are_those_of_the_newest_version() -> None:
    assert list(RULES) == [1, 2, 3] and [*THRESHOLDS, NEWEST] == [1, 2, 3]
    assert _digest(thresholds_by_name()) == "d2e0b3a70924e91c", (
        "a changed threshold is a new version of the rules: freeze those of today in harness/results/rules.py"
    )
