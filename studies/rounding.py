"""How far does rounding alone move gradients? By precision and model (docs/studies/rounding.md).

    python -m studies.rounding            prints the table
    python -m studies.rounding --publish  also writes results/published/statistics/rounding.json

The tolerances of the checks before the clock rest on this. Each model is trained alone, once in float64 and once in the
precision, from the same weights on the same numbers. The study compares the weight updates: of two steps with momentum
on a batch, as use case 6 checks them, and of one step on one sample, which is a per-sample gradient. The error is that
of harness/work/closeness.py, relative and L2 over all parameters of one model.

All of it runs on a CPU. So tf32 is imitated: the operands of every matrix product and convolution are rounded to 10
bits of mantissa, to nearest and ties to even, forward and backward. fp32 and bf16 (autocast) are PyTorch's own. JAX
rounds in the same way; only the order of its sums differs.
"""

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from harness.plan import Precision
from harness.work.benchmarks.synthetic import Sizes, class_count, input_shape
from harness.work.closeness import errors_of_items
from harness.work.use_cases.many_models import CHECK_STEPS, drawn_batch, model_seed
from pipeline.markdown import markdown_table
from studies.published import PUBLISHED, Simulated, run_simulation
from torch_runner.weights import load_initial_weights

RECORD = PUBLISHED / "rounding.json"
SEED = 0
MODELS = 48
"""How many of each are trained, each from its own weights on its own numbers."""
LEARNING_RATE = 0.1
MOMENTUM = 0.9
CASES = (
    ("synthetic", "linear", 32),
    ("synthetic", "conv2d", 32),
    ("synthetic", "mlp", 32),
    ("synthetic", "convnet", 32),
    ("mnist", "cnn", 32),
    ("mnist", "cnn", 1),
    ("cifar10", "cnn", 32),
    ("cifar10", "cnn", 1),
    ("cifar10", "resnet18", 64),
)
"""Benchmark, model, batch size. A batch of one is one sample's gradient."""
FEWER = {"resnet18": 6}
"""Of the models that take long."""
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
IMAGES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}

Updates = dict[str, NDArray[np.float64]]


def to_tf32(values: Tensor) -> Tensor:
    """float32 with 10 bits of mantissa: to nearest, ties to even."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


class RoundedLinear(torch.autograd.Function):
    """torch.nn.functional.linear of two axes, in imitated tf32."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        context.save_for_backward(inputs, weight)
        return to_tf32(inputs) @ to_tf32(weight).T + bias

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        inputs, weight = context.saved_tensors
        rounded = to_tf32(gradient)
        return rounded @ to_tf32(weight), rounded.T @ to_tf32(inputs), gradient.sum(0)


class RoundedConvolution(torch.autograd.Function):
    """torch.conv2d, in imitated tf32."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
        context.save_for_backward(inputs, weight)
        context.stride, context.padding, context.has_bias = stride, padding, bias is not None
        return torch.conv2d(to_tf32(inputs), to_tf32(weight), bias, stride, padding)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inputs, weight = context.saved_tensors
        rounded, how = to_tf32(gradient), (context.stride, context.padding)
        of_inputs = torch.nn.grad.conv2d_input(inputs.shape, to_tf32(weight), rounded, *how)
        of_weight = torch.nn.grad.conv2d_weight(to_tf32(inputs), weight.shape, rounded, *how)
        return of_inputs, of_weight, gradient.sum((0, 2, 3)) if context.has_bias else None, None, None


class Tf32(TorchFunctionMode):
    """Linear layers and convolutions in imitated tf32."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rounded = {F.linear: RoundedLinear, F.conv2d: RoundedConvolution}.get(function)
        if rounded is None:
            return function(*args, **(kwargs or {}))
        taken = 3 if rounded is RoundedLinear else 5
        if kwargs or any(value not in (1, (1, 1)) for value in args[taken:]):
            raise NotImplementedError(f"{function.__name__} with {kwargs} and {args[taken:]}")
        with torch._C.DisableTorchFunction():
            return rounded.apply(*args[:taken])


ARITHMETIC: dict[Precision, Callable[[], AbstractContextManager[Any]]] = {
    "fp32": nullcontext,
    "tf32": Tf32,
    "bf16": lambda: torch.autocast("cpu", torch.bfloat16),
}


def updates(model: nn.Module, inputs: Tensor, labels: Tensor, arithmetic: AbstractContextManager[Any]) -> Updates:
    """What the steps have added to the weights, in the model's own precision."""
    initial = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)
    for _ in range(CHECK_STEPS if len(labels) > 1 else 1):
        optimizer.zero_grad()
        with arithmetic:
            logits = model(inputs)
        F.cross_entropy(logits.to(inputs.dtype), labels).backward()
        optimizer.step()
    return {name: (parameter.detach() - initial[name]).double().numpy() for name, parameter in model.named_parameters()}


def errors(benchmark: str, name: str, batch_size: int, count: int) -> dict[Precision, NDArray[np.float64]]:
    """Of each of `count` models, [models]."""
    module = importlib.import_module(f"torch_runner.models.{benchmark}")
    shape = IMAGES.get(benchmark) or input_shape(name, Sizes())
    classes = 10 if benchmark in IMAGES else class_count(name, Sizes())
    batch = drawn_batch(SEED, (count, batch_size), shape, classes)

    def updates_of(index: int, dtype: torch.dtype, arithmetic: AbstractContextManager[Any]) -> Updates:
        model = module.make_model(name, Sizes())
        load_initial_weights(model, model_seed(SEED, index))
        own = torch.from_numpy(batch["inputs"][index]).to(dtype), torch.from_numpy(batch["labels"][index]).long()
        return updates(model.to(dtype), *own, arithmetic)

    found: dict[Precision, list[float]] = {precision: [] for precision in PRECISIONS}
    for index in range(count):
        expected = updates_of(index, torch.float64, nullcontext())
        for precision in PRECISIONS:
            actual = updates_of(index, torch.float32, ARITHMETIC[precision]())
            one = [{tensor: value[None] for tensor, value in of.items()} for of in (actual, expected)]
            found[precision].append(float(errors_of_items(*one)[0]))
    return {precision: np.array(of_models) for precision, of_models in found.items()}


def simulate(count: int = MODELS) -> Simulated:
    """The record: for each case and precision the median error and the largest."""
    cases = []
    for benchmark, model, batch_size in CASES:
        own_count = min(count, FEWER.get(model, count))
        for precision, of_models in errors(benchmark, model, batch_size, own_count).items():
            case = {"benchmark": benchmark, "model": model, "batch_size": batch_size, "precision": precision}
            numbers = {"median": float(f"{np.median(of_models):.2g}"), "largest": float(f"{of_models.max():.2g}")}
            cases.append(case | numbers)
    return {"schema_version": 1, "models": count, "seed": SEED, "torch": torch.__version__, "cases": cases}


def table(record: Simulated) -> str:
    """Markdown: the median error and, behind it, the largest."""
    cells = {
        (case["benchmark"], case["model"], case["batch_size"], case["precision"]): (
            f"{case['median']:.0e} ({case['largest']:.0e})"
        )
        for case in record["cases"]
    }
    rows = [
        [benchmark, model, str(batch_size), *(cells[benchmark, model, batch_size, p] for p in PRECISIONS)]
        for benchmark, model, batch_size in CASES
    ]
    return markdown_table(["benchmark", "model", "batch", *PRECISIONS], rows)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the sums' order, and so the last digits, are then the same on every run
    sys.exit(run_simulation(sys.argv[1:], about=__doc__, record=RECORD, simulate=simulate, table=table))
