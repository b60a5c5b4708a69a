"""`main.py report --fleet`: how far cards of one kind are apart, beside how far replicates on one card are.

Pure but for `print_fleet`. Each node of a fleet has records of its own, and only those of the same setup and row meet.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.paths import Results
from harness.plan import FRAMEWORKS, Framework
from harness.results.parity_gate import ParityGate
from harness.results.record import Record
from harness.results.statistics import holm, student_t_tails
from pipeline.report.compare import (
    MANY_STEPS,
    NAMES,
    Judge,
    Mode,
    Row,
    RowKey,
    Section,
    Setup,
    row_labels,
    sections,
)
from pipeline.report.conditions import uses_gpu
from pipeline.report.reading import read_records
from pipeline.report.table import Line, Table, group, numbers, texts

if TYPE_CHECKING:
    from rich.console import Console

Card = tuple[str, str]
"""Its node, and its UUID; empty on a CPU, and for all GPUs of a node together."""
TRY = "python main.py --fleet 4 --benchmark mnist --use_case 1"


@dataclass(frozen=True, kw_only=True)
class CardSpread:
    """Of throughputs in samples/s, or of ratios, of which each is a replicate on a card."""

    means: Mapping[str, float]
    """The geometric mean of each card's replicates, by the card's name."""
    replicates: int
    """On all cards."""
    between: float | None
    """Standard deviation of the logarithm from card to card; None where no card has two replicates, or there is one."""
    within: float | None
    """The same from replicate to replicate on one card."""
    apart: frozenset[str] = frozenset()
    """The cards that differ from the median by more than replicates explain; see `_apart`."""

    def difference(self, card: str) -> float:
        """Of its mean from the median of all cards, as a share: -0.06 is 6 % less."""
        return self.means[card] / statistics.median(self.means.values()) - 1

    @property
    def slowest(self) -> str:
        return min(self.means, key=self.difference)

    @property
    def farthest(self) -> str:
        return max(self.means, key=lambda card: abs(self.difference(card)))


def card_spread(of_cards: Mapping[str, Sequence[float]]) -> CardSpread:
    """One-way random-effects analysis of variance of the logarithms y, of n replicates on k cards, n_i on card i.

    within**2 = MSW = sum_ij (y_ij - mean_i)**2 / (n - k); between**2 = (MSB - MSW) / n_0, or 0 where that is below it,
    with MSB = sum_i n_i * (mean_i - mean)**2 / (k - 1) and n_0 = (n - sum_i n_i**2 / n) / (k - 1). Source: Searle,
    Casella and McCulloch (1992), "Variance Components", chapter 3.
    """
    logs = {card: [math.log(value) for value in values] for card, values in of_cards.items()}
    means = {card: math.fsum(values) / len(values) for card, values in logs.items()}
    count, cards = sum(map(len, logs.values())), len(logs)
    between = within = None
    apart: frozenset[str] = frozenset()
    if count > cards:
        square = math.fsum((value - means[card]) ** 2 for card, values in logs.items() for value in values)
        within = math.sqrt(square / (count - cards))
        if cards > 1:
            mean = math.fsum(len(values) * means[card] for card, values in logs.items()) / count
            from_mean = math.fsum(len(values) * (means[card] - mean) ** 2 for card, values in logs.items())
            per_card = (count - sum(len(values) ** 2 for values in logs.values()) / count) / (cards - 1)
            between = math.sqrt(max(0.0, (from_mean / (cards - 1) - within**2) / per_card))
            apart = _apart(means, {card: len(values) for card, values in logs.items()}, within, count - cards)
    return CardSpread(
        means={card: math.exp(mean) for card, mean in means.items()},
        replicates=count,
        between=between,
        within=within,
        apart=apart,
    )


def _apart(
    means: Mapping[str, float], counts: Mapping[str, int], within: float, degrees_of_freedom: int
) -> frozenset[str]:
    """The cards that are not where the median of all is, by Student's t with the variance within cards, and Holm's
    correction: one too many among them in at most 5 % of fleets. The median is taken for no surer than the mean of one
    card, which is too careful where there are many.

    Args:
        means: of logarithms.
        counts: of replicates.
    """
    middle, fewest = statistics.median(means.values()), min(counts.values())
    p_values = []
    for card, mean in means.items():
        error = within * math.sqrt(1 / counts[card] + 1 / fewest)
        by = abs(mean - middle)
        p_values.append((card, student_t_tails(by / error, degrees_of_freedom) if error else float(by == 0)))
    return frozenset(holm(p_values))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the cards of a fleet say about one mode of a row, or about the ratio of two."""

    setup: Setup
    row: str
    framework: Framework | None
    """None for a ratio."""
    mode: str
    """`step.jit`; of a ratio `step.jit / step.compiled`."""
    is_best: bool
    """On most nodes; a ratio is of these."""
    spread: CardSpread

    @property
    def name(self) -> str:
        return f"{NAMES[self.framework] if self.framework else 'JAX / PyTorch'} {self.mode}"

    @property
    def odd_one(self) -> tuple[str, str]:
        """`n017` and `-6.0 %`: the slowest card; of a ratio the one that is farthest from the median."""
        card = self.spread.slowest if self.framework else self.spread.farthest
        chance = self.spread.within is not None and card not in self.spread.apart
        return card, f"{100 * self.spread.difference(card):+.1f} %{' (may be chance)' if chance else ''}"


