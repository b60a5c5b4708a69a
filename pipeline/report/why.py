"""Why one side's step takes longer: where the time of each goes, term by term, and what is to be doubted. Pure.

The terms of a step add up to its time, so the difference of two steps is the sum of the differences of their terms.
Step time is the clock's, without a tracer; busy time is the tracer's. All of the error of the busy time is therefore in
the time in which nothing ran, and whatever speaks against the trace is said before what it says.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Literal, NamedTuple

from harness.plan import FRAMEWORKS, Framework
from harness.results.flags import OTHER_CPUS
from harness.results.kernel_names import class_of, uses_tensor_cores
from harness.results.record import Explanation, KernelTime, TracedWindow
from harness.results.statistics import SAME_WITHIN, dispatch_time_s, step_time_s
from harness.results.thresholds import (
    DECIDES,
    LAUNCHES,
    ON_CPU,
    ON_GPU,
    PER_STEP,
    TOLD,
    UNKNOWN_KERNELS,
    WORTH_TELLING,
    Thresholds,
)
from pipeline.report.compare import Mode, Row, Section

Term = Literal["product", "traffic", "layout", "communication", "other", "idle"]
TERMS: tuple[Term, ...] = ("product", "traffic", "layout", "communication", "other", "idle")

Bound = Literal[
    "launch-bound", "waits for something else", "communication-bound", "matrix products", "memory traffic", "layout"
]


@dataclass(frozen=True, kw_only=True)
class Terms:
    mode: Mode
    explanation: Explanation

    @property
    def window(self) -> TracedWindow:
        """The longer one."""
        return self.explanation.windows[-1]

    @property
    def on_device(self) -> bool:
        return self.explanation.on_device

    @property
    def thresholds(self) -> Thresholds:
        return ON_GPU if self.on_device else ON_CPU

    @cached_property
    def step_s(self) -> float:
        return step_time_s(self.explanation.blocks)

    @cached_property
    def busy_s(self) -> float:
        return self.window.busy_s / self.window.steps

    @cached_property
    def traced_step_s(self) -> float | None:
        """At most, as what waits before the first event or after the last one is not seen; None where one call was
        traced."""
        steps = self.window.steps - self.explanation.blocks.steps_per_call
        return self.window.span_s / steps if steps > 0 else None

    @cached_property
    def of_kernels_s(self) -> Mapping[Term, float]:
        found: dict[Term, float] = defaultdict(float)
        for kernel in self.window.kernels:
            found[class_of(kernel.name, kernel.content)] += kernel.busy_s / self.window.steps
        return found

    @cached_property
    def terms_s(self) -> dict[Term, float]:
        """In the order of TERMS; their sum is the step. Where the tracer saw more than the clock, in their
        proportions."""
        shrunk = min(1.0, self.step_s / self.busy_s) if self.busy_s else 1.0
        found: dict[Term, float] = {term: shrunk * self.of_kernels_s.get(term, 0.0) for term in TERMS}
        found["idle"] = max(0.0, self.step_s - self.busy_s)
        return found

    @cached_property
    def dispatch_s(self) -> float:
        """Until a step's call has returned."""
        return dispatch_time_s(self.explanation)

    @cached_property
    def kernels_per_step(self) -> float:
        return sum(kernel.count for kernel in self.window.kernels) / self.window.steps

    def kernels_of(self, term: Term) -> float:
        """How many a step has."""
        counts = (kernel.count for kernel in self.window.kernels if class_of(kernel.name, kernel.content) == term)
        return sum(counts) / self.window.steps

    @cached_property
    def attainable_s(self) -> float | None:
        """What the step's matrix products would take at the attainable rate of the device; None where either is not
        known."""
        peak, work = self.mode.attainable_operations_per_s, self.explanation.work
        return None if peak is None or work is None or not work.operations else work.operations / peak

    @property
    def share_of_attainable(self) -> float | None:
        """Of the whole step: its work over what the device could do in its time."""
        return None if self.attainable_s is None else self.attainable_s / self.step_s

    @property
    def products_share_of_attainable(self) -> float | None:
        """The same of its matrix products' own time. Above 1 only where an algorithm multiplies less than is counted,
        such as Winograd's."""
        products_s = self.terms_s["product"]
        return None if self.attainable_s is None or not products_s else self.attainable_s / products_s

    @property
    def longest(self) -> Sequence[KernelTime]:
        """Ten."""
        return self.window.kernels[:10]

    @cached_property
    def tensor_cores(self) -> bool | None:
        """Whether the products that take most of the products' time use them; None where that cannot be told."""
        times: dict[bool | None, float] = defaultdict(float)
        for kernel in self.window.kernels:
            if class_of(kernel.name, kernel.content) == "product":
                times[uses_tensor_cores(kernel.name)] += kernel.busy_s
        return max(times, key=lambda uses: times[uses]) if self.on_device and times else None

    @cached_property
    def refusals(self) -> list[str]:
        """Why this explains nothing."""
        if not self.window.kernels or not self.busy_s:
            return ["the tracer saw nothing run"]
        found = []
        if self.busy_s > self.thresholds.busy * self.step_s:
            found.append(f"the profiler slowed the step by {self.busy_s / self.step_s - 1:.0%} at the least")
        if self.traced_step_s and self.step_s > (1 + self.thresholds.processes) * self.traced_step_s:
            found.append(
                f"a step took {self.step_s / self.traced_step_s:.0%} of one under the tracer, which makes none faster: "
                f"something else was computed"
            )
        unknown = self.of_kernels_s.get("other", 0.0) / self.busy_s
        if unknown > UNKNOWN_KERNELS:
            found.append(f"{unknown:.0%} of the busy time is in kernels whose names are not known")
        return found

    @cached_property
    def doubts(self) -> list[str]:
        """What is to be read before the explanation."""
        found = []
        short, long = (window.busy_s / window.steps for window in self.explanation.windows)
        if abs(long - short) > self.thresholds.windows * short:
            found.append(f"two traced windows differ by {abs(long - short) / short:.0%} in busy time")
        traced_s = self.traced_step_s
        if not self.on_device and traced_s and traced_s > (1 + self.thresholds.processes) * self.step_s:
            found.append(f"a step took {traced_s / self.step_s:.0%} of its time under the tracer, and so its operators")
        if self.on_device and not self._same_kernels():
            found.append("not every step runs the same kernels")
        others = self.explanation.other_cpus
        if others is not None and others > OTHER_CPUS:
            found.append(f"other processes kept {others:.1f} CPUs busy while it was explained")
        recorded_s = self.mode.numbers.get("step_time_s")
        if recorded_s and abs(self.step_s - recorded_s) > self.thresholds.processes * recorded_s:
            found.append(f"the explained process took {self.step_s / recorded_s:.0%} of the measured step time")
        return found

    def _same_kernels(self) -> bool:
        first, second = (
            {kernel.name: kernel.count / window.steps for kernel in window.kernels}
            for window in self.explanation.windows
        )
        return first.keys() == second.keys() and all(abs(first[name] - second[name]) <= PER_STEP for name in first)

    @cached_property
    def bound(self) -> Bound | None:
        """What a step's time is mostly made of; None on a CPU, where operators are no kernels."""
        if not self.on_device or self.refusals:
            return None
        idle, terms = self.terms_s["idle"], self.terms_s
        if idle >= DECIDES * self.step_s:
            window = self.window
            known = window.host_gaps_s + window.other_gaps_s
            waits_for_host = known == 0 or window.host_gaps_s >= known / 2
            is_launch = self.dispatch_s >= LAUNCHES * self.step_s and waits_for_host
            return "launch-bound" if is_launch else "waits for something else"
        if terms["communication"] >= DECIDES * self.step_s:
            return "communication-bound"
        busy = sum(terms[term] for term in TERMS if term != "idle")
        if terms["product"] >= busy / 2:
            return "matrix products"
        return "layout" if terms["layout"] >= max(DECIDES * busy, terms["traffic"]) else "memory traffic"


