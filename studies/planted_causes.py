"""Does the explanation name the cause that was planted? A simulated GPU queue (docs/studies/planted_causes.md).

    python -m studies.planted_causes            prints the table
    python -m studies.planted_causes --publish  also writes results/published/statistics/planted_causes.json

A host hands out kernels one after the other, and a queue runs them in that order: a kernel starts when the call that
launches it has returned and the one before it has ended. A step is drawn at random. The other side is the same step
with one cause planted, which makes it longer by a known fraction; the report's own code explains the difference.
Kernels, launches, both traced windows and the clock have noise of their own.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.plan import Framework, Variant
from harness.results.record import Blocks, Explanation
from harness.results.timeline import timeline_of, window_of
from pipeline.markdown import markdown_table
from pipeline.report.compare import Mode, Row
from pipeline.report.why import TERMS, Term, Terms, Why
from studies.published import PUBLISHED, Simulated, run_simulation

RECORD = PUBLISHED / "planted_causes.json"
STRENGTHS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""By how much the slower step is longer; differences below a tenth are not explained."""
RUNS = 200
SEED = 20261122
STEPS = 10
"""Of the shorter window."""
NAMES: dict[Term, str] = {
    "product": "ampere_sgemm_128x64_tn",
    "traffic": "triton_poi_fused_add_1",
    "layout": "Memcpy DtoD (Device -> Device)",
    "communication": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
}
CAUSES: dict[str, Term] = {
    "slower products": "product",
    "more elementwise kernels": "traffic",
    "copies": "layout",
    "communication": "communication",
    "slow launches": "idle",
    "a pause before kernels": "idle",
}
CLOCK_NOISE, KERNEL_NOISE, LAUNCH_NOISE = 0.005, 0.03, 0.2
"""Standard deviations of the logarithms: of a step's time by the clock, of a kernel's, of a launch's."""


class Kernel(NamedTuple):
    name: str
    duration_s: float
    launch_s: float
    pause_s: float = 0.0
    """Between the end of the kernel before and the start of this one, whatever the host does."""


def step_of(draw: np.random.Generator) -> list[Kernel]:
    """Bound by its kernels: launches are fast enough."""
    count = int(draw.integers(20, 120))
    durations = np.exp(draw.uniform(math.log(8e-6), math.log(100e-6), count))
    terms = draw.choice(["product", "traffic", "layout"], count, p=[0.4, 0.5, 0.1])
    return [Kernel(NAMES[term], float(s), 3e-6) for term, s in zip(terms, durations, strict=True)]


def planted(step: Sequence[Kernel], cause: str, strength: float) -> list[Kernel]:
    """The same step, longer by `strength`."""
    whole_s = sum(kernel.duration_s for kernel in step)
    added_s = strength * whole_s
    if cause == "slower products":
        products_s = sum(kernel.duration_s for kernel in step if kernel.name == NAMES["product"])
        factor = 1 + added_s / products_s
        is_product = [kernel.name == NAMES["product"] for kernel in step]
        return [
            kernel._replace(duration_s=kernel.duration_s * factor) if is_one else kernel
            for kernel, is_one in zip(step, is_product, strict=True)
        ]
    if cause == "slow launches":
        return [kernel._replace(launch_s=(whole_s + added_s) / len(step)) for kernel in step]
    if cause == "a pause before kernels":
        return [kernel._replace(pause_s=added_s / len(step)) for kernel in step]
    count = 1 if cause == "communication" else 10
    return [*step, *(Kernel(NAMES[CAUSES[cause]], added_s / count, 3e-6) for _ in range(count))]


def run(step: Sequence[Kernel], steps: int, draw: np.random.Generator) -> tuple[list[Any], float]:
    """The events of these steps, for `timeline_of`, and the seconds of one."""
    host = device = first = 0.0
    events = []
    for number in range(steps + 2):
        if number == 2:
            first, events = device, []  # the queue is as full as it gets
        kernel_noise = np.exp(KERNEL_NOISE * draw.standard_normal(len(step)))
        launch_noise = np.exp(LAUNCH_NOISE * draw.standard_normal(len(step)))
        for kernel, of_kernel, of_launch in zip(step, kernel_noise, launch_noise, strict=True):
            host += kernel.launch_s * of_launch
            start = max(host, device + kernel.pause_s)
            device = start + kernel.duration_s * of_kernel
            events.append((kernel.name, start, device, host))
    return events, (device - first) / steps


