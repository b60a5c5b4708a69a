"""What a person asks a report: which framework is faster for a piece of work, by how much, and what that rests on.

Pure. A row of a section becomes one answer; where there are many rows, those of a section become one. Terminal, page,
LaTeX and README write the same answers.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Literal

from harness.plan import FRAMEWORKS, Framework
from harness.results.quantities import number
from harness.results.record import Record
from harness.results.sequential import RatioEstimate
from harness.results.statistics import SAME_WITHIN, Interval
from harness.work.declared import use_case, use_case_names
from pipeline.report.compare import NAMES, Mode, Row, Section, Setup, scaling, tally
from pipeline.report.declared import model_of, task_of
from pipeline.report.table import Line, Table, texts
from pipeline.report.why_words import why_of_row
from pipeline.report.wording import (
    COLD,
    between,
    chance_mark,
    declared_text,
    end_of_axis,
    on_devices,
    pairs,
    pays_after,
    scaling_texts,
    times,
    unequal,
    use_case_title,
)

Outcome = Literal["faster", "same", "open", "none"]
"""A side is named; both are the same within 1 %; there is a ratio without a verdict; there is no ratio."""
NOT_DECIDED = "not decided"
INCONCLUSIVE = "inconclusive"
"""Of a row that was measured on a busy machine."""
WHEN_QUIET = "measure again when the machine is quiet: the same command with --force"
MOST_ROWS = 12
"""Of one device. With more there is one answer for each section."""
AGAINST = (
    *("mixed_environment", "other_gpu_read", "other_processes", "throttled", "low_clocks", "overruled"),
    *("steered", "cpu_quota"),
)
"""Flags that say something against an answer, whatever its interval is."""
HELPS = ("not_paired", "processes_differ", "imprecise", "drift")
"""Flags that say why there is no verdict yet, and what would help. With a verdict they say nothing more: the interval
has what they see."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    setup: Setup
    work: str
    detail: str
    """`mnist, batch 256, fp32`"""
    outcome: Outcome
    faster: Framework | None
    """The side that the estimate is on, also where there is no verdict; None at 1, or without a ratio."""
    who: str
    """`JAX`, `the same`, NOT_DECIDED, INCONCLUSIVE, `so far JAX`, `no verdict, JAX`, `no ratio`"""
    amount: str
    """`1.06 ×`, `within 1 %`, `between JAX 4 % and PyTorch 1 % faster`, or why there is no ratio."""
    ratio: float | None
    """JAX's throughput over PyTorch's."""
    interval: Interval | None
    speeds: str
    """`JAX 14,700 images/s, PyTorch 13,600 images/s`"""
    rests_on: str
    """`4 of at most 12 pairs in turns`"""
    pairs: int = 0
    """Number of pairs behind the ratio; 0 without one."""
    sides: Sequence[str] = ("", "")
    """Throughput and mode of JAX and of PyTorch."""
    ready: str = ""
    """`0.9 / 19 s` of JAX and PyTorch: compilation with empty caches."""
    more: tuple[str, ...] = ()
    """What else is worth a sentence: after how many samples a lead has paid for its compilation; a newer verdict."""
    why: str = ""
    doubt: str = ""
    """The one thing that speaks against it, or that would decide it."""

    @property
    def ends(self) -> str:
        """`(1.04 to 1.09)`, of the side that is named; empty where there is no interval, or the amount has its ends."""
        if self.interval is None or self.who == NOT_DECIDED:
            return ""
        low, high = self.interval
        if self.outcome != "same" and self.faster == "torch":
            low, high = 1 / high, 1 / low
        return f"({times(low)} to {times(high)})"

    @property
    def by(self) -> str:
        """`1.06 × (1.04 to 1.09)`"""
        return f"{self.amount} {self.ends}".strip()

    @property
    def sentence(self) -> str:
        """`JAX 1.06 × faster (1.04 to 1.09)`"""
        if self.outcome == "faster":
            return f"{self.who} {self.amount} faster {self.ends}".strip()
        return f"{self.who}: {self.by}" if self.by else self.who