def findings(of_nodes: Iterable[tuple[Sequence[Section], Judge]]) -> list[Finding]:
    """Of what was measured on two cards at the least: for each row the modes of JAX, those of PyTorch, the ratio.

    Args:
        of_nodes: of each node of the fleet the sections, and its parity gate.
    """
    rows: dict[Setup, dict[RowKey, list[tuple[Row, Judge]]]] = defaultdict(lambda: defaultdict(list))
    for compared, judge in of_nodes:
        for section in compared:
            for row in section.rows:
                work = row.variant.comparison_key + (MANY_STEPS if row.many_steps_in_a_call else "")
                rows[section.setup][RowKey(work, row.settings_digest, row.data_id)].append((row, judge))
    found = []
    for setup, of_setup in rows.items():
        labels = row_labels(of_setup, {key: of_row[0][0].modes[0].records[0] for key, of_row in of_setup.items()})
        for key, of_row in of_setup.items():
            found += [
                Finding(
                    setup=setup,
                    row=labels[key],
                    framework=framework,
                    mode=mode,
                    is_best=is_best,
                    spread=card_spread(_named(of_cards)),
                )
                for (framework, mode, is_best), of_cards in _by_card(of_row).items()
                if len(of_cards) > 1
            ]
    return found


def _by_card(
    of_row: Sequence[tuple[Row, Judge]],
) -> dict[tuple[Framework | None, str, bool], dict[Card, list[float]]]:
    """The throughputs of each framework and mode, and last the ratios of the two modes that are best on most nodes; as
    the key is that of a finding: framework, mode, whether it is best.

    Args:
        of_row: the same row on each node, with the node's parity gate.
    """
    best = {framework: _best(framework, [row for row, _ in of_row]) for framework in FRAMEWORKS}
    found: dict[tuple[Framework, str], dict[Card, list[float]]] = defaultdict(lambda: defaultdict(list))
    ratios: dict[Card, list[float]] = defaultdict(list)
    for row, judge in of_row:
        modes = {(mode.framework, mode.execution_mode): mode for mode in row.modes if not mode.why_worthless}
        for key, mode in modes.items():
            for record in mode.records:
                found[key][card_of(record)].append(mode.throughputs[record.measurement.replicate])
        jax, torch = (modes.get((framework, best[framework] or "")) for framework in FRAMEWORKS)
        for card, ratio in _ratios(jax, torch, judge) if jax and torch else ():
            ratios[card].append(ratio)
    of_all: dict[tuple[Framework | None, str, bool], dict[Card, list[float]]] = {
        (framework, mode, mode == best[framework]): found[framework, mode] for framework, mode in sorted(found)
    }
    return of_all | {(None, f"{best['jax']} / {best['torch']}", True): ratios}


