"""Use cases 1 and 2: train a model on one GPU, or on several. What both frameworks share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.errors import CheckFailed, ConfigError
from harness.plan import Frozen, Precision
from harness.results.record import Check, EpochPoint
from harness.work.augmentation import crops_of_steps
from harness.work.chunks import Arrays, sample_bytes
from harness.work.closeness import (
    LOSSES,
    TOLERANCES,
    WITH_BATCH_NORM,
    check_error,
    check_errors,
    errors_of_tensors,
    relative_error,
)
from harness.work.declared import (
    COMPILED,
    COMPILED_GRAPH,
    CONVOLUTIONS,
    EAGER,
    JAX_RUNS,
    JIT,
    JIT_GRAPH,
    OVERLAP,
    PROCESS_PER_NODE,
    TORCH_RUNS,
    Benchmark,
    Formulation,
    Layer,
    Model,
    Run,
    UseCase,
)
from harness.work.graphs import balanced
from harness.work.schedule import Schedule, rates_of_steps
from harness.work.tasks import Metric
from harness.work.weights import batch_order


class Options(Frozen):
    parameters: Literal["replicated", "sharded"] = "replicated"
    """On several devices: whole on each, or a part of each parameter on each (PyTorch's FSDP2, JAX's NamedSharding)."""


REPLICATED = {"parameters": frozenset({"replicated"})}
"""Of formulations that say how whole gradients are averaged."""


def why_not_options(_benchmark: Benchmark, model: Model, options: Mapping[str, Any], devices: int) -> str | None:
    if options.get("parameters") != "sharded":
        return None
    if devices == 1:
        return "parameters: sharded is for several devices"
    if unwanted := model.layers & {Layer.BATCH_NORM, Layer.GRAPH}:
        return f"parameters: sharded is for models without {min(unwanted)}: JAX would see one batch for many devices'"
    return None


class Settings(Frozen):
    """The optimizer and its schedule are the same in both frameworks (harness/work/optimizers.py has the formulas)."""

    epochs: int = Field(ge=1)
    """Passes over the training set."""
    learning_rate: float = Field(gt=0)
    """The rate after the warm-up, where the schedule begins."""
    momentum: float = Field(ge=0, le=1)
    """Of SGD only, without Nesterov and dampening."""
    weight_decay: float = Field(ge=0)
    """SGD: of all parameters, a part of the gradient. AdamW: of those with two axes and more, beside the gradient."""
    target_metric: float = Field(ge=0)
    """Time to target is the training time until the test metric reaches this value, in its own unit."""
    schedule: Schedule = "constant"
    """Of the learning rate after the warm-up: constant, or down to zero by half a cosine."""
    warmup_epochs: float = Field(default=0, ge=0)
    """Epochs in which the learning rate rises linearly; fractions are allowed."""
    label_smoothing: float = Field(default=0, ge=0, le=1)
    """Share of the label that is spread evenly over all classes, in the loss of training only."""
    augmentation: Literal["none", "crop_and_flip"] = "none"
    """Random resized crops, half of them flipped, cut on the device inside the timed step."""
    weights: Literal["drawn", "pretrained"] = "drawn"
    """Initial weights: drawn from the seed, or those that torchvision publishes for ImageNet."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW; the formulas are in harness/work/optimizers.py."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Of AdamW only: the share of the first moment that a step keeps."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Of AdamW only: the share of the second moment that a step keeps."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Of AdamW only: added to the root of the second moment."""
    max_gradient_norm: float = Field(default=0, ge=0)
    """Largest L2 norm of the whole gradient, to which a larger one is scaled down; 0 does not clip."""
    epoch_steps: int = Field(default=0, ge=0)
    """Steps of an epoch at most, its first ones; 0 is all. Schedule and evaluation go by such epochs."""
    evaluation_samples: int = Field(default=0, ge=0)
    """Samples of the test set that are evaluated at most, the first ones; 0 is all."""


FORWARD_PASSES = 3
"""The usual count: a layer's backward pass has two products of the size of its forward one, for the gradients of its
weights and of its inputs (Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1)."""


HALF: frozenset[Precision] = frozenset({"bf16", "fp16"})
ATTENTION = frozenset({Layer.ATTENTION})
NEEDS_HALF = {"cudnn": HALF, "flash": HALF}
"""Kernels of attention that take half precision only."""


def attention(kernel: str, runs: tuple[Run, ...], *, about: str, captures_several_devices: bool = True) -> Formulation:
    """Attention in one kernel; `plain` keeps the scores in memory."""
    return Formulation(
        name=f"{kernel}_attention",
        about=about,
        runs=runs,
        needs=ATTENTION,
        precisions=NEEDS_HALF.get(kernel),
        captures_several_devices=captures_several_devices,
    )


CUDNN_ATTENTION = attention("cudnn", JAX_RUNS, about="attention is cuDNN's fused kernel; else it is written out")
TAPS = Formulation(
    name="taps",
    about="depthwise convolutions as sums of shifted products, one for each place of the kernel",
    runs=JAX_RUNS,
    needs=frozenset({Layer.DEPTHWISE}),
)
SORTED_SUMS = Formulation(
    name="sorted_sums",
    about="XLA is told which sums over nodes and edges are of sorted rows; else they are scatters",
    runs=JAX_RUNS,
    needs=frozenset({Layer.GRAPH}),
)
SORTED_SUMS_OF_TORCH = Formulation(
    name="sorted_sums",
    about="`segment_reduce` adds up sorted rows, without atomic additions; else `index_add` does",
    runs=(EAGER, COMPILED, COMPILED_GRAPH),
    needs=frozenset({Layer.GRAPH}),
    captures_several_devices=False,
)
ANY_CONVOLUTION = CONVOLUTIONS | {Layer.PATCH_PROJECTION}
NCHW = Run(name="nchw", layout="nchw", needs=ANY_CONVOLUTION, about="XLA is made to lay out convolutions as NCHW")
# Where tensor cores compute in TF32, XLA takes NCHW before Hopper; of bf16 it takes NHWC by itself.
NHWC = Run(
    name="nhwc",
    layout="nhwc",
    about="XLA is made to lay out convolutions as NHWC, which for TF32 it does by itself from Hopper on",
    needs=CONVOLUTIONS,
    precisions=frozenset({"tf32"}),
)
NHWC_GRAPH = replace(NHWC, name="nhwc_graph", graph="step", about="`nhwc` and `jit_graph` together")


def parameter_passes(settings: Mapping[str, Any]) -> int:
    """Read and written are the parameter and what is kept of it, one momentum or two moments; the gradient is read."""
    return {"sgd": 5, "adamw": 7}[Settings.model_validate(settings).optimizer]


USE_CASE = UseCase(
    name="train",
    about="train a model, epoch by epoch",
    work="Train {model}",
    options=Options,
    why_not_options=why_not_options,
    settings=Settings,
    parameter_passes=parameter_passes,
    needs_data=True,
    forward_passes=FORWARD_PASSES,
    headline={"jax": "step.jit", "torch": "step.compiled"},
    formulations={
        "jax": (
            Formulation(
                name="step",
                about="one jitted call for each step, state donated",
                runs=(*JAX_RUNS, NCHW, NHWC, NHWC_GRAPH, OVERLAP, PROCESS_PER_NODE),
            ),
            Formulation(
                name="scan",
                about="`lax.scan` over the steps of an epoch; of data in chunks, as many as divide an epoch and fit in",
                runs=(JIT, JIT_GRAPH),
                several_steps=True,
            ),
            TAPS,
            CUDNN_ATTENTION,
            SORTED_SUMS,
        ),
        "torch": (
            Formulation(
                name="step",
                about="one optimizer step; on several GPUs DistributedDataParallel averages the gradients",
                runs=(
                    *TORCH_RUNS,
                    Run(
                        name="reduce_overhead",
                        graph="parts",
                        about="what is compiled is replayed as CUDA graphs; the rest of the step stays in Python",
                    ),
                ),
                captures_several_devices=False,
            ),
            Formulation(
                name="unsplit",
                about="without Dynamo's cuts for DistributedDataParallel: one graph, and no overlap",
                runs=(COMPILED,),
                options=REPLICATED,
                min_devices=2,
            ),
            *(
                attention(kernel, (COMPILED, COMPILED_GRAPH), about=about, captures_several_devices=False)
                for kernel, about in (
                    ("flash", "`scaled_dot_product_attention` takes FlashAttention"),
                    ("cudnn", "it takes cuDNN's kernel"),
                    ("efficient", "it takes the memory-efficient kernel, its own choice for float32"),
                    ("plain", "attention is written out; the scores stay in memory"),
                )
            ),
            SORTED_SUMS_OF_TORCH,
            Formulation(
                name="flat",
                about="one all-reduce averages the gradients after the backward pass, and can be captured",
                runs=TORCH_RUNS,
                options=REPLICATED,
                min_devices=2,
            ),
            Formulation(
                name="epoch",
                about="up to 16 steps in one CUDA graph, as many as divide an epoch: the counterpart of `scan`",
                runs=(COMPILED_GRAPH,),
                several_steps=True,
                captures_several_devices=False,
            ),
        ),
    },
)


EVALUATION_BATCH = 1000
EVALUATION_BYTES = 2**25
"""Of a batch of the test set, at most: large images go in smaller batches."""
EVALUATION_OUTPUTS = 2**28
"""Numbers that the model gives for such a batch, at most."""


def evaluation_batch(test: Arrays, outputs: int = 0) -> int:
    """Samples.

    Args:
        outputs: numbers that the model gives for a sample, where there are many (`Benchmark.outputs`).
    """
    of_outputs = EVALUATION_OUTPUTS // outputs if outputs else EVALUATION_BATCH
    return max(1, min(EVALUATION_BATCH, EVALUATION_BYTES // sample_bytes(test), of_outputs))


def evaluation_count(settings: Settings, test_count: int) -> int:
    """How many samples of the test set are evaluated after each epoch."""
    return min(settings.evaluation_samples or test_count, test_count)


def steps_in_epoch(settings: Settings, train_count: int, batch_size: int) -> int:
    whole = train_count // batch_size
    return min(settings.epoch_steps or whole, whole)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What the steps of all epochs get, the same in both frameworks."""

    order: NDArray[np.int32]
    """[steps, batch]: rows of the training set."""
    rates: NDArray[np.float32] | None
    """[steps]; None where all are `learning_rate`."""
    crops: NDArray[np.int32] | None
    """[steps, batch, CROP_FIELDS] (harness/work/augmentation.py); None where images stay as they are."""
    learning_rate: float

    def rate(self, step: int) -> float:
        """For a reference; with the last bit of what the device gets."""
        return self.learning_rate if self.rates is None else float(self.rates[step % len(self.rates)])