def answer_of(section: Section, row: Row) -> Answer:
    setup, estimate = section.setup, row.ratio
    best = [row.best(framework) for framework in FRAMEWORKS]
    outcome, who, amount = _in_words(estimate, row.why_no_ratio or "")
    busy = row.comparison.busy if row.comparison else None
    if busy is not None:
        outcome, who, amount = "open", INCONCLUSIVE, busy
    samples = task_of(setup.cell.benchmark).samples
    speeds = [number(mode.throughput_samples_per_s) if mode else "" for mode in best]
    said = zip(FRAMEWORKS, speeds, strict=True)
    cold = [_ready(mode) if mode else "" for mode in best]
    in_turns = " in turns" if all(mode and _took_turns(mode.records[-1]) for mode in best) else ""
    more = declared_text(row), _scaling(section, row, best), pays_after(row)
    return Answer(
        setup=setup,
        work=_work(setup, row.variant.model),
        detail=_detail(setup, row),
        outcome=outcome,
        faster=_side(estimate.value if estimate else None),
        who=who,
        amount=amount,
        ratio=estimate.value if estimate else None,
        interval=estimate.interval if estimate else None,
        speeds=", ".join(f"{NAMES[one]} {speed} {samples}/s" for one, speed in said if speed),
        rests_on=f"{pairs(estimate)}{in_turns}" if estimate else "",
        pairs=estimate.replicates if estimate else 0,
        sides=[f"{speed} ({mode.name})" if mode else "none" for mode, speed in zip(best, speeds, strict=True)],
        ready=f"{' / '.join(one or 'unknown' for one in cold)} s" if any(cold) else "",
        more=tuple(filter(None, more)),
        why="" if busy else why_of_row(row),
        doubt=WHEN_QUIET if busy else _doubt(row),
    )


def summary_of(section: Section) -> Answer:
    """Of all rows of a section that has many: their geometric mean, and how many have which verdict."""
    setup, found = section.setup, tally(section.rows)
    counts = [f"{name} in {count}" for name, count in found.verdicts.items() if count]
    counts += [f"no ratio in {found.without_ratio}"] if found.without_ratio else []
    mean = found.mean
    outcome, who, amount = _in_words(mean, "")
    if mean and outcome == "open" and mean.interval:
        who, amount = NOT_DECIDED, between(mean.interval)
    return Answer(
        setup=setup,
        work=use_case_title(setup.cell),
        detail=f"{setup.cell.benchmark}, {len(section.rows)} variants{on_devices(setup.cell)}",
        outcome=outcome,
        faster=_side(mean.value if mean else None),
        who=who,
        amount=amount,
        ratio=mean.value if mean else None,
        interval=mean.interval if mean else None,
        speeds=", ".join(counts),
        rests_on=f"geometric mean of {mean.replicates} ratios" if mean else "",
    )


def _ready(mode: Mode) -> str:
    """In seconds; `under 10` where compilation is lost in what calls of 10 s vary by. Empty where it is not known."""
    cold_s = mode.numbers.get(COLD)
    if cold_s is None:
        return ""
    return f"{cold_s:.2g}" if cold_s else f"under {mode.numbers['step_time_s']:.2g}"


def _in_words(estimate: RatioEstimate | None, why_none: str) -> tuple[Outcome, str, str]:
    if estimate is None:
        return "none", "no ratio", why_none
    side = _side(estimate.value)
    factor = f"{times(max(estimate.value, 1 / estimate.value))} ×"
    if estimate.doubt:
        return "open", f"no verdict, {NAMES[side or 'jax']}", factor
    if estimate.names_a_side:
        return "faster", estimate.verdict.partition(" ")[0], factor
    if estimate.verdict == "same":
        return "same", "the same", f"within {100 * (SAME_WITHIN - 1):.0f} %"
    if estimate.p is not None:
        return "open", NOT_DECIDED, between(estimate.interval)
    return "open", f"so far {NAMES[side]}" if side else "so far the same", factor


