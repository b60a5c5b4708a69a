"""The models of ImageNet-100: JAX's against torchvision's, in float64, where only a mistake can make a difference.

Full models are compared by their names, shapes and outputs; gradients and statistics by reduced ones, with a block of
each kind.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torchvision import models as torchvision_models
from torchvision.models.efficientnet import MBConvConfig
from torchvision.models.resnet import Bottleneck
from torchvision.ops import StochasticDepth

from harness.work.benchmarks.imagenet100 import BENCHMARK, CLASSES, Sizes
from harness.work.declared import Layer
from harness.work.weights import initial_weight
from jax_runner.device import FLOAT64, model_dtypes
from jax_runner.layers import use_taps
from jax_runner.models import imagenet100 as jax_models
from jax_runner.models import without_values
from jax_runner.weights import arrays_of, load_weights, neutral_name, parameter_count, to_neutral, to_neutral_layout
from tests.made.operators import Operators
from tests.made.sessions import build, make_session
from torch_runner import weights as torch_weights
from torch_runner.models import imagenet100 as torch_models

pytestmark = pytest.mark.takes(20)

Numbers = dict[str, np.ndarray]

SIZES = Sizes(image_size=48)
BATCH_SIZE = 2
TOLERANCE = 1e-9
NAMES = tuple(model.name for model in BENCHMARK.models)
DRAW = np.random.default_rng(20261122)
IMAGES = DRAW.standard_normal((BATCH_SIZE, SIZES.image_size, SIZES.image_size, 3))
LABELS = DRAW.integers(0, CLASSES, BATCH_SIZE)


def random_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """No zeros and ones, behind which a mistake could hide."""
    drawn = initial_weight(7, f"{name}.weight", shape)  # uniform
    kind = name.rpartition(".")[2]
    if kind == "running_var" or (kind == "weight" and len(shape) == 1):
        return 1 + drawn / np.abs(drawn).max() / 2
    return drawn if kind in ("weight", "in_proj_weight") else drawn / np.abs(drawn).max() / 10


# The full models


@pytest.mark.parametrize("model", BENCHMARK.models, ids=lambda model: model.name)
def test_names_shapes_counts_and_constants_are_torchvisions(model: Any) -> None:
    ours = without_values(lambda: jax_models.make_model(model.name, Sizes(), model_dtypes("fp32")), jnp.float32)
    with torch.device("meta"):
        theirs = torch_models.make_model(model.name, Sizes())
    expected = {name: tuple(v.shape) for name, v in theirs.state_dict().items() if "num_batches" not in name}
    assert shapes_of(ours) == expected
    assert model.parameter_count == parameter_count(ours) == torch_weights.parameter_count(theirs)
    layers = list(theirs.modules())
    norms = {(layer.eps, layer.momentum) for layer in layers if isinstance(layer, torch.nn.BatchNorm2d)}
    assert norms == ({(model.batch_norm.epsilon, model.batch_norm.momentum)} if model.batch_norm else set())
    layer_norms = {layer.eps for layer in layers if isinstance(layer, torch.nn.LayerNorm)}
    assert layer_norms == ({jax_models.EPSILON_OF_VIT} if Layer.LAYER_NORM in model.layers else set())
    assert not any(layer.p for layer in layers if isinstance(layer, torch.nn.Dropout | StochasticDepth))


def shapes_of(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    """By neutral name, in the neutral layout."""
    flat = nnx.to_flat_state(nnx.state(model))
    empty = {path: np.broadcast_to(np.float32(0), variable.shape) for path, variable in flat}
    return {neutral_name(path): to_neutral_layout(path, value, {}).shape for path, value in empty.items()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name == "mobilenet_v3_small" else ()) for name in NAMES]
)
def test_outputs_of_full_models(name: str) -> None:
    make_jax, make_torch = (partial(module.make_model, name, SIZES) for module in (jax_models, torch_models))
    with jax.enable_x64(True):
        model = made_in_jax(lambda: make_jax(FLOAT64))
        graphdef, arrays = nnx.graphdef(evaluating(model)), arrays_of(model)
        ours = jax.jit(lambda arrays, images: nnx.merge(graphdef, arrays)(images))(arrays, IMAGES[:2])
    theirs = made_in_torch(make_torch).eval()(as_torch(IMAGES[:2]))
    assert relative(np.asarray(ours), theirs.detach().numpy()) < TOLERANCE


# Reduced models


RESNET = (2, 1, 1, 1)
EFFICIENT_STAGES = ((1, 3, 1, 16, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 32, 1))
VIT = {"depth": 2, "features": 64, "heads": 4, "hidden": 128}


def reduced_efficient_of_torch() -> torch.nn.Module:
    stages = [MBConvConfig(*stage) for stage in EFFICIENT_STAGES]
    return torchvision_models.EfficientNet(stages, dropout=0.0, stochastic_depth_prob=0.0, num_classes=CLASSES)


def reduced_vit_of_torch() -> torch.nn.Module:
    return torch_models.with_residuals_in_half(
        torchvision_models.VisionTransformer(
            image_size=SIZES.image_size,
            patch_size=jax_models.PATCH,
            num_layers=VIT["depth"],
            num_heads=VIT["heads"],
            hidden_dim=VIT["features"],
            mlp_dim=VIT["hidden"],
            num_classes=CLASSES,
        )
    )


REDUCED: dict[str, tuple[Callable[[], nnx.Module], Callable[[], torch.nn.Module]]] = {
    "resnet50": (
        lambda: jax_models.ResNet(FLOAT64, BENCHMARK.model("resnet50").batch_norm, blocks=RESNET),
        lambda: torchvision_models.ResNet(Bottleneck, list(RESNET), num_classes=CLASSES),
    ),
    "vit_b_16": (
        lambda: jax_models.VisionTransformer(FLOAT64, SIZES.image_size, **VIT),
        reduced_vit_of_torch,
    ),
    "efficientnet_b0": (
        lambda: jax_models.EfficientNet(
            FLOAT64, BENCHMARK.model("efficientnet_b0").batch_norm, stages=EFFICIENT_STAGES
        ),
        reduced_efficient_of_torch,
    ),
}
"""The same few blocks in JAX and in PyTorch. MobileNet's kinds of layers are EfficientNet's, too."""


def made_in_jax(build: Callable[[], nnx.Module]) -> nnx.Module:
    model = without_values(build, jnp.float64)
    load_weights(model, random_weight)
    use_taps(model)  # a grouped convolution in float64 takes XLA ten times as long on a CPU
    return model


def made_in_torch(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    model = build()
    torch_weights.load_weights(model, random_weight)
    return model.double()


def numbers_of_jax(name: str) -> Numbers:
    """Outputs, gradients and running statistics of a step of training, and the outputs of an evaluation before it."""
    with jax.enable_x64(True):
        model = made_in_jax(REDUCED[name][0])
        training = nnx.graphdef(nnx.view(model, use_running_average=False, raise_if_not_found=False))
        params, statistics = arrays_of(model, nnx.Param), arrays_of(model, nnx.BatchStat)

        def loss(params: Any, statistics: Any) -> Any:
            model = nnx.merge(training, params, statistics, copy=True)
            outputs = model(IMAGES)
            losses = -jax.nn.log_softmax(outputs)[np.arange(BATCH_SIZE), LABELS]
            return losses.mean(), (outputs, arrays_of(model, nnx.BatchStat))

        @jax.jit
        def compute(params: Any, statistics: Any) -> Any:
            evaluated = nnx.merge(nnx.graphdef(evaluating(model)), params, statistics)(IMAGES)
            gradients, (outputs, after) = jax.grad(loss, has_aux=True)(params, statistics)
            return evaluated, outputs, gradients, after

        evaluated, outputs, gradients, after = compute(params, statistics)
        numbers = {"evaluated": np.asarray(evaluated), "outputs": np.asarray(outputs)}
        numbers |= {f"gradients/{key}": value for key, value in to_neutral(gradients, {}).items()}
        return numbers | {f"statistics/{key}": value for key, value in to_neutral(after, {}).items()}


def numbers_of_torch(name: str) -> Numbers:
    model = made_in_torch(REDUCED[name][1])
    images = as_torch(IMAGES)
    numbers = {"evaluated": model.eval()(images).detach().numpy()}
    outputs = model.train()(images)
    F.cross_entropy(outputs, torch.from_numpy(LABELS)).backward()
    numbers["outputs"] = outputs.detach().numpy()
    numbers |= {f"gradients/{key}": value.grad.numpy() for key, value in model.named_parameters()}
    buffers = {key: value.numpy() for key, value in model.named_buffers() if "running" in key}
    return numbers | {f"statistics/{key}": value for key, value in buffers.items()}


def errors(ours: Numbers, theirs: Numbers) -> dict[str, float]:
    """Of each kind of numbers the largest relative L2 error of a tensor. Gradients that are zero in exact arithmetic,
    as those of attention's biases of keys, are compared on the scale of a thousandth of all together."""
    assert ours.keys() == theirs.keys()
    whole = np.sqrt(sum((value**2).sum() for key, value in theirs.items() if "gradients/" in key))
    found: dict[str, float] = {}
    for key, value in theirs.items():
        kind = key.partition("/")[0]
        floor = 1e-3 * whole if "gradients/" in key else 0.0
        found[kind] = max(found.get(kind, 0.0), relative(ours[key], value, floor))
    return found