def evaluation_rows(settings: Settings, test: Arrays, outputs: int) -> list[NDArray[np.int64]]:
    """The batches that what is evaluated of the test set is evaluated in. `outputs`: see `evaluation_batch`."""
    count = evaluation_count(settings, len(next(iter(test.values()))))
    rows, at_once = np.arange(count), evaluation_batch(test, outputs)
    return [rows[first : first + at_once] for first in range(0, count, at_once)]


def steps_of(settings: Settings, seed: int, train: Arrays, batch_size: int, balanced_by: str | None = None) -> Steps:
    """
    Args:
        balanced_by: the array with the samples' sizes, where these differ (`Task.balanced_by`).

    Raises:
        ConfigError: images are to be cut and there are none.
    """
    count = len(next(iter(train.values())))
    steps_per_epoch = steps_in_epoch(settings, count, batch_size)
    of_epochs = batch_order(seed, count, batch_size, settings.epochs).reshape(settings.epochs, -1, batch_size)
    order = of_epochs[:, :steps_per_epoch].reshape(-1, batch_size)
    if balanced_by:
        order = balanced(order, train[balanced_by], steps_per_epoch)
    rates = crops = None
    if settings.schedule != "constant" or settings.warmup_epochs:
        rates = rates_of_steps(
            settings.learning_rate,
            settings.schedule,
            epochs=settings.epochs,
            warmup_epochs=settings.warmup_epochs,
            steps_per_epoch=steps_per_epoch,
        )
    if settings.augmentation == "crop_and_flip":
        if "images" not in train:
            raise ConfigError(f"augmentation: crop_and_flip is for images; this training set has {', '.join(train)}")
        height, width = train["images"].shape[1:3]
        crops = crops_of_steps(seed, order, steps_per_epoch, count, height, width)
    return Steps(order=order, rates=rates, crops=crops, learning_rate=settings.learning_rate)


