"""Records for the rules of the report that the other golden records do not reach. Each rule has a device of its own, so
that the report has a group of answers for it, and corrects for its number of comparisons alone."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from harness.plan import Cell, Framework
from harness.results.device_peaks import DevicePeaksRecord, Peak
from harness.results.parity import Judgement
from harness.results.record import DataIdentity, Energy, EpochPoint, Latency, Memory, Record
from tests.made.explained_records import (
    ADD,
    ALL_REDUCE,
    COPY,
    GEMM,
    TENSOR_CORE_GEMM,
    explained,
    explanation,
    launch_bound_pair,
)
from tests.made.records import blocks
from tests.made.report_records import CELL, CPU, H200, pair, passed, rank_result, record, with_blocks, with_result

CIFAR10 = CELL.model_copy(update={"benchmark": "cifar10"})
TEXT = CELL.model_copy(update={"benchmark": "text"})
MANY = Cell(gpu="any", benchmark="synthetic", use_case=6, use_case_name="many_models")
STILL = (0.0, 0.0, 0.0, 0.0)
QUIET = (-0.001, 0.0, 0.001, 0.0)
"""JAX is first in the first and third: the error is sqrt(2 * 0.001**2 / 2 / 4), 0.0005."""


def on(devices: int, nodes: int = 1) -> Cell:
    return Cell(gpu="any", benchmark="mnist", use_case=2, use_case_name="train", devices=devices, nodes=nodes)


def as_screening(one: Record) -> Record:
    measurement = one.measurement.model_copy(update={"stage": "screening"})
    return one.model_copy(update={"measurement": measurement, "measurement_id": measurement.id})


def replicated(framework: Framework, mode: str, *throughputs: float, **changes: Any) -> list[Record]:
    return [record(framework, mode, value, replicate=number, **changes) for number, value in enumerate(throughputs)]


def noisy(
    framework: Framework, mode: str, speed: float, noise: Sequence[float] = QUIET, **changes: Any
) -> list[Record]:
    """Return a replicate for each of the logarithms in `noise`."""
    return replicated(framework, mode, *(speed * math.exp(one) for one in noise), **changes)


def four_modes(**changes: Any) -> list[Record]:
    """Return modes of which taps.jit 3000 / step.eager 2000 are fastest; declared are step.jit 2800 / step.compiled."""
    return [
        *noisy("jax", "step.jit", 2800, **changes),
        *noisy("jax", "taps.jit", 3000, **changes),
        *noisy("torch", "step.compiled", 1000, STILL, **changes),
        *noisy("torch", "step.eager", 2000, STILL, **changes),
    ]


def many_rows(*shifts: float, **changes: Any) -> list[Record]:
    """Return one row for each logarithm of its ratio, with d = shift + (-0.01, 0, 0.01, 0)."""
    found = []
    for number, shift in enumerate(shifts, start=1):
        of_row = {"batch_size": 100 * number} | changes
        found += noisy("jax", "step.jit", 1000 * math.exp(shift), (-0.01, 0.0, 0.01, 0.0), **of_row)
        found += noisy("torch", "step.compiled", 1000, STILL, **of_row)
    return found


def answers() -> Iterator[Record]:
    """Every outcome of a ratio, and every reason for none."""
    for size, (jax, torch, replicates) in enumerate(
        ((3000, 2000, 4), (1000, 2000, 4), (1005, 1000, 4), (1500, 1000, 1), (1500, 1000, 3)), start=1
    ):
        yield from pair(jax, torch, replicates, batch_size=size)
    yield from noisy("jax", "step.jit", 1020, (0.0, 0.05, -0.02, 0.01), batch_size=6)
    yield from noisy("torch", "step.compiled", 1000, STILL, batch_size=6)
    yield from pair(batch_size=7)[:4]
    yield from (pair(batch_size=8)[number] for number in (0, 5))
    for number, one in enumerate(pair(batch_size=9)):  # the ratio of p50 has three pairs
        yield with_result(one, latency=None) if number in (3, 7) else one
    for one in pair(batch_size=10):  # as copied, every pair has quite the same ratio
        yield with_result(one, blocks=pair(batch_size=10)[0 if one.measurement.framework == "jax" else 4].result.blocks)
    for reason in ("failed", "out_of_memory", "refused"):
        yield record("torch", f"mode_{reason}", outcome=reason, reason="because", result=None)


def parity_states() -> Iterator[Record]:
    for number, state in enumerate(("failed", "unchecked", "one unchecked"), start=1):
        yield from (with_result(one, details={"parity": state}) for one in pair(batch_size=number))


def judge(jax: Record, torch: Record) -> Judgement:
    """Pass every pair but those of `parity_states`."""
    state: Any = jax.result.details.get("parity") if jax.result else None
    if state == "one unchecked":
        state = "unchecked" if jax.measurement.replicate == 3 else None
    return Judgement(state=state, sentence="conv2.kernel differs by 3e-2") if state else passed(jax, torch)


def apart() -> Iterator[Record]:
    """What never meets in one number, and what is worth none."""
    yield from replicated("jax", "step.jit", 1000, settings={"epochs": 2})
    yield from replicated("torch", "step.eager", 2000, settings={"epochs": 3})
    yield from replicated("torch", "step.eager", 3000, precision="bf16")
    yield from pair(precision="default")
    for framework, mode, sha256 in (("jax", "step.jit", "0a"), ("torch", "step.eager", "0b")):
        one = record(framework, mode, batch_size=2)
        yield one.model_copy(update={"data": DataIdentity(source="MNIST", kind="real", sha256=sha256 * 32)})
    yield with_blocks(record("jax", "scan.jit", 500, batch_size=3), steps_per_call=8)
    yield with_blocks(record("torch", "epoch.compiled_graph", 800, batch_size=3), steps_per_call=5)
    yield from (with_result(one, recompiles=2) for one in pair(batch_size=4)[:4])
    yield from pair(batch_size=4)[4:]
    yield from pair(cell=CELL.model_copy(update={"use_case": 6, "use_case_name": "of_long_ago"}), replicates=1)
    yield from pair(quick=True, replicates=1)
    yield from pair(data="sample", replicates=1)


def screened() -> Iterator[Record]:
    yield as_screening(record("jax", "step.jit", 2100))
    yield as_screening(record("jax", "taps.jit", 2000))
    yield as_screening(record("jax", "scan.jit", 900))
    yield as_screening(record("jax", "big", outcome="out_of_memory", result=None, reason="4 GiB asked for"))
    # The replicates prefer taps, by less than their noise.
    yield from replicated("jax", "step.jit", 2000, 2050, 2010)
    yield from replicated("jax", "taps.jit", 2030, 2020, 2080)
    yield from replicated("torch", "step.eager", 1000, 1025, 1005)
    # Of batch 200 they overrule the screening.
    for mode, screening in (("step.jit", 2100), ("taps.jit", 2000)):
        yield as_screening(record("jax", mode, screening, batch_size=200))
    yield from replicated("jax", "step.jit", 2000, 2050, 2010, batch_size=200)
    yield from replicated("jax", "taps.jit", 2400, 2460, 2412, batch_size=200)
    yield from replicated("torch", "step.eager", 1000, 1025, 1005, batch_size=200)
    # Two names of one program are one mode, and so is a double that was only screened.
    yield from replicated("jax", "step.jit", 1000, 1001, 1002, details={"program": "p"}, batch_size=300)
    yield from replicated("jax", "step.jit_graph", 1030, 1031, 1032, details={"program": "p"}, batch_size=300)
    yield from replicated("jax", "step.tuned", 990, 991, 992, details={"program": "q"}, batch_size=300)
    yield as_screening(record("jax", "grouped.jit", 950, details={"program": "p"}, batch_size=300))
    yield from replicated("torch", "step.eager", 500, 500.5, 501, batch_size=300)
    yield as_screening(record("jax", "step.jit", 900, batch_size=400))  # nothing has a replicate yet


def why() -> Iterator[Record]:
    """Explanations of a GPU: every bound, every refusal and every doubt."""
    fast = explanation({GEMM: (10, 1.9)}, step_ms=2.0)
    half_idle: dict[str, Any] = {"kernels": {GEMM: (10, 2.0)}, "step_ms": 4.0}
    slow = [
        explanation({GEMM: (10, 3.9)}, step_ms=4.0),
        explanation({ADD: (10, 3.0), GEMM: (1, 0.9)}, step_ms=4.0),
        explanation({COPY: (10, 3.0), GEMM: (1, 0.9)}, step_ms=4.0),
        explanation({GEMM: (10, 3.0), ALL_REDUCE: (1, 0.9)}, step_ms=4.0),
        explanation(dispatch_ms=0.4, other_gaps_ms=2.0, **half_idle),
        explanation(dispatch_ms=3.9, host_gaps_ms=0.5, other_gaps_ms=1.5, **half_idle),
        explanation({GEMM: (10, 1.4), TENSOR_CORE_GEMM: (9, 2.0)}, step_ms=4.0, work=None, work_absent="no rule"),
        explanation({GEMM: (10, 3.7), "_v4_kernel": (1, 0.3)}, step_ms=4.1),
        explanation({GEMM: (10, 4.3)}, step_ms=4.1),
        explanation({}, step_ms=4.1),
        explanation(traced_ms=3.6, **half_idle),  # 20 traced steps last as long as 19 whole ones: 106 %, and 104 %
        explanation(traced_ms=3.65, **half_idle),
        explanation({GEMM: (10, 3.8)}, step_ms=4.0, first_window={GEMM: (11, 3.2)}),
        explanation({GEMM: (10, 2.0)}, step_ms=2.1),
    ]
    for size, one in enumerate(slow, start=100):
        yield from explained("jax", "step.jit", fast, batch_size=size)
        yield from explained("torch", "step.eager", one, batch_size=size)


def why_not() -> Iterator[Record]:
    """The traced process disagrees with the replicates, is 20 % off, or broke off; and what is not worth a reason."""
    fast, slow = (explanation({GEMM: (10, ms - 0.1)}, step_ms=ms) for ms in (2.0, 4.0))
    yield from explained("jax", "step.jit", fast, throughput=20_000.0, batch_size=200)
    yield from explained("torch", "step.eager", slow, throughput=30_000.0, batch_size=200)
    yield from explained("jax", "step.jit", fast, batch_size=201)
    yield from explained("torch", "step.eager", slow, throughput=20_000.0, batch_size=201)
    yield from explained("jax", "step.jit", fast, batch_size=202)
    yield with_result(record("torch", "step.eager", batch_size=202), explanation_absent="failed: CUPTI")
    # Ratios that are open, the same, and below 10 % without an interval.
    for size, ratios in ((203, (0.5, 1.0, 2.0, 1.0)), (204, (1.001, 1.002, 1.003, 1.002)), (205, (1.05,))):
        slower = explanation({GEMM: (10, 2.0)}, step_ms=2.1)
        yield from explained("torch", "step.eager", slower, len(ratios), throughput=50_000.0, batch_size=size)
        for number, ratio in enumerate(ratios):
            of: dict[str, Any] = {"throughput": 50_000.0 * ratio, "batch_size": size}
            yield explained("jax", "step.jit", fast, number + 1, **of)[number]


def why_on_cpu() -> Iterator[Record]:
    fast = explanation({"aten::mm": (10, 1.9)}, step_ms=2.0, on_device=False)
    for size, kernels, changes in (
        (1, {"aten::mm": (10, 2.0), "aten::add": (5, 0.2)}, {"dispatch_ms": 4.0}),
        (2, {"aten::mm": (10, 3.0), "aten::add": (5, 2.0)}, {}),  # the tracer saw more than the clock
        (3, {"aten::mm": (10, 3.9)}, {"other_cpus": 1.46}),
        (4, {"aten::mm": (10, 2.0)}, {"traced_ms": 3.0}),
        (5, {"aten::mm": (10, 2.0)}, {"traced_ms": 4.8}),  # 126 %, and 124 %
        (6, {"aten::mm": (10, 2.0)}, {"traced_ms": 4.7}),
    ):
        made: Any = explanation(kernels, step_ms=4.0, on_device=False, **changes)
        yield from explained("jax", "step.jit", fast, batch_size=size)
        yield from explained("torch", "step.eager", made, batch_size=size)


def busy() -> Iterator[Record]:
    yield from (with_result(one, other_cpus=0.76) for one in [*pair(), *pair(quick=True, replicates=1)])


def device_peaks() -> list[DevicePeaksRecord]:
    """Return peaks of fp32 on the H200: a product of 2e12 operations, and a triad of 12e9 bytes."""

    def made(framework: Framework, teraflops: float, terabytes: float) -> DevicePeaksRecord:
        peaks = [
            Peak(kind="product", precision="fp32", shape=(10**4,) * 3, blocks=blocks([10 * 2 / teraflops] * 3)),
            Peak(kind="triad", precision="fp32", shape=(10**9,), blocks=blocks([10 * 0.012 / terabytes] * 3)),
        ]
        return DevicePeaksRecord(framework=framework, started_at="", ended_at="", environment=H200, peaks=peaks)

    return [made("jax", 50.0, 4.2), made("torch", 40.0, 4.3)]


def several_devices() -> Iterator[Record]:
    """JAX keeps 75 % and 80 % on two devices in its two replicates, and PyTorch half on four; weakly, 90 %."""
    for number in range(2):
        for devices, jax, torch in ((1, 1000, 2000), (2, 1500 + 100 * number, 3600), (4, 2000, 4000)):
            of: dict[str, Any] = {"replicate": number, "batch_size": 128, "cell": on(devices)}
            yield from (record("jax", "step.jit", jax, **of), record("torch", "step.compiled", torch, **of))
    yield record("jax", "step.jit", 1000, batch_size=64)
    yield from (record("jax", "step.jit", 900 * n, batch_size=64 * n, cell=on(n)) for n in (4, 8))
    yield record("jax", "step.jit", 7000, batch_size=64, cell=on(8, 2))
    alone = record("jax", "step.jit", 2000, batch_size=32, cell=on(2))  # nothing on one device; a fifth moves data
    yield with_result(alone, blocks_alone=alone.result.blocks.model_copy(update={"block_times_s": [0.4] * 3}))
    yield record("jax", "step.jit", 1000, batch_size=8)
    per_node = record("jax", "step.process_per_node", 1500, batch_size=8, cell=on(2))
    yield with_result(per_node, details={"one_device_mode": "step.jit"})
    mixed = [rank_result(rank, gpu_names=[name]) for rank, name in enumerate(("H200", "A100"))]
    yield from pair(batch_size=4, cell=on(2), ranks=mixed)


def sweep(**changes: Any) -> list[Record]:
    """Return throughputs at 1, 8 and 64 models; the loops have 1000 samples/s at each."""
    speeds: dict[tuple[Framework, str], tuple[float, ...]] = {
        ("torch", "loop.eager"): (1000, 1000, 1000),
        ("torch", "loop.compiled"): (1200, 1300, 1400),
        ("torch", "batched.eager"): (800, 2000, 4000),
        ("torch", "vmap.eager"): (500, 900, 1005),
        ("torch", "streams.eager"): (1500, 900, 1500),
        ("jax", "unrolled.jit"): (1000, 1000),
        ("jax", "vmap.jit"): (900, 1100, 3000),
    }
    found = [
        of_models(framework, mode, models, speed, replicate=replicate, **changes)
        for (framework, mode), of_mode in speeds.items()
        for models, speed in zip((1, 8, 64), of_mode, strict=False)
        for replicate in range(4)
    ]
    failed = {"outcome": "out_of_memory", "reason": "out of memory", "result": None} | changes
    return [*found, *(of_models("jax", mode, 64, **failed) for mode in ("unrolled.jit", "map.jit"))]


def of_models(framework: Framework, mode: str, models: int, throughput: float = 1000.0, **changes: Any) -> Record:
    options = {"models": models, "batches": "different"}
    return record(framework, mode, throughput, cell=MANY, options=options, **changes)


def phases() -> Iterator[Record]:
    """The medians over the replicates are 9, 2 and 4, and 5, 4 and 5."""
    for framework, mode, replicate, times_s in (
        ("jax", "vmap.jit", 0, {"data_generation": [1.0], "compile": [1.0], "forward": [0.5]}),
        ("torch", "loop.eager", 0, {"data_generation": [1.0], "zero_gradients": [9.0], "forward": [1.0, 9.0]}),
        ("torch", "loop.eager", 1, {"zero_gradients": [1.0, 3.0], "forward": [4.0], "backward": [2.0]}),
        ("torch", "loop.eager", 2, {"zero_gradients": [4.0], "forward": [5.0], "backward": [2.0]}),
    ):
        yield of_models(framework, mode, 16, replicate=replicate, details={"phases": times_s})
    yield of_models("torch", "vmap.eager", 16, details={"phases": {}, "phases_absent": "out of memory: 9 GiB"})


def full(framework: Framework, mode: str, speed: float, replicate: int = 0, **changes: Any) -> Record:
    """Return a record with all that a table or a chart can show.

    Of 400 calls 93 % take 1 ms, 5 % twice, 2 % three times that. 350 W, 5,000 samples in 5 s; 2 s an epoch.
    """
    of_epoch: dict[str, Any] = {"train_time_s": 2.0, "train_loss": 1.0, "test_loss": 1.0, "input_time_s": 2.5}
    of_epoch["further_metrics"] = {"top_5_accuracy": 0.99}
    epochs = [EpochPoint(epoch=epoch, test_metric=1 - 0.5**epoch, **of_epoch) for epoch in (1, 2)]
    fields: dict[str, Any] = {"model": "resnet18", "cell": CIFAR10, "epochs": epochs}
    return with_result(
        record(framework, mode, speed, replicate=replicate, **fields | changes),
        latency=Latency(steps_per_call=1, call_times_s=[0.001] * 372 + [0.002] * 20 + [0.003] * 8),
        memory=Memory(step_peak_bytes=2**29, pool_peak_bytes=2**31, process_bytes=3 * 2**30, host_peak_bytes=1),
        energy=Energy(gross_joules=1750.0, window_s=5.0, busy_s=5.0, samples=5000, idle_watts=100),
        compile_time_warm_s=None if replicate else 4.0,
    )


def trained(replicates: int = 4, **changes: Any) -> list[Record]:
    """Return two modes of both frameworks at two batch sizes, each with all that a page can show."""
    speeds: list[Any] = [("jax", "step.jit", 3000), ("jax", "scan.jit", 2500)]
    speeds += [("torch", "step.eager", 1000), ("torch", "step.compiled", 2000)]
    return [
        full(framework, mode, speed * size / 100, number, batch_size=size, **{"model": "cnn", "cell": CELL} | changes)
        for framework, mode, speed in speeds
        for size in (100, 200)
        for number in range(replicates)
    ]


def quantities() -> Iterator[Record]:
    """All quantities, of a model whose operations are known; and reasons for what is missing."""
    sides: tuple[tuple[Framework, str, float], ...] = (("jax", "step.jit", 1000), ("jax", "scan.jit", 900))
    for side in (*sides, ("torch", "step.eager", 500.0)):
        yield from (full(*side, replicate) for replicate in range(4))
    # PyTorch compiles 10 s longer, and saves 1/1000 - 1/2000 s of a sample: 20,000 samples, which take it 10 s.
    for framework, mode, speed, seconds in (("jax", "step.jit", 1000, 2.0), ("torch", "step.eager", 2000, 12.0)):
        for one in replicated(framework, mode, *[speed] * 4, batch_size=2):
            yield with_result(one, compile_time_s=seconds)
    missing = with_result(record("jax", "scan.jit", batch_size=2), blocks_alone_absent="failed: rank 1 on n2: killed")
    yield with_result(missing, memory=Memory(absent="no GPU"), energy=Energy(absent="no driver"))


def upgraded_devices() -> Iterator[Record]:
    """Two devices have a newer JAX than one; and both runs are in W&B."""
    for cell, version in ((CELL, "0.10.1"), (on(2), "0.10.2")):
        environment: dict[str, Any] = {
            "packages": {"jax": version},
            "framework": {"platform": "gpu", "version": version},
        }
        environment |= {"python": "3.12", "wandb_url": f"https://w.example/lab/speed/runs/{cell.devices}"}
        yield record("jax", "scan.jit", cell=cell, environment=environment)


LOCK = {"name": "2026-11", "file": "cpu", "sha256": "aa" * 8, "packages": 9, "matching": 9}
OLD: dict[str, Any] = {"packages": {"jax": "0.10.2", "torch": "2.14.1"}, "lock": LOCK}
NEW = OLD | {"packages": {"jax": "0.10.2", "torch": "2.15.0"}}


def releases() -> Iterator[Record]:
    """An upgrade of PyTorch is another section, and JAX's records are in the ratio of their own job."""
    for environment, day, job, jax, torch in ((OLD, 21, "a", 2000, 1000), (NEW, 22, "b", 2100, 1400)):
        yield from pair(jax, torch, environment=environment, job=job, ended_at=f"2026-11-{day}T10:00:00+00:00")