def _side(ratio: float | None) -> Framework | None:
    return None if ratio is None or ratio == 1 else "jax" if ratio > 1 else "torch"


def _work(setup: Setup, model: str) -> str:
    name = setup.cell.use_case_name
    phrase = use_case(name).work if name in use_case_names() else ""
    declared = model_of(setup.cell.benchmark, model)
    words = (declared.words if declared else "") or model
    phrase = phrase or f"{name.replace('_', ' ').capitalize()} of {{model}}"
    return phrase.replace("{model}", words) + on_devices(setup.cell)


def _detail(setup: Setup, row: Row) -> str:
    """With what tells the row from another of the same variant, behind the label's bracket."""
    variant = row.variant
    options = [f"{name.replace('_', ' ')} {value}".replace("_", " ") for name, value in sorted(variant.options.items())]
    apart = row.label.partition(" (")[2].removesuffix(")")
    many = "many steps in a call" if row.many_steps_in_a_call else ""
    parts = [setup.cell.benchmark, f"batch {variant.batch_size}", variant.precision, *options, many, apart]
    return ", ".join(filter(None, parts))


def _scaling(section: Section, row: Row, best: Iterable[Mode | None]) -> str:
    """`Of 2 times one device: JAX 87% (strong), 9% (communication); PyTorch 91% (strong)`, and what differs from the
    measurement on one device, whose value is first."""
    devices, parts = section.setup.cell.devices, []
    for mode in filter(None, best):
        found = scaling(section, row, mode)
        words = [f"{text} ({kind})" for kind, text in scaling_texts(found).items()]
        words += [f"not equal: {differing}"] if words and (differing := unequal(found)) else []
        parts += [f"{NAMES[mode.framework]} {', '.join(words)}"] if words else []
    if parts:
        return f"Of {devices} times one device: {'; '.join(parts)}"
    return "No scaling efficiency: nothing was measured of this work on one device" if devices > 1 else ""


def _took_turns(record: Record) -> bool:
    return (record.environment.get("pairing") or {}).get("turns") is not None


