"""Cards of a fleet beside each other: variances worked out by hand, and which records meet in one."""

import math
from typing import Any

import pytest
from scipy import stats

from harness.paths import Results
from harness.plan import Framework
from harness.results.parity import Judgement
from harness.results.record import Record
from pipeline.report.compare import Judge, sections
from pipeline.report.fleet import Finding, card_of, card_spread, findings, fleet_table, print_fleet
from tests.made.report_records import CPU, H200, passed, plain, record, save, text


def with_logs(**of_cards: list[float]) -> dict[str, list[float]]:
    return {card: [math.exp(value) for value in logs] for card, logs in of_cards.items()}


def test_variances_within_cards_and_between_them_by_hand() -> None:
    """Three cards of three replicates: MSW = 6 * 0.03**2 / 6; MSB = 3 * 2 * 0.02**2 / 2 = 0.0012; between**2 =
    (0.0012 - 0.0009) / 3 = 0.01**2.

    Cards of two and of four: MSW = (2 + 4) * 0.04**2 / 4 = 0.0024; with the cards' means d = sqrt(0.005) apart, MSB =
    4 / 3 * d**2; n_0 = 6 - (4 + 16) / 6 = 8 / 3; between**2 = (0.02 / 3 - 0.0024) * 3 / 8 = 0.04**2."""
    found = card_spread(with_logs(a=[-0.05, -0.02, 0.01], b=[-0.03, 0.0, 0.03], c=[-0.01, 0.02, 0.05]))
    assert (found.within, found.between) == (pytest.approx(0.03), pytest.approx(0.01))
    assert found.slowest == "a" and found.difference("a") == pytest.approx(math.exp(-0.02) - 1)
    assert found.replicates == 9
    apart = math.sqrt(0.005)
    found = card_spread(with_logs(a=[-0.04, 0.04], b=[apart - 0.04, apart + 0.04] * 2))
    assert (found.within, found.between) == (pytest.approx(math.sqrt(0.0024)), pytest.approx(0.04))


def test_cards_that_differ_by_less_than_replicates_do_and_what_cannot_be_told_apart() -> None:
    assert card_spread({"a": [90.0, 110.0], "b": [110.0, 90.0]}).between == 0.0
    once = card_spread({"a": [100.0], "b": [110.0], "c": [94.0]})
    assert (once.between, once.within, once.slowest, once.apart) == (None, None, "c", frozenset())
    assert once.difference("c") == pytest.approx(-0.06)
    assert card_spread({"a": [100.0, 101.0]}).between is None


def test_a_card_is_apart_where_it_is_farther_from_the_median_than_replicates_are_from_each_other() -> None:
    """Cards of two replicates at the logarithms m - d and m + d: within**2 = 2 * d**2, and t = |m - median| over
    within * sqrt(1 / 2 + 1 / 2). Of four cards with d = 0.01 there are 4 degrees of freedom, and Holm's first p is at
    most 5 % / 4: scipy says from which t on."""
    least = float(stats.t.isf(0.05 / 4 / 2, 4)) * math.sqrt(2) * 0.01
    for beyond, expected in ((1.02, {"d"}), (0.98, set())):
        centres = {"a": 0.0, "b": 0.0, "c": 0.0, "d": -beyond * least}
        found = card_spread(with_logs(**{card: [at - 0.01, at + 0.01] for card, at in centres.items()}))
        assert (found.apart, found.slowest) == (expected, "d")
    without_spread = {"a": [100.0] * 2, "b": [100.0] * 2, "c": [99.0] * 2}
    assert card_spread(without_spread).apart == {"c"}


def test_what_chance_explains_is_marked_and_other_settings_never_meet() -> None:
    nodes = [on(f"n{n}", f"GPU-{n}", "jax", speeds) for n, speeds in enumerate(([100.0, 102.0], [99.0, 102.0]))]
    (finding,) = found_in(*nodes).values()
    assert finding.odd_one == ("n1", "-0.3 % (may be chance)")
    once = [on(f"n{n}", f"GPU-{n}", "jax", [speed]) for n, speed in enumerate((100.0, 90.0))]
    (finding,) = found_in(*once).values()
    assert fleet_table([finding]).lines[1].cells[3:] == ["unknown", "unknown", "n1", "-5.3 %"]
    longer = [record("jax", "step.jit", 50.0, settings={"epochs": 9}, environment=nodes[0][0].environment)]
    (finding,) = found_in([*nodes[0], *longer], nodes[1]).values()  # the row has a longer name on one node alone
    assert (finding.row, finding.spread.replicates) == ("cnn-b100-fp32 (epochs 2)", 4)


