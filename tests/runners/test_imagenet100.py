"""The models of ImageNet-100: JAX's against torchvision's, in float64, where only a mistake can make a difference.

The planted faults show that no mistake is too small for that. Full models are compared by their names, shapes and
outputs; gradients, statistics and faults by reduced ones, with a block of each kind.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any, NamedTuple

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
from torchvision.models.mobilenetv3 import InvertedResidualConfig
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

Numbers = dict[str, np.ndarray]

SIZES = Sizes(image_size=64)
BATCH_SIZE = 4
TOLERANCE = 1e-9
TOLERANCES = {("mobilenet_v3_small", "gradients"): 1e-6}
"""PyTorch's hardsigmoid has a sixth in float32 in its gradient, also in double precision
(aten/src/ATen/native/cpu/Activation.cpp, hardsigmoid_backward_kernel)."""
DEPTHWISE = tuple(model.name for model in BENCHMARK.models if Layer.DEPTHWISE in model.layers)
NAMES = tuple(model.name for model in BENCHMARK.models)
BY_DAY = [pytest.param(name, marks=pytest.mark.nightly if name == "mobilenet_v3_small" else ()) for name in NAMES]
"""MobileNet's kinds of layers are EfficientNet's, too."""

DRAW = np.random.default_rng(20261122)
IMAGES = DRAW.standard_normal((BATCH_SIZE, 64, 64, 3))
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
def test_names_shapes_and_counts(model: Any) -> None:
    sizes = Sizes()
    ours = without_values(lambda: jax_models.make_model(model.name, sizes, model_dtypes("fp32")), jnp.float32)
    theirs = without_memory(model.name, sizes)
    expected = {name: tuple(v.shape) for name, v in theirs.state_dict().items() if "num_batches" not in name}
    assert shapes_of(ours) == expected
    assert model.parameter_count == parameter_count(ours) == torch_weights.parameter_count(theirs)


@pytest.mark.parametrize("model", BENCHMARK.models, ids=lambda model: model.name)
def test_declaration_is_of_torchvisions_modules(model: Any) -> None:
    layers = list(without_memory(model.name, SIZES).modules())
    norms = {(layer.eps, layer.momentum) for layer in layers if isinstance(layer, torch.nn.BatchNorm2d)}
    declared = {(model.batch_norm.epsilon, model.batch_norm.momentum)} if model.batch_norm else set()
    assert norms == declared
    layer_norms = {layer.eps for layer in layers if isinstance(layer, torch.nn.LayerNorm)}
    assert layer_norms == ({jax_models.EPSILON_OF_VIT} if Layer.LAYER_NORM in model.layers else set())
    dropped = [layer.p for layer in layers if isinstance(layer, torch.nn.Dropout | StochasticDepth)]
    assert not any(dropped)


def without_memory(name: str, sizes: Sizes) -> torch.nn.Module:
    with torch.device("meta"):
        return torch_models.make_model(name, sizes)


def shapes_of(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    """By neutral name, in the neutral layout."""
    flat = nnx.to_flat_state(nnx.state(model))
    empty = {path: np.broadcast_to(np.float32(0), variable.shape) for path, variable in flat}
    return {neutral_name(path): to_neutral_layout(path, value, {}).shape for path, value in empty.items()}


@pytest.mark.parametrize("name", BY_DAY)
def test_outputs_of_full_models(name: str) -> None:
    make_jax, make_torch = (partial(module.make_model, name, SIZES) for module in (jax_models, torch_models))
    with jax.enable_x64(True):
        model = made_in_jax(lambda: make_jax(FLOAT64))
        graphdef, arrays = nnx.graphdef(evaluating(model)), arrays_of(model)
        ours = jax.jit(lambda arrays, images: nnx.merge(graphdef, arrays)(images))(arrays, IMAGES[:2])
    theirs = made_in_torch(make_torch).eval()(as_torch(IMAGES[:2]))
    assert relative(np.asarray(ours), theirs.detach().numpy()) < TOLERANCE


# Reduced models


class Reduced(NamedTuple):
    """The same few blocks in both frameworks."""

    in_jax: Callable[[], nnx.Module]
    in_torch: Callable[[], torch.nn.Module]


RESNET = (2, 1, 1, 1)
MOBILE_ROWS = (
    (16, 3, 16, 16, True, nnx.relu, 2),
    (16, 3, 72, 24, False, nnx.relu, 2),
    (24, 5, 96, 24, True, nnx.hard_silu, 1),
    (24, 5, 120, 32, True, nnx.hard_silu, 2),
)
EFFICIENT_STAGES = ((1, 3, 1, 16, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 32, 1))
VIT = {"depth": 2, "features": 64, "heads": 4, "hidden": 128}


def constants_of(name: str) -> Any:
    return BENCHMARK.model(name).batch_norm


def reduced_mobile_of_torch() -> torch.nn.Module:
    rows = [
        InvertedResidualConfig(*row[:5], "HS" if row[5] is nnx.hard_silu else "RE", row[6], 1, 1.0)
        for row in MOBILE_ROWS
    ]
    return torchvision_models.MobileNetV3(rows, last_channel=48, num_classes=CLASSES, dropout=0.0)


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


REDUCED = {
    "resnet50": Reduced(
        lambda: jax_models.ResNet(FLOAT64, constants_of("resnet50"), blocks=RESNET),
        lambda: torchvision_models.ResNet(Bottleneck, list(RESNET), num_classes=CLASSES),
    ),
    "vit_b_16": Reduced(
        lambda: jax_models.VisionTransformer(FLOAT64, SIZES.image_size, **VIT),
        reduced_vit_of_torch,
    ),
    "mobilenet_v3_small": Reduced(
        lambda: jax_models.MobileNetV3(FLOAT64, constants_of("mobilenet_v3_small"), rows=MOBILE_ROWS, hidden=48),
        reduced_mobile_of_torch,
    ),
    "efficientnet_b0": Reduced(
        lambda: jax_models.EfficientNet(FLOAT64, constants_of("efficientnet_b0"), stages=EFFICIENT_STAGES),
        reduced_efficient_of_torch,
    ),
}


def made_in_jax(build: Callable[[], nnx.Module]) -> nnx.Module:
    model = without_values(build, jnp.float64)
    load_weights(model, random_weight)
    use_taps(model)  # a grouped convolution in float64 takes XLA ten times as long on a CPU
    return model


def made_in_torch(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    model = build()
    torch_weights.load_weights(model, random_weight)
    return model.double()


@cache
def numbers_of_jax(name: str) -> Numbers:
    """Outputs, gradients and running statistics of a step of training, and the outputs of an evaluation before it."""
    with jax.enable_x64(True):
        model = made_in_jax(REDUCED[name].in_jax)
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


@cache
def model_of_torch(name: str) -> torch.nn.Module:
    return made_in_torch(REDUCED[name].in_torch)


def numbers_of_torch(name: str, change: Callable[[Any], Any] = lambda model: None) -> Numbers:
    """`change`: a mistake in the model."""
    model = deepcopy(model_of_torch(name))
    change(model)
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
    whole = np.sqrt(sum((value**2).sum() for key, value in theirs.items() if key.startswith("gradients/")))
    found: dict[str, float] = {}
    for key, value in theirs.items():
        kind = key.partition("/")[0]
        floor = 1e-3 * whole if kind == "gradients" else 0.0
        found[kind] = max(found.get(kind, 0.0), relative(ours[key], value, floor))
    return found


def excess(name: str, found: dict[str, float]) -> float:
    """The largest error over its tolerance."""
    return max(error / TOLERANCES.get((name, kind), TOLERANCE) for kind, error in found.items())


def relative(ours: np.ndarray, theirs: np.ndarray, floor: float = 0.0) -> float:
    assert ours.shape == theirs.shape
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), floor))


def evaluating(model: nnx.Module) -> nnx.Module:
    return nnx.view(model, use_running_average=True, raise_if_not_found=False)


def as_torch(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", BY_DAY)
def test_reduced_models_are_torchvisions(name: str) -> None:
    found = errors(numbers_of_jax(name), numbers_of_torch(name))
    kinds = {"evaluated", "outputs", "gradients"}
    assert found.keys() == (kinds | {"statistics"} if BENCHMARK.model(name).batch_norm else kinds)
    assert excess(name, found) < 1, found


# Planted faults, in PyTorch's models


class PaddedAsSame(torch.nn.Conv2d):
    """As many zeros as `SAME` has, which are not the same on both sides where there is a stride."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        side, window, stride = images.shape[-1], self.kernel_size[0], self.stride[0]
        total = (-(-side // stride) - 1) * stride + window - side
        before, behind = total // 2, total - total // 2
        padded = F.pad(images, (before, behind, before, behind))
        return F.conv2d(padded, self.weight, self.bias, self.stride, groups=self.groups)


class Biased(torch.nn.BatchNorm2d):
    """Keeps the biased running variance, as Flax's own layer does."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        count = images.numel() // images.shape[1]
        kept = (1 - self.momentum) * self.running_var
        normalised = super().forward(images)
        if self.training:
            self.running_var.data = kept + (self.running_var - kept) * (count - 1) / count
        return normalised


Change = Callable[[Any], Any]


def of_class(path: str, kind: type[torch.nn.Module]) -> Change:
    return lambda model: setattr(model.get_submodule(path), "__class__", kind)


def attribute(path: str, **values: Any) -> Change:
    return lambda model: [setattr(model.get_submodule(path), name, value) for name, value in values.items()]


def another(path: str, layer: torch.nn.Module) -> Change:
    return lambda model: model.set_submodule(path, layer)


def stride_in_first_convolution(model: Any) -> None:
    """ResNet v1."""
    model.layer3[0].conv1.stride, model.layer3[0].conv2.stride = (2, 2), (1, 1)


@torch.no_grad()
def keys_for_queries(model: Any) -> None:
    weight = model.encoder.layers[1].self_attention.in_proj_weight
    queries, keys, values = weight.clone().chunk(3)
    weight.copy_(torch.cat([keys, queries, values]))


@torch.no_grad()
def positions_shifted(model: Any) -> None:
    model.encoder.pos_embedding.copy_(model.encoder.pos_embedding.roll(1, 1))


def patches_transposed(model: Any) -> None:
    model.register_forward_pre_hook(lambda _module, arguments: (arguments[0].transpose(2, 3),))


FAULTS: dict[str, dict[str, Change]] = {
    "resnet50": {
        "epsilon of one layer": attribute("layer3.0.bn2", eps=1e-3),
        "SAME in layer2": of_class("layer2.0.conv2", PaddedAsSame),
        "stride as in v1": stride_in_first_convolution,
        "momentum of one layer": attribute("layer3.0.bn2", momentum=0.01),
        "biased variance of one layer": of_class("layer3.0.bn2", Biased),
    },
    "mobilenet_v3_small": {
        "sigmoid for one hardsigmoid": another("features.3.block.2.scale_activation", torch.nn.Sigmoid()),
        "SiLU for one hardswish": another("features.3.block.1.2", torch.nn.SiLU()),
        "SAME in a depthwise layer": of_class("features.4.block.1.0", PaddedAsSame),
        "dropout": another("classifier.2", torch.nn.Dropout(0.2)),
    },
    "efficientnet_b0": {
        "ReLU in one squeeze": another("features.2.1.block.2.activation", torch.nn.ReLU()),
        "hardsigmoid for one sigmoid": another("features.2.1.block.2.scale_activation", torch.nn.Hardsigmoid()),
        "SAME in a depthwise layer": of_class("features.2.0.block.1.0", PaddedAsSame),
        "stochastic depth": another("features.2.1.stochastic_depth", StochasticDepth(0.5, "row")),
    },
    "vit_b_16": {
        "approximate GELU in one layer": attribute("encoder.layers.encoder_layer_1.mlp.1", approximate="tanh"),
        "epsilon of one layer": attribute("encoder.layers.encoder_layer_1.ln_2", eps=1e-5),
        "keys for queries": keys_for_queries,
        "positions shifted": positions_shifted,
        "patches transposed": patches_transposed,
    },
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [pytest.param(*one.values, fault, marks=one.marks) for one in BY_DAY for fault in FAULTS[one.values[0]]],
)
def test_planted_fault_is_caught(name: str, fault: str) -> None:
    found = errors(numbers_of_jax(name), numbers_of_torch(name, FAULTS[name][fault]))
    assert excess(name, found) > 100, found
    if fault.startswith(("momentum", "biased")):  # nothing else shows it
        assert max(error for kind, error in found.items() if kind != "statistics") < 1e-6


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
    tokens = jnp.zeros((1, 17, VIT["features"]), jnp.bfloat16)
    assert ours.encoder.layers["encoder_layer_0"](tokens).dtype == jnp.bfloat16
    found = np.asarray(jax.jit(ours)(jnp.asarray(IMAGES, jnp.float32)), np.float32)
    # A bf16 number has 8 bits, so each rounding is up to 2e-3; both sides' roundings add up to about the same.
    error_of_jax, error_of_torch = relative(found, exact), relative(theirs, exact)
    assert 1e-3 < error_of_jax < 2 * error_of_torch < 5e-2
    assert error_of_torch < 2 * error_of_jax


# Other use cases


@pytest.fixture
def reduced_vit(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_jax(_name: str, sizes: Sizes, dtypes: dict[str, Any]) -> nnx.Module:
        return jax_models.VisionTransformer(dtypes, sizes.image_size, **VIT)

    monkeypatch.setattr(jax_models, "make_model", in_jax)
    monkeypatch.setattr(torch_models, "make_model", lambda *_: reduced_vit_of_torch())


@pytest.mark.usefixtures("reduced_vit")
def test_per_sample_gradients_of_vit() -> None:
    """By both frameworks' vmap, in float64."""
    names = {"benchmark": "imagenet100", "model": "vit_b_16", "batch_size": 3, "options": {"output": "full"}}
    ours, theirs = (
        build(make_session(framework, "per_sample_gradients", execution_mode=mode, precision="fp64", **names)).parity()
        for framework, mode in (("jax", "vmap.jit"), ("torch", "vmap.eager"))
    )
    assert ours.keys() == theirs.keys()
    whole = np.sqrt(sum((value**2).sum() for key, value in theirs.items() if "/" in key))
    for key, value in theirs.items():
        assert relative(ours[key], value, 1e-3 * whole if "/" in key else 0.0) < TOLERANCE, key
    assert sum("/" in key for key in theirs) == len(list(reduced_vit_of_torch().parameters()))
