"""Why one side's step takes longer, in words: the doubts first, then the causes with their numbers."""

from collections.abc import Iterable

from harness.plan import Framework
from harness.results.quantities import number
from harness.results.thresholds import DECIDES, MENTIONED
from pipeline.report.compare import NAMES, Row
from pipeline.report.why import Cause, Term, Terms, Why, terms_of, why_of

TERM_WORDS: dict[Term, str] = {
    "product": "convolutions and matrix products",
    "traffic": "elementwise work, sums and look-ups",
    "layout": "copies and changes of layout",
    "communication": "communication that no computation hides",
    "other": "kernels of unknown kind",
    "idle": "nothing runs on the GPU",
}
OUTSIDE_OF_OPERATORS = "outside of the operators"
ON_CPU = "On a CPU these are operators and no kernels, and nothing is said of launches."


def term_words(term: Term, *, on_device: bool) -> str:
    return TERM_WORDS[term] if on_device or term != "idle" else OUTSIDE_OF_OPERATORS


def why_sentence(why: Why) -> str:
    """Difference, causes until most of it is explained, what speaks against it, and doubts; or why there is no
    explanation."""
    if why.refusals:
        return f"Not explained: {_of_sides(why.refusals)}."
    if why.why_not_tried:
        return f"Not explained: {why.why_not_tried}."
    if why.contradicts_the_ratio:
        steps = " and ".join(f"{NAMES[one]}'s step took {_ms(terms.step_s)} ms" for one, terms in why.terms.items())
        return f"Not explained: in the processes that were traced the order was the other way round ({steps})."
    doubts = f" To be read with care: {_of_sides(why.doubts)}." if why.doubts else ""
    slow, fast = why.terms[why.slow], why.terms[why.fast]
    against = "".join(f"; against it, {_cause(why, cause)}" for cause in why.against)
    causes = ", ".join(_cause(why, cause) for cause in why.named)
    return (
        f"{NAMES[why.slow]}'s step takes {_ms(why.difference_s)} ms more ({_ms(slow.step_s)} against "
        f"{_ms(fast.step_s)} ms): {causes}{against}.{_bound(why)}{doubts}"
    )


def why_of_row(row: Row) -> str:
    """Empty where a side was not explained."""
    why = why_of(row)
    return "" if why is None else why_sentence(why)


def not_explained_lines(rows: Iterable[Row]) -> list[str]:
    """Which modes have no explanation, where one was tried, and why."""
    found = []
    for row in rows:
        for mode in row.modes:
            results = [record.result for record in mode.records if record.result is not None]
            reason = next((result.explanation_absent for result in results if result.explanation_absent), None)
            if reason is not None and terms_of(mode) is None:
                found.append(f"{NAMES[mode.framework]} {row.label} {mode.execution_mode}: {reason}")
    return found


def tensor_cores_text(terms: Terms) -> str:
    if not terms.on_device:
        return ""
    return {True: "yes", False: "no", None: "not known"}[terms.tensor_cores]


def _cause(why: Why, cause: Cause) -> str:
    slow, fast = why.terms[why.slow], why.terms[why.fast]
    text = f"{_ms(abs(cause.difference_s))} ms {'less ' if cause.difference_s < 0 else ''}"
    if cause.term == "idle":
        where = "in which the GPU waits" if slow.on_device else "outside of the framework's operators"
        return text + where + _idle(slow, fast)
    text += f"in {TERM_WORDS[cause.term]}"
    kernels = "kernels" if slow.on_device else "operators"
    counts = [terms.kernels_of(cause.term) for terms in (slow, fast)]
    return f"{text} ({number(counts[0])} {kernels} against {number(counts[1])})"


def _idle(slow: Terms, fast: Terms) -> str:
    shares = [terms.terms_s["idle"] / terms.step_s for terms in (slow, fast)]
    text = f"{shares[0]:.0%} of its step against {shares[1]:.0%}"
    if slow.on_device and slow.bound == "launch-bound":
        text += (
            f": the host needs {_ms(slow.dispatch_s)} ms to hand out {number(slow.kernels_per_step)} kernels, the "
            f"other side {_ms(fast.dispatch_s)} ms for {number(fast.kernels_per_step)}"
        )
    return f" ({text})"


def _bound(why: Why) -> str:
    """What each step is mostly made of, on a GPU; what waits a little is mentioned."""
    texts = []
    for framework in (why.slow, why.fast):
        terms = why.terms[framework]
        if terms.bound is None:
            continue
        share = terms.terms_s["idle"] / terms.step_s
        text, reached = f"{NAMES[framework]}: {terms.bound}", terms.products_share_of_attainable
        if terms.bound == "matrix products" and reached is not None:
            text += f", which reach {reached:.0%} of what was attainable on this GPU"
        texts.append(text + (f", and waits for {share:.0%} of its time" if MENTIONED <= share < DECIDES else ""))
    return f" {'; '.join(texts)}." if texts else ""


def _of_sides(found: Iterable[tuple[Framework, str]]) -> str:
    return "; ".join(f"{NAMES[framework]}: {text}" for framework, text in found)


def _ms(seconds: float) -> str:
    return number(seconds * 1e3)