def on(node: str, uuid: str | None, framework: Framework, speeds: list[float], mode: str = "step.jit") -> list[Record]:
    environment = H200 | {"node": node, "gpu": {"name": "NVIDIA H200", "uuid": uuid}}
    return [record(framework, mode, speed, replicate=n, environment=environment) for n, speed in enumerate(speeds)]


def found_in(*of_nodes: list[Record], judge: Judge = passed) -> dict[str, Finding]:
    return {one.name: one for one in findings([(sections(records, judge), judge) for records in of_nodes])}


def test_each_mode_and_the_ratio_of_the_best_two() -> None:
    """Node 3 is 6 % slower in both frameworks, so its ratio is that of the others. MSW = 2 * (log(1.01) / 2)**2 =
    0.00704**2; MSB / 2 is the variance of the logarithms 0, 0, 0.00995 and -0.06188 of the cards, 0.001085;
    between**2 = 0.001085 - 0.00704**2 / 2 = 0.03255**2."""
    nodes = [on("n0", "GPU-0", "jax", [500.0, 500.0], "step.eager"), [], [], []]
    for n, speed in enumerate((1.0, 1.0, 1.01, 0.94)):
        nodes[n] += on(f"n{n}", f"GPU-{n}", "jax", [2000 * speed, 2020 * speed])
        nodes[n] += on(f"n{n}", f"GPU-{n}", "torch", [1000 * speed, 1010 * speed])
    found = found_in(*nodes)
    assert [*found] == ["JAX step.jit", "PyTorch step.jit", "JAX / PyTorch step.jit / step.jit"]  # eager: on one card
    ratio = found["JAX / PyTorch step.jit / step.jit"].spread
    assert [*ratio.means.values()] == pytest.approx([2.0] * 4) and ratio.between == pytest.approx(0, abs=1e-6)
    groups, *lines = fleet_table([*found.values()]).lines
    assert groups.cells == ["mnist, use case 1 (train), on NVIDIA H200: cnn-b100-fp32"]
    assert lines[0].cells == ["JAX step.jit", "4", "8", "3.3 %", "0.7 %", "n3", "-6.0 %"]


def test_a_ratio_needs_one_card_and_the_parity_gate() -> None:
    def failed(jax: Record, torch: Record) -> Judgement:
        return Judgement(state="failed", sentence="other numbers")

    nodes, other_cards = (
        [[*on(n, n, "jax", [2.0]), *on(n, f"{n}{other}", "torch", [1.0])] for n in ("a", "b")] for other in ("", "2")
    )
    ratio = "JAX / PyTorch step.jit / step.jit"
    assert ratio in found_in(*nodes)
    assert ratio not in found_in(*nodes, judge=failed) and ratio not in found_in(*other_cards)


def test_cards_are_told_apart_by_their_uuid_and_on_a_cpu_by_the_node() -> None:
    [first] = on("n1", "GPU-aaaabbbb-1", "jax", [1.0])
    assert card_of(first) == ("n1", "GPU-aaaabbbb-1")
    assert card_of(record("jax", "step.jit", environment={**CPU, "node": "n1"})) == ("n1", "")
    requeued = on("n1", "GPU-ccccdddd-2", "jax", [90.0, 90.0])[1:]
    found = found_in([*on("n1", "GPU-aaaabbbb-1", "jax", [100.0]), *requeued], on("n2", "GPU-3", "jax", [100.0, 100.0]))
    means = {"n1 GPU-aaaabbbb": 100, "n1 GPU-ccccdddd": 90, "n2": 100}
    assert found["JAX step.jit"].spread.means == pytest.approx(means)


def test_the_command_reads_the_folders_of_the_nodes(tmp_path: Any) -> None:
    results, console = Results(root=tmp_path), plain(width=120)
    assert print_fleet(results, console) == 1 and "python main.py --fleet 4" in text(console)
    for node, speed in (("n1", 100.0), ("n2", 94.0), ("n3", 100.0)):
        for one in on(node, node, "torch", [speed, speed]):
            save(one, results.of_node(node))
    assert print_fleet(results, console) == 0
    shown = " ".join(text(console).split())
    assert "PyTorch step.jit 3 6 3.6 % 0.0 % n2 -6.0 %" in shown
    assert print_fleet(results, console, lambda section: section.setup.cell.benchmark == "cifar10") == 1