def conditions() -> Iterator[Record]:
    """Sides on two nodes with other libraries and variables, and replicates of two environments."""
    first = {"python": "3.12", "packages": {"numpy": "2.3"}, "node": "n1", "variables": {"OMP_NUM_THREADS": "1"}}
    first |= {"code": {"harness": "h1"}, "pairing": {"kind": "together", "pair": "12.0"}}
    other: dict[str, Any] = first | {"node": "n2", "packages": {"numpy": "2.4"}, "code": {"harness": "h2"}}
    other |= {"variables": {"XLA_FLAGS": "-x"}, "pairing": {"kind": "interleaved", "turns": "t1"}}
    for one in pair():
        yield one.model_copy(update={"environment": first if one.measurement.framework == "jax" else other})
    for number, one in enumerate(pair(batch_size=2)):
        yield one.model_copy(update={"environment": first if number else other})
    yield from pair(batch_size=3, environment=first)


def replaced() -> Iterator[Record]:
    """Newer records of the same measurements from another machine."""
    for minute, node, replicates in ((5, "n1", 4), (9, "n2", 2)):
        of: dict[str, Any] = {"environment": {"node": node}, "ended_at": f"2026-11-21T10:{minute:02}:00+00:00"}
        yield from pair(replicates=replicates, **of)