def relative(ours: np.ndarray, theirs: np.ndarray, floor: float = 0.0) -> float:
    assert ours.shape == theirs.shape
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), floor))


def evaluating(model: nnx.Module) -> nnx.Module:
    return nnx.view(model, use_running_average=True, raise_if_not_found=False)


def as_torch(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", REDUCED)
def test_reduced_models_are_torchvisions(name: str) -> None:
    found = errors(numbers_of_jax(name), numbers_of_torch(name))
    kinds = {"evaluated", "outputs", "gradients"}
    assert found.keys() == (kinds | {"statistics"} if BENCHMARK.model(name).batch_norm else kinds)
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vit_b_16"])
def test_nothing_is_copied_in_a_forward_pass(name: str) -> None:
    """Autograd copies what an activation overwrites and its gradient needs."""
    with FakeTensorMode():
        model = torch_models.make_model(name, SIZES)
        images = torch.empty(2, 3, SIZES.image_size, SIZES.image_size)
        with Operators() as seen:
            model(images)
    copies = {torch.ops.aten.clone.default, torch.ops.aten.copy_.default}
    assert not copies & {operator for operator, _ in seen.calls}


# Half precision


def test_residuals_are_in_half_precision_on_both_sides() -> None:
    """Under autocast as with Flax's dtype, and only there."""
    seen = []
    model = reduced_vit_of_torch()
    torch_weights.load_weights(model, random_weight)
    for block in model.encoder.layers:
        block.register_forward_hook(lambda _block, inputs, output: seen.extend([inputs[0].dtype, output.dtype]))
    images = as_torch(IMAGES).float()
    exact = model(images).detach().numpy()
    assert set(seen) == {torch.float32}
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        theirs = model(images).detach().float().numpy()
    assert set(seen) == {torch.bfloat16}

    dtypes = model_dtypes("bf16")
    ours = without_values(lambda: jax_models.VisionTransformer(dtypes, SIZES.image_size, **VIT), jnp.float32)
    load_weights(ours, random_weight)
    tokens = jnp.zeros((1, 10, VIT["features"]), jnp.bfloat16)
    assert ours.encoder.layers["encoder_layer_0"](tokens).dtype == jnp.bfloat16
    found = np.asarray(jax.jit(ours)(jnp.asarray(IMAGES, jnp.float32)), np.float32)
    # A bf16 number has 8 bits, so each rounding is up to 2e-3; both sides' roundings add up to about the same.
    error_of_jax, error_of_torch = relative(found, exact), relative(theirs, exact)
    assert 1e-3 < error_of_jax < 2 * error_of_torch < 5e-2
    assert error_of_torch < 2 * error_of_jax


# Other use cases


def test_per_sample_gradients_of_vit(monkeypatch: pytest.MonkeyPatch) -> None:
    """By both frameworks' vmap, in float64, of the reduced model."""
    monkeypatch.setattr(jax_models, "make_model", lambda *_: REDUCED["vit_b_16"][0]())
    monkeypatch.setattr(torch_models, "make_model", lambda *_: reduced_vit_of_torch())
    names = {
        "benchmark": "imagenet100",
        "model": "vit_b_16",
        "batch_size": 3,
        "options": {"output": "full"},
        "sizes": {"image_size": SIZES.image_size},
    }
    ours, theirs = (
        build(make_session(framework, "per_sample_gradients", execution_mode=mode, precision="fp64", **names)).parity()
        for framework, mode in (("jax", "vmap.jit"), ("torch", "vmap.eager"))
    )
    assert max(errors(dict(ours), dict(theirs)).values()) < TOLERANCE
    assert sum("/" in key for key in theirs) == len(list(reduced_vit_of_torch().parameters()))