CHECK_STEPS = 2
"""The second step is the first that momentum has a part in, and AdamW's two moments."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """The first CHECK_STEPS steps of training from the initial weights."""

    losses: NDArray[np.float64]
    """[steps]; each the mean over the whole batch, before its step."""
    gradients: Mapping[str, NDArray[np.float64]]
    """By neutral name, of the first step, by what the optimizer keeps of it: SGD's momentum, with weight decay in it;
    AdamW's first moment / (1 - beta1). Clipped, where it is."""
    updates: Mapping[str, NDArray[np.float64]]
    """By neutral name: the weights after all steps less the initial ones."""


def check_training(
    actual: Course, reference: Course, precision: Precision, steps: str = "the step", *, batch_norm: bool = False
) -> list[Check]:
    """The program that is timed against plain training in float64.

    Args:
        steps: which program it was, for the check's name.
        batch_norm: the model has it, which makes more of rounding.

    Raises:
        CheckFailed: it does something else, or diverges; the variant is then recorded as failed and never timed.
    """
    require_finite(actual.losses, 1)
    against = f"of {steps} against float64"
    checks: list[Check] = []
    for name, ours, theirs in (
        ("gradients", actual.gradients, reference.gradients),
        (f"updates of {CHECK_STEPS} steps", actual.updates, reference.updates),
    ):
        whole, errors = relative_error(ours, theirs), errors_of_tensors(ours, theirs)
        tolerance = (WITH_BATCH_NORM if batch_norm else TOLERANCES)[precision]
        checks += check_errors(f"{name} {against}", errors, "tensor", tolerance, worst=whole)
    return checks + check_first_losses(actual.losses, reference.losses, precision, steps)