def explanation_of_run(step: Sequence[Kernel], draw: np.random.Generator) -> Explanation:
    windows, times_s = [], []
    for steps in (STEPS, 2 * STEPS):
        events, step_s = run(step, steps, draw)
        windows.append(window_of(timeline_of(events), steps=steps))
        times_s.append(step_s)
    step_s = times_s[-1] * float(np.exp(CLOCK_NOISE * draw.standard_normal()))
    blocks = Blocks(
        calls_per_block=1, steps_per_call=1, samples_per_step=1, block_times_s=[step_s] * 3, warmup_times_s=[]
    )
    launches_s = sum(kernel.launch_s for kernel in step)
    return Explanation(
        tracer="simulated", on_device=True, blocks=blocks, dispatch_times_s=[launches_s] * 3, windows=windows
    )


def why_of_steps(fast: Sequence[Kernel], slow: Sequence[Kernel], draw: np.random.Generator) -> Why:
    return why_of_explanations(explanation_of_run(fast, draw), explanation_of_run(slow, draw))


def why_of_explanations(
    fast: Explanation, slow: Explanation, recorded_s: tuple[float | None, float | None] = (None, None)
) -> Why:
    """As if the faster step had been JAX's, and the slower one PyTorch's.

    Args:
        recorded_s: step times of the records that are explained, where there are any.
    """
    terms: dict[Framework, Terms] = {
        "jax": terms_of("jax", fast, recorded_s[0]),
        "torch": terms_of("torch", slow, recorded_s[1]),
    }
    row = Row(
        label="planted",
        variant=Variant(model="planted", batch_size=1, precision="fp32", execution_mode="planted"),
        settings_digest="",
        data_id="",
        has_other_data=False,
        modes=tuple(one.mode for one in terms.values()),
        comparison=None,
    )
    return Why(row=row, terms=terms)


def terms_of(framework: Framework, explanation: Explanation, recorded_s: float | None = None) -> Terms:
    mode = Mode(
        framework=framework,
        execution_mode="planted",
        records=(),
        throughputs={},
        numbers={} if recorded_s is None else {"step_time_s": recorded_s},
        replicates_with={},
        flags={},
    )
    return Terms(mode=mode, explanation=explanation)


def named_cause(why: Why) -> str:
    """The term that is named first, or why there is none."""
    if why.refusals:
        return "refused"
    if why.why_not_tried:
        return "nothing"
    return why.named[0].term


def simulate(runs: int = RUNS) -> Simulated:
    """The record: for each cause and strength how often each term was named first, and each kind of bound."""
    cases = []
    for cause in CAUSES:
        for strength in STRENGTHS:
            draw = np.random.default_rng([SEED, len(cases)])
            named: Counter[str] = Counter()
            bounds: Counter[str] = Counter()
            for _ in range(runs):
                step = step_of(draw)
                why = why_of_steps(step, planted(step, cause, strength), draw)
                named[named_cause(why)] += 1
                bounds[str(why.terms["torch"].bound)] += 1
            cases.append({"cause": cause, "strength": strength, "named": dict(named), "bounds": dict(bounds)})
    return {"schema_version": 1, "runs": runs, "seed": SEED, "numpy": np.__version__, "cases": cases}


def shares(case: dict[str, Any]) -> tuple[float, float, float]:
    """Right, wrong, and not explained."""
    named = Counter(case["named"])
    right = named[CAUSES[case["cause"]]] / named.total()
    nothing = (named["nothing"] + named["refused"]) / named.total()
    return right, sum(named[term] for term in TERMS if term != CAUSES[case["cause"]]) / named.total(), nothing


def table(record: Simulated) -> str:
    """Markdown: right, and behind it what is wrong and what is not explained."""
    cells = {(case["cause"], case["strength"]): _cell(shares(case)) for case in record["cases"]}
    rows = [[cause, *(cells[cause, strength] for strength in STRENGTHS)] for cause in CAUSES]
    return markdown_table(["planted", *(f"+{strength * 100:.0f} %" for strength in STRENGTHS)], rows)


def _cell(found: tuple[float, float, float]) -> str:
    right, wrong, nothing = (f"{share * 100:.1f} %" for share in found)
    return f"{right} ({wrong}, {nothing})"


if __name__ == "__main__":
    sys.exit(run_simulation(sys.argv[1:], about=__doc__, record=RECORD, simulate=simulate, table=table))
