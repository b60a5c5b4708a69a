"""Use case 6: what "N models at once" means in both frameworks: learning rates, batches, and the check against models
trained alone. Numbers only, no framework.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.plan import Frozen, Precision
from harness.results.record import Check
from harness.work.closeness import (
    OUTPUTS,
    TOLERANCES,
    Tensors,
    check_errors,
    check_worst,
    errors_of_items,
    errors_of_tensors,
)
from harness.work.datasets import Dataset
from harness.work.declared import (
    CONVOLUTIONS,
    JAX_RUNS,
    TORCH_RUNS,
    Benchmark,
    Formulation,
    Layer,
    Model,
    UseCase,
)
from harness.work.graphs import Given
from harness.work.weights import Draw, initial_weight


class Options(Frozen):
    models: int = Field(ge=1)
    """How many are trained side by side."""
    batches: Literal["different", "same"]
    """Whether every model has a batch of its own, or all see one."""
    learning_rates: Literal["one", "separate"]
    """Whether all have the same, or each its own down to a tenth of `learning_rate`."""
    work: Literal["training_step", "forward"] = "training_step"
    """All of a step, or the models' outputs alone, without anything that a gradient would need."""


class Settings(Frozen):
    """SGD, without weight decay."""

    learning_rate: float = Field(gt=0)
    """The highest one; see the option `learning_rates`."""
    momentum: float = Field(ge=0, le=1)
    """Of SGD."""


TRAINED = {"work": frozenset({"training_step"})}
"""Of formulations that are another one where nothing is trained."""
KNOWN = frozenset({Layer.DENSE, Layer.CONVOLUTION})
"""Layers that have a form for a batch of models."""
DENSE = frozenset({Layer.DENSE})


def why_not_options(_benchmark: Benchmark, _model: Model, options: Mapping[str, Any], _devices: int) -> str | None:
    if options.get("work") == "forward" and options.get("learning_rates") == "separate":
        return "work: forward has no learning rates that could be separate"
    return None


USE_CASE = UseCase(
    name="many_models",
    about="train many small models at once",
    work="Many of {model} at once",
    why_not_options=why_not_options,
    options=Options,
    settings=Settings,
    parameter_passes=lambda _settings: 5,  # SGD with momentum, as use case 1 counts it
    without={Layer.BATCH_NORM: "BatchNorm's running statistics are no weights, and not every formulation stacks them"},
    one_device=True,
    headline={"jax": "vmap.jit", "torch": "vmap.compiled"},
    formulations={
        "jax": (
            Formulation(name="vmap", about="`jax.vmap` over stacked parameters", runs=JAX_RUNS),
            Formulation(
                name="side_by_side",
                about="the same with the models' axis beside the channels of images and kernels, where a grouped "
                "convolution has it",
                runs=JAX_RUNS,
                needs=CONVOLUTIONS,
            ),
            Formulation(
                name="grad_of_vmap",
                about="as `vmap`, with the gradient of the sum of all losses, which is each model's own",
                runs=JAX_RUNS,
                options=TRAINED,
            ),
            Formulation(
                name="grad_of_side_by_side",
                about="as `side_by_side`, with that gradient",
                runs=JAX_RUNS,
                needs=CONVOLUTIONS,
                options=TRAINED,
            ),
            Formulation(
                name="patches",
                about="`vmap` of a model whose convolutions are matrix products of patches",
                runs=JAX_RUNS,
                needs=CONVOLUTIONS,
            ),
            Formulation(
                name="unrolled",
                about="a Python loop over the models, unrolled inside one jitted program",
                runs=JAX_RUNS,
                is_loop=True,
            ),
            Formulation(name="map", about="`jax.lax.map`: a loop in the program", runs=JAX_RUNS),
        ),
        "torch": (
            Formulation(name="loop", about="N modules, one after the other", runs=TORCH_RUNS, is_loop=True),
            Formulation(
                name="conv1d_loop",
                about="the same with dense layers as `Conv1d` of kernel 1",
                runs=TORCH_RUNS,
                knows=DENSE,
            ),
            Formulation(
                name="streams",
                about="the loop, each model's work in a CUDA stream of its own; on GPUs only",
                runs=TORCH_RUNS,
                options=TRAINED,
            ),
            Formulation(
                name="grouped_conv1d",
                about="dense layers of all models as one `Conv1d` of kernel 1 with N groups",
                runs=TORCH_RUNS,
                knows=DENSE,
            ),
            Formulation(
                name="batched",
                about="dense layers as one batched product (`baddbmm`), convolutions as one with N groups",
                runs=TORCH_RUNS,
                knows=KNOWN,
            ),
            Formulation(
                name="patches",
                about="dense layers and convolutions as one batched product of patches",
                runs=TORCH_RUNS,
                needs=CONVOLUTIONS,
                knows=KNOWN,
            ),
            Formulation(name="vmap", about="`torch.func`: `stack_module_state` and `vmap`", runs=TORCH_RUNS),
        ),
    },
)