RULES: dict[str, Callable[[], Iterable[Record]]] = {
    "answers": answers,
    "parity": parity_states,
    "apart": apart,
    "the declared pair": four_modes,
    "chance": lambda: many_rows(0.04, 0.011, 0.008, 0.35),
    "thirteen rows": lambda: [one for size in range(1, 14) for one in pair(4000, batch_size=size)] + pair(cell=CIFAR10),
    "screened": screened,
    "why": why,
    "why not": why_not,
    "devices": several_devices,
    "upgraded devices": upgraded_devices,
    "many models": lambda: [*sweep(), *phases()],
    "quantities": quantities,
    "text": lambda: [full("jax", "step.jit", 1000, model="gpt", cell=TEXT)],
    "releases": releases,
    "conditions": conditions,
    "replaced": replaced,
}


def constructed() -> list[Record]:
    found = [*launch_bound_pair()]  # on the device whose peaks are known
    for rule, made in RULES.items():
        here = {"gpu": {"name": f"GPU of {rule}"}}
        found += [one.model_copy(update={"environment": H200 | one.environment | here}) for one in made()]
    for rule, made in (("why", why_on_cpu), ("busy", busy)):
        here = CPU | {"cpu": {"model": f"CPU of {rule}", "affinity": [0, 1]}}
        found += [one.model_copy(update={"environment": here}) for one in made()]
    return found
