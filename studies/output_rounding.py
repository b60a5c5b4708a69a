"""How far does rounding alone move the outputs of inference? By precision and model (docs/studies/output_rounding.md).

    python -m studies.output_rounding            prints the table
    python -m studies.output_rounding --publish  also writes results/published/statistics/output_rounding.json

The tolerances of use case 5's check rest on this. The program that PyTorch runs eagerly, with drawn weights and
BatchNorm folded, answers the batches of the check; they are compared with the model in float64 by the two numbers of
that check (harness/work/use_cases/inference.py).

All of it runs on a CPU. So tf32 is imitated: the operands of every product are rounded to 10 bits of mantissa
(studies/rounding.py). The weights of attention, which one kernel keeps to itself, are not. fp32, bf16 and fp16 are
PyTorch's own. JAX rounds in the same way; only the order of its sums differs.
"""

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.measurement import make_measurement
from harness.measure.process import make_session
from harness.plan import Precision
from harness.work.use_cases.inference import output_errors
from pipeline.markdown import markdown_table
from studies.published import PUBLISHED, Simulated, run_simulation
from studies.rounding import to_tf32
from torch_runner.device import Device
from torch_runner.use_cases.inference import Inference
from torch_runner.weights import to_neutral

RECORD = PUBLISHED / "output_rounding.json"
BATCH_SIZE = 32
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
CASES: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("mnist", "cnn", {}),
    ("cifar10", "cnn", {}),
    ("cifar10", "resnet18", {}),
    ("imagenet100", "resnet50", {"image_size": 64}),
    ("imagenet100", "vit_b_16", {"image_size": 64}),
    ("imagenet100", "mobilenet_v3_small", {"image_size": 64}),
    ("imagenet100", "efficientnet_b0", {"image_size": 64}),
    ("enwik8", "gpt_nano", {}),
    ("molpcba", "gcn", {}),
    ("molpcba", "graphnet", {}),
)
"""Benchmark, model, sizes."""

aten = torch.ops.aten
OPERANDS: dict[Any, tuple[int, ...]] = {
    aten.linear.default: (0, 1),
    aten.matmul.default: (0, 1),
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.conv2d.default: (0, 1),
    aten.convolution.default: (0, 1),
    aten.scaled_dot_product_attention.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
}
"""Of each operator that multiplies, the arguments that a tensor core would round."""
PRODUCT_WORDS = ("mm", "mv", "conv", "linear", "attention", "dot", "einsum")
NO_PRODUCTS = ("convert", "clamp", "comm")


class Tf32Operators(TorchDispatchMode):
    """Every product in imitated tf32.

    Raises:
        NotImplementedError: an operator that looks like a product and is not known.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rounded = OPERANDS.get(function)
        if rounded is None:
            name = function.name().removeprefix("aten::")
            if any(word in name for word in PRODUCT_WORDS) and not any(word in name for word in NO_PRODUCTS):
                raise NotImplementedError(f"{function}: which of its arguments does tf32 round?")
            return function(*args, **(kwargs or {}))
        given = [to_tf32(value) if index in rounded else value for index, value in enumerate(args)]
        return function(*given, **(kwargs or {}))


def errors(benchmark: str, model: str, sizes: Mapping[str, Any], precision: Precision) -> tuple[float, float]:
    """Relative: of the outputs together, and of the worst sample's less the mean over samples."""
    measurement = make_measurement(
        "torch",
        "inference",
        benchmark=benchmark,
        model=model,
        batch_size=BATCH_SIZE,
        execution_mode="forward.eager",
        options={"batch_norm": "folded", "inputs": "on_device"},
        sizes=sizes,
    )
    stored = "fp32" if precision == "tf32" else precision
    variant = measurement.variant.model_copy(update={"precision": stored})
    device = Device()
    device.set_up("fp32")  # nobody runs half precision without a GPU, but the program of it works
    program = Inference(make_session(measurement.model_copy(update={"variant": variant}), device))
    with Tf32Operators() if precision == "tf32" else nullcontext():
        actual = [to_neutral({"": own(program.answer_to(batch))})[""] for batch in program.requests.checked()]
    whole, of_samples = output_errors(actual, program.reference_on(program.device))
    return whole, float(of_samples.max())


def own(outputs: Tensor) -> Tensor:
    """The next answer may overwrite it."""
    return outputs.clone()


def simulate() -> Simulated:
    """The record: for each case and precision the two errors."""
    cases = []
    for benchmark, model, sizes in CASES:
        for precision in PRECISIONS:
            whole, worst = errors(benchmark, model, sizes, precision)
            case = {"benchmark": benchmark, "model": model, "sizes": dict(sizes), "precision": precision}
            cases.append(case | {"all": float(f"{whole:.2g}"), "worst_sample": float(f"{worst:.2g}")})
    return {"schema_version": 1, "batch_size": BATCH_SIZE, "torch": torch.__version__, "cases": cases}


def table(record: Simulated) -> str:
    """Markdown: the error of all outputs together and, behind it, of the worst sample's."""
    cells = {
        (case["benchmark"], case["model"], case["precision"]): f"{case['all']:.0e} ({case['worst_sample']:.0e})"
        for case in record["cases"]
    }
    rows = [
        [benchmark, model, *(cells[benchmark, model, precision] for precision in PRECISIONS)]
        for benchmark, model, _ in CASES
    ]
    return markdown_table(["benchmark", "model", *PRECISIONS], rows)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the sums' order, and so the last digits, are then the same on every run
    sys.exit(run_simulation(sys.argv[1:], about=__doc__, record=RECORD, simulate=simulate, table=table))