MODELS_FOR_A_MEDIAN = 3
CHECK_STEPS = 2
"""The second step is the first that momentum has a part in."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """A few steps of training of N models."""

    losses: NDArray[np.float64]
    """[steps, models]; each before its step."""
    updates: Mapping[str, NDArray[np.float64]]
    """By neutral name, [models, ...]: the weights afterwards less the initial ones."""


def model_seed(seed: int, index: int) -> int:
    """Model `index` has the initial weights that a model alone has with this seed."""
    return seed + index


def learning_rates(base: float, models: int, spread: str) -> NDArray[np.float64]:
    """[models]. `separate`: from `base` down to a tenth of it, in equal ratios, as in a sweep; `one`: all `base`."""
    return base * (np.geomspace(1, 0.1, models) if spread == "separate" else np.ones(models))


def leading_axes(models: int, batch_size: int, batches: str) -> tuple[int, ...]:
    """`different`: every model has a batch of its own; `same`: one batch is for all."""
    return (models, batch_size) if batches == "different" else (batch_size,)


def first_batch(dataset: Dataset, lead: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """The first samples of the training set, [*lead, ...]; from its start again where it is too short."""
    rows = np.arange(math.prod(lead)) % dataset.train_count
    return {name: np.asarray(array[rows]).reshape(*lead, *array.shape[1:]) for name, array in dataset.train.items()}


def given_batches(dataset: Dataset, lead: tuple[int, ...]) -> list[Given]:
    """Each model's batch, for a task whose samples differ in size."""
    if "node_count" not in dataset.train:
        return []
    rows = np.arange(math.prod(lead)) % dataset.train_count
    return [Given(arrays=dataset.train, batches=rows.reshape(-1, lead[-1]))]


def drawn_batch(seed: int, lead: tuple[int, ...], shape: tuple[int, ...], classes: int) -> dict[str, NDArray[Any]]:
    """Normal inputs [*lead, *shape] and labels [*lead]: the same numbers for both frameworks, for checks and parity.

    What is timed is drawn on the device by the framework's own generator instead.
    """
    generator = np.random.default_rng([seed, zlib.crc32(b"synthetic batch")])
    inputs = generator.standard_normal((*lead, *shape), np.float32)
    return {"inputs": inputs, "labels": generator.integers(0, classes, lead, np.int32)}


def check_course(actual: Course, alone: Course, precision: Precision) -> list[Check]:
    """The program that will be timed against every model trained alone in float64.

    The tolerances are those of closeness.py, for the reasons given there. Two models have no median that one of
    them alone could not move; that over all their tensors is taken there.

    Raises:
        CheckFailed: a model came out otherwise; the variant is then recorded as failed and never timed.
    """
    against = "against models trained alone in float64"
    losses = errors_of_items({"loss": actual.losses.T}, {"loss": alone.losses.T})
    # A loss is continuous: no path that rounding opens can move it by much.
    of_losses = check_worst(f"losses of the first steps {against}", losses, "model", TOLERANCES[precision].typical)
    name = f"weight updates of {CHECK_STEPS} steps {against}"
    of_models = errors_of_items(actual.updates, alone.updates)
    if len(of_models) >= MODELS_FOR_A_MEDIAN:
        return [of_losses, *check_errors(name, of_models, "model", TOLERANCES[precision])]
    of_tensors = errors_of_tensors(actual.updates, alone.updates)
    return [of_losses, *check_errors(name, of_tensors, "tensor", TOLERANCES[precision], worst=float(of_models.max()))]


def check_forward(actual: NDArray[np.float64], alone: NDArray[np.float64], precision: Precision) -> list[Check]:
    """The outputs of the program that will be timed against every model's alone in float64, [models, batch, ...] each.

    Raises:
        CheckFailed: a model's are others; the variant is then recorded as failed and never timed.
    """
    errors = errors_of_items({"outputs": actual}, {"outputs": alone})
    return [check_worst("outputs against models alone in float64", errors, "model", OUTPUTS[precision].typical)]


def added_to_weights(weights: Tensors, seed: int, draw: Draw = initial_weight) -> dict[str, NDArray[np.float64]]:
    """Of N models, [models, ...]: weights less the initial ones, in which a difference would drown."""
    return {
        name: value - np.stack([draw(model_seed(seed, i), name, value.shape[1:]) for i in range(len(value))])
        for name, value in weights.items()
    }