def _doubt(row: Row) -> str:
    """At most one sentence. What forbids a verdict comes first, then what two sides did not have alike, then flags."""
    if row.ratio is not None and row.ratio.doubt:
        return row.ratio.doubt
    if row.comparison is not None and row.ratio is not None and (found := unequal(row.comparison)):
        return f"not equal on both sides: {found}"
    flags = row.flags
    told = AGAINST if row.ratio is None or row.ratio.verdict != "undecided" else (*AGAINST, *HELPS)
    if flag := next((one for one in told if one in flags), None):
        return flags[flag]
    return chance_mark(row.ratio, row.q)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The answers of one device that were measured in one way."""

    device: str
    quick: bool
    sample: bool
    sections: tuple[Section, ...]

    @cached_property
    def answers(self) -> list[Answer]:
        if sum(len(section.rows) for section in self.sections) > MOST_ROWS:
            return [summary_of(section) for section in self.sections if section.rows]
        return [answer_of(section, row) for section in self.sections for row in section.rows]

    @property
    def headline(self) -> str:
        """`On CPU: AMD EPYC: JAX is faster at 1 of 4; PyTorch is faster at 2; not decided at 1`"""
        answers = self.answers
        won = {side: sum(one.outcome == "faster" and one.faster == side for one in answers) for side in FRAMEWORKS}
        ahead = {side: sum(one.who == f"so far {NAMES[side]}" for one in answers) for side in FRAMEWORKS}
        same, none = (sum(one.outcome == outcome for one in answers) for outcome in ("same", "none"))
        open_ = len(answers) - sum(won.values()) - sum(ahead.values()) - same - none
        if len(answers) == 1:
            return f"On {self.sections[0].setup.where}: {answers[0].work}: {answers[0].sentence}"
        if sum(ahead.values()) == len(answers):
            return f"On {self.sections[0].setup.where}: {self._early_headline(ahead)}"
        parts = [f"{NAMES[side]} is faster at {count}" for side, count in won.items() if count]
        parts += [f"{NAMES[side]} is ahead without a verdict at {count}" for side, count in ahead.items() if count]
        parts += [f"both are the same at {same}"] if same else []
        parts += [f"not decided at {open_}"] if open_ else []
        parts += [f"no ratio at {none}"] if none else []
        first, *others = parts
        return f"On {self.sections[0].setup.where}: {'; '.join([f'{first} of {len(answers)}', *others])}"

    def _early_headline(self, ahead: Mapping[Framework, int]) -> str:
        """Return `After one pair: JAX ahead in 1 of 2, PyTorch in 1`, where no row has enough pairs for a verdict."""
        counts = [one.pairs for one in self.answers]
        after = "After" if len(set(counts)) == 1 else "After at most"
        pairs_ = "one pair" if max(counts) == 1 else f"{max(counts)} pairs"
        first, *others = [(NAMES[side], count) for side, count in ahead.items() if count]
        parts = [f"{first[0]} ahead in {first[1]} of {len(counts)}", *(f"{name} in {count}" for name, count in others)]
        return f"{after} {pairs_}: {', '.join(parts)}"

    @property
    def about(self) -> str:
        """What is to be known of all of them, once; empty for full measurements on real data."""
        found = []
        if self.quick:
            found.append("A quick run, one short process of each side: it shows an order of size, and no verdict.")
        if self.sample:
            found.append(
                "Data: a small sample with the shapes of the real data set. Speed is the same on it; accuracy is not."
            )
        return " ".join(found)

    @property
    def scale(self) -> float:
        """The factor at the ends of the picture's axis."""
        return end_of_axis(one.ratio for one in self.answers)


def groups_of(compared: Sequence[Section]) -> list[Group]:
    """Full measurements before quick ones, real data before the sample, then by device, cluster and software. Sections
    without any row are left out."""
    found: dict[tuple[bool, bool, str, str], list[Section]] = defaultdict(list)
    for section in compared:
        if section.rows:
            setup = section.setup
            found[setup.quick, setup.data == "sample", setup.device, setup.apart].append(section)
    return [
        Group(device=device, quick=quick, sample=sample, sections=tuple(sections))
        for (quick, sample, device, _), sections in sorted(found.items(), key=lambda item: item[0])
    ]


def place_on_axis(ratio: float, scale: float) -> float:
    """In per cent of the axis' width, logarithmic: 50 at 1, 100 where JAX is faster by `scale`; what lies beyond an end
    is on it."""
    return min(100.0, max(0.0, 50 + 50 * log(ratio) / log(scale)))


ANSWER_COLUMNS = [
    *texts("work", "faster", "by (95 % interval)", "JAX, samples/s", "PyTorch, samples/s"),
    *texts("ready after, JAX / PyTorch", "rests on"),
]
ABOUT_ANSWERS = (
    "Each side in its fastest mode (in brackets); samples per second are medians over processes. `by` is the ratio of "
    "neighbours in time, so it is not quite that of the two columns. Ready after: compilation with empty caches."
)


def answers_table(name: str, title: str, answers: Sequence[Answer]) -> Table:
    """The answers as a table of LaTeX and Markdown; what there is to doubt stands below it, once."""
    doubts: dict[str, list[str]] = defaultdict(list)
    for one in answers:
        if one.doubt:
            doubts[one.doubt].append(f"{one.work} ({one.detail})")
    return Table(
        name=name,
        title=title,
        caption=ABOUT_ANSWERS,
        columns=ANSWER_COLUMNS,
        lines=[
            Line([f"{one.work}: {one.detail}", one.who, one.by, *one.sides, one.ready, one.rests_on]) for one in answers
        ],
        notes=[f"{'; '.join(where)}: {doubt}." for doubt, where in doubts.items()],
    )