class Cause(NamedTuple):
    """One term of the difference."""

    term: Term
    difference_s: float
    """Of the slower side less the other."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """Of one row: its two fastest modes."""

    row: Row
    terms: Mapping[Framework, Terms]

    @property
    def slow(self) -> Framework:
        return max(FRAMEWORKS, key=lambda framework: self.terms[framework].step_s)

    @property
    def fast(self) -> Framework:
        return next(framework for framework in FRAMEWORKS if framework != self.slow)

    @property
    def difference_s(self) -> float:
        return self.terms[self.slow].step_s - self.terms[self.fast].step_s

    @property
    def why_not_tried(self) -> str | None:
        """None where the difference is to be explained: wherever the ratio's interval excludes 1."""
        ratio = self.row.ratio
        if ratio is not None and ratio.verdict == "same":
            return f"both sides are the same within {SAME_WITHIN - 1:.0%}"
        if ratio is not None and ratio.excludes_1:
            return None
        if ratio is not None and ratio.is_judged:
            return "the ratio's interval includes 1, so which side is faster is open"
        is_small = self.difference_s < WORTH_TELLING * self.terms[self.fast].step_s
        return f"a difference below {WORTH_TELLING:.0%} that no interval confirms" if is_small else None

    @property
    def contradicts_the_ratio(self) -> bool:
        """The explained processes have another order than the replicates."""
        ratio = self.row.ratio
        return ratio is not None and (self.terms["torch"].step_s - self.terms["jax"].step_s) * log(ratio.value) <= 0

    @cached_property
    def causes(self) -> list[Cause]:
        """All terms of the difference, what speaks for it most first."""
        slow, fast = self.terms[self.slow].terms_s, self.terms[self.fast].terms_s
        return sorted((Cause(term, slow[term] - fast[term]) for term in TERMS), key=lambda cause: -cause.difference_s)

    @property
    def named(self) -> list[Cause]:
        """From the largest, until TOLD of the difference is told."""
        told, found = 0.0, []
        for cause in self.causes:
            if cause.difference_s <= 0 or told >= TOLD * self.difference_s:
                break
            found.append(cause)
            told += cause.difference_s
        return found

    @property
    def against(self) -> list[Cause]:
        """In which the slower side is the faster one, by something that counts."""
        return [cause for cause in self.causes if cause.difference_s < -WORTH_TELLING * self.difference_s]

    @property
    def refusals(self) -> list[tuple[Framework, str]]:
        return [(one, text) for one in FRAMEWORKS for text in self.terms[one].refusals]

    @property
    def doubts(self) -> list[tuple[Framework, str]]:
        return [(one, text) for one in FRAMEWORKS for text in self.terms[one].doubts]


def terms_of(mode: Mode) -> Terms | None:
    """None where no record of it has an explanation."""
    for record in mode.records:
        if record.result is not None and record.result.explanation is not None:
            return Terms(mode=mode, explanation=record.result.explanation)
    return None


def why_of(row: Row) -> Why | None:
    """None without a ratio, or where one side was not explained."""
    found = {}
    for framework in FRAMEWORKS:
        mode = row.best(framework)
        terms = terms_of(mode) if mode is not None else None
        if terms is None or row.ratio is None:
            return None
        found[framework] = terms
    return Why(row=row, terms=found)


def explained(section: Section) -> list[Terms]:
    """All modes of a section that have an explanation."""
    return [terms for row in section.rows for mode in row.modes if (terms := terms_of(mode)) is not None]
