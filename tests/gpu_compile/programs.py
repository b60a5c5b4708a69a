"""Which programs are compiled ahead, and the processes that do it. pytest's own process imports no JAX here."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.paths import REPOSITORY
from harness.plan import NEEDED_CAPABILITY, Frozen, JobPlan, Measurement, Precision, Variant
from harness.results.record import Outcome
from harness.work.declared import use_case
from tests.made.gpu_specs import GpuSpec
from tests.made.processes import output_of

GPUS = ("rtx2080ti", "a100", "rtx3080", "h100", "b200")
"""One of each compute capability in tests/made/gpu_specs.py."""
SCATTER_ADD = "a float32 scatter-add"
COMPARE_AND_SWAP = "a float32 scatter-add of compare-and-swap"
NOT_ONE_GRAPH = "a mode of CUDA graphs that is not one graph"
KNOWN_TO_BREAK = {"0.10.2": (NOT_ONE_GRAPH, COMPARE_AND_SWAP)}
"""Rules, by the version of jaxlib. There they are told and fail nothing: docs/known-issues.md has what is done."""


@dataclass(frozen=True)
class Asked:
    """A program of experiments.yaml."""

    cell: str
    """Benchmark and use case: `mnist_1`."""
    model: str
    batch_size: int
    precision: Precision
    mode: str
    option: tuple[str, str | int] | None = None
    """Where it is not the first of experiments.yaml."""
    gpus: tuple[str, ...] = GPUS

    @property
    def name(self) -> str:
        option = "" if self.option is None else f"-{self.option[0]}={self.option[1]}"
        return f"{self.cell}-{self.model}-b{self.batch_size}-{self.precision}-{self.mode}{option}"

    def can_run_on(self, gpu: GpuSpec) -> bool:
        return gpu.name in self.gpus and NEEDED_CAPABILITY.get(self.precision, 0) <= gpu.sm / 10

    def measurement(self) -> Measurement:
        benchmark, _, use_case = self.cell.rpartition("_")
        for plan in plans((benchmark,), (int(use_case),)):
            for variant in plan.variants:
                found = (variant.model, variant.batch_size, variant.precision, variant.execution_mode)
                if found == (self.model, self.batch_size, self.precision, self.mode) and (
                    self.option is None or variant.options[self.option[0]] == self.option[1]
                ):
                    return measurement_of(plan, variant)
        raise LookupError(f"experiments.yaml has no {self.name}")


BY_DAY = (
    Asked("mnist_1", "cnn", 256, "fp32", "step.jit_graph"),
    Asked("mnist_1", "cnn", 256, "bf16", "scan.jit_graph"),
    Asked("cifar10_3", "cnn", 64, "fp32", "grouped.jit_graph", option=("output", "clipped_sum")),
    Asked("cifar10_6", "cnn", 32, "fp32", "grad_of_vmap.jit_graph", option=("models", 8)),
    Asked("molpcba_1", "gcn", 256, "fp32", "sorted_sums.jit_graph"),
    Asked("enwik8_5", "gpt_nano", 32, "bf16", "cudnn_attention.jit_graph"),
    Asked("cifar10_5", "resnet18", 32, "tf32", "forward.jit_graph"),
    # Attention written out, with its backward pass.
    Asked("enwik8_1", "gpt_nano", 64, "bf16", "step.jit", gpus=("h100",)),
)
"""Convolutions, products, attention, sums over graphs, a scan, stacked models; training, per-sample gradients and
inference; each precision. Together they take two minutes on two quiet cores."""


@cache
def plans(benchmarks: tuple[str, ...] = (), use_cases: tuple[int, ...] = (1, 3, 5, 6)) -> list[JobPlan]:
    """JAX's, on one device, with every declared variant; of all benchmarks, where none is named."""
    config = load_config(REPOSITORY / "experiments.yaml")
    selection = Selection(
        gpus=("any",),
        benchmarks=benchmarks or tuple(config.benchmarks),
        use_cases=use_cases,
        frameworks=("jax",),
        data="sample",
        full=True,
    )
    return [plan for pair in expand(config, selection) for plan in pair.jobs]


def measurement_of(plan: JobPlan, variant: Variant) -> Measurement:
    return next(iter(plan.replicates([variant])))


def each_formulation(plan: JobPlan, gpu: GpuSpec) -> Iterator[Measurement]:
    """Of each model, in bf16 and fp32, plain and as CUDA graphs: the first of its variants."""
    seen = set()
    for variant in plan.variants:
        mode = use_case(plan.cell.use_case_name).mode("jax", variant.execution_mode)
        kind = (variant.model, variant.precision, mode.formulation, mode.graph)
        if (
            (mode.run_as, mode.layout, mode.run.overlaps) == ("compiled", "own", False)
            and variant.precision in ("bf16", "fp32")
            and NEEDED_CAPABILITY.get(variant.precision, 0) <= gpu.sm / 10
            and kind not in seen
        ):
            seen.add(kind)
            yield measurement_of(plan, variant)


def each_variant(plan: JobPlan) -> Iterator[Measurement]:
    """All that is declared, at the smallest batch size: another changes nothing of whether it can be built."""
    smallest = min(variant.batch_size for variant in plan.variants)
    for variant in plan.variants:
        if variant.batch_size == smallest:
            yield measurement_of(plan, variant)


# The processes


class Request(Frozen):
    gpu: str
    """A key of GPU_SPECS."""
    measurements: list[Measurement]


class Examined(Frozen):
    """The result of building, and unless only lowered of compiling, one program."""

    name: str
    outcome: Outcome
    reason: str | None = None
    broken: dict[str, str] = {}
    """By rule: what breaks it."""
    library_calls: dict[str, int] = {}
    layout_kernels: int = 0
    """Kernels that only move data."""
    layout_bytes: int | None = None
    """Bytes that these kernels write."""
    peak_bytes: int | None = None


def name_of(measurement: Measurement) -> str:
    cell = measurement.cell
    return f"{cell.benchmark}_{cell.use_case}-{measurement.variant.key}"


def examine(gpu: str, measurements: Iterable[Measurement], *words: str) -> list[Examined]:
    """Return the scatter-add's result and one for each measurement, of a process of their own. With the word `planted`:
    those of the planted programs; with `lower_only`: those of the measurements alone. Raises AssertionError where the
    process fails."""
    request = Request(gpu=gpu, measurements=list(measurements)).model_dump_json()
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    answer = output_of("-m", "tests.gpu_compile.examine", *words, input=request, env=variables, quiet_s=7200)
    return [Examined.model_validate_json(line) for line in answer.splitlines()]