def card_of(record: Record) -> Card:
    environment = record.environment
    has_card = uses_gpu(environment) and record.measurement.cell.devices == 1
    uuid = (environment.get("gpu") or {}).get("uuid") if has_card else None
    return environment.get("node") or "a node that was not recorded", uuid or ""


def _named(of_cards: Mapping[Card, Sequence[float]]) -> dict[str, Sequence[float]]:
    """By the node alone, where that has one card."""
    cards_of = Counter(node for node, _ in of_cards)
    return {f"{node} {uuid[:12]}" if cards_of[node] > 1 else node: values for (node, uuid), values in of_cards.items()}


def _best(framework: Framework, rows: Iterable[Row]) -> str | None:
    best = Counter(mode.execution_mode for row in rows if (mode := row.best(framework)))
    return best.most_common(1)[0][0] if best else None


def _ratios(jax: Mode, torch: Mode, judge: Judge) -> Iterable[tuple[Card, float]]:
    """Of the replicates that both have on the same card, and that the parity gate has passed."""
    others = {record.measurement.replicate: record for record in torch.records}
    for record in jax.records:
        replicate, other = record.measurement.replicate, others.get(record.measurement.replicate)
        if other and card_of(record) == card_of(other) and judge(record, other).state == "passed":
            yield card_of(record), jax.throughputs[replicate] / torch.throughputs[replicate]


def _percent(deviation: float | None) -> str:
    """Of a standard deviation of logarithms."""
    return "unknown" if deviation is None else f"{100 * math.expm1(deviation):.1f} %"


def fleet_table(found: Sequence[Finding]) -> Table:
    lines: list[Line] = []
    for one in found:
        title = group(f"{one.setup.place}: {one.row}")
        lines += [title] if title not in lines else []
        counts = [str(len(one.spread.means)), str(one.spread.replicates)]
        spreads = [_percent(one.spread.between), _percent(one.spread.within)]
        lines.append(Line([one.name, *counts, *spreads, *one.odd_one], one.framework, is_pale=not one.is_best))
    return Table(
        name="fleet",
        title="Cards beside each other",
        caption="Between cards, and within one from replicate to replicate: standard deviations of throughput, or of "
        "the ratio, in per cent (one-way random effects of its logarithm). Each card was measured in a job of its own, "
        "so what differs from node to node and from hour to hour is between cards, too. Slowest: the geometric mean of "
        "the card against the median of all cards; of a ratio, the card that is farthest from it. May be chance: no "
        "farther than replicates of equal cards come apart (Student's t, 5 % for all cards together).",
        columns=[
            *texts("mode"),
            *numbers("cards", "replicates", "between cards", "within one"),
            *texts("slowest"),
            *numbers("to the median"),
        ],
        lines=lines,
    )


def print_fleet(
    results: Results, console: "Console | None" = None, takes: Callable[[Section], bool] = lambda _: True
) -> int:
    """`main.py report --fleet`. Returns 1 where nothing was measured on two cards."""
    from pipeline.report.terminal import new_console, print_table, print_wrapped

    console = console or new_console()
    of_nodes: list[tuple[Sequence[Section], Judge]] = []
    for node in results.fleet():
        reading, judge = read_records(sorted(node.records().rglob("*.json")), compact=True), ParityGate(node).judge
        for sentence in reading.refused:
            print_wrapped(console, f"Warning: {sentence}", style="yellow")
        of_nodes.append(([section for section in sections(reading.records, judge) if takes(section)], judge))
    found = findings(of_nodes)
    if not found:
        print_wrapped(
            console,
            f"Of what is asked for, no two cards have measured the same under {results.root / 'fleet'}. Measure "
            f"first: {TRY}",
        )
        return 1
    print_table(fleet_table(found), console)
    return 0