def check_first_losses(
    actual: NDArray[np.floating], reference: NDArray[np.floating], precision: Precision, steps: str
) -> list[Check]:
    """Of as many steps as `reference` has. Raises CheckFailed."""
    errors = np.abs(actual[: len(reference)] / reference - 1)
    name = f"losses of {len(reference)} steps of {steps} against float64"
    return [check_error(name, float(errors.max()), LOSSES[precision])]


def require_finite(losses: NDArray[np.floating], epoch: int) -> None:
    """Losses of an epoch's steps, [steps]. Raises CheckFailed that names the first step that is not finite."""
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
        step = int(bad[0])
        raise CheckFailed(
            f"the loss of epoch {epoch}, step {step + 1} of {losses.size}, is {losses[step]}: training diverged. "
            f"Lower settings.learning_rate in experiments.yaml."
        )


def require_finite_evaluation(test_loss: float, epoch: int, step: int) -> None:
    """Raises CheckFailed that names the step; the last update of an epoch shows in no training loss."""
    if not math.isfinite(test_loss):
        raise CheckFailed(
            f"the test loss after epoch {epoch}, step {step} of {step}, is {test_loss}: training diverged. "
            f"Lower settings.learning_rate in experiments.yaml."
        )


def time_to_target_s(points: Sequence[EpochPoint], metric: Metric, target: float) -> float | None:
    """Training time, evaluation excluded, until the end of the first epoch in which the metric reaches the target."""
    total_s = 0.0
    for point in points:
        total_s += point.train_time_s
        if metric.reaches(point.test_metric, target):
            return total_s
    return None
