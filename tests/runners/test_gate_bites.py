"""The parity gate on the real models: what is right passes in every execution mode, and planted faults do not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest import mock

import jax
import pytest
import torch
from flax import nnx
from torch.nn import functional as F

from harness.parity import FLOAT64_TOLERANCE, ParityNumbers, compare, judge
from harness.settings import Framework
from jax_runner.benchmarks import mnist as jax_mnist
from tests.runners.gated import gated_numbers
from torch_runner.benchmarks import cifar10 as torch_cifar10
from torch_runner.benchmarks import mnist as torch_mnist
from torch_runner.use_cases import per_sample_gradients as torch_per_sample_gradients
from torch_runner.use_cases import train as torch_train

MODELS = [("mnist", "cnn"), ("cifar10", "cnn"), ("cifar10", "resnet18")]
OUTPUTS = ("norms", "full", "clipped_sum", "batch_gradient")


@cache
def trained(framework: Framework, benchmark: str, model: str, execution_mode: str = "") -> ParityNumbers:
    return gated_numbers(framework, "train", benchmark=benchmark, model=model, execution_mode=execution_mode)


@cache
def per_sample(framework: Framework, benchmark: str, output: str, execution_mode: str = "") -> ParityNumbers:
    options = {"output": output}
    return gated_numbers(
        framework, "per_sample_gradients", benchmark=benchmark, options=options, execution_mode=execution_mode
    )


# What is right passes.


@pytest.mark.parametrize(("benchmark", "model"), MODELS)
def test_training_passes(benchmark: str, model: str) -> None:
    ours, theirs = trained("jax", benchmark, model), trained("torch", benchmark, model)
    judgement = judge(ours, theirs)
    assert judgement.state == "passed", judgement.sentence
    quantities = {name.partition("/")[0] for name in theirs.kept}
    expected = {"logits", "loss", "gradients", "losses_of_steps", "updates"}
    if model == "resnet18":
        expected |= {"statistics", "statistics_after_steps"}
    assert quantities == expected
    parameters = {"cnn": 8 if benchmark == "mnist" else 16, "resnet18": 62}[model]
    assert sum(name.startswith("gradients/") for name in theirs.kept) == parameters


@pytest.mark.parametrize(("benchmark", "model"), MODELS[:2])
def test_training_of_many_steps_in_one_call_passes(benchmark: str, model: str) -> None:
    judgement = judge(trained("jax", benchmark, model, "scan"), trained("torch", benchmark, model))
    assert judgement.state == "passed", judgement.sentence


def test_compiled_training_passes() -> None:
    judgement = judge(trained("jax", "mnist", "cnn"), trained("torch", "mnist", "cnn", "compiled"))
    assert judgement.state == "passed", judgement.sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a GPU as it is")
def test_training_with_the_step_of_a_cuda_graph_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncaptured, as on a CPU nothing else is possible."""
    monkeypatch.setattr(torch_train, "require_one_gpu", lambda *_: None)
    monkeypatch.setattr(torch_train, "captured", lambda step, _optimizer: step)
    judgement = judge(trained("jax", "mnist", "cnn"), trained("torch", "mnist", "cnn", "cuda_graph_step"))
    assert judgement.state == "passed", judgement.sentence


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("execution_mode", ["compiled_max_autotune", "cuda_graphs", "cuda_graph_step"])
def test_training_in_the_modes_of_a_gpu_passes(execution_mode: str) -> None:
    judgement = judge(trained("jax", "mnist", "cnn"), trained("torch", "mnist", "cnn", execution_mode))
    assert judgement.state == "passed", judgement.sentence


@pytest.mark.parametrize(
    ("benchmark", "output"),
    [*(("mnist", output) for output in OUTPUTS), ("cifar10", "full"), ("cifar10", "clipped_sum")],
)
def test_per_sample_gradients_pass(benchmark: str, output: str) -> None:
    judgement = judge(per_sample("jax", benchmark, output), per_sample("torch", benchmark, output))
    assert judgement.state == "passed", judgement.sentence


@pytest.mark.parametrize("output", ["full", "clipped_sum"])
@pytest.mark.parametrize(
    ("framework", "execution_mode"),
    [
        ("jax", "outer_product"),
        ("jax", "chunked"),
        ("torch", "outer_product"),
        ("torch", "outer_product_compiled"),
        ("torch", "chunked"),
        ("torch", "loop"),
    ],
)
def test_per_sample_gradients_pass_in_every_mode(framework: Framework, execution_mode: str, output: str) -> None:
    sides = {side: per_sample(side, "mnist", output) for side in ("jax", "torch")}
    sides[framework] = per_sample(framework, "mnist", output, execution_mode)
    judgement = judge(sides["jax"], sides["torch"])
    assert judgement.state == "passed", judgement.sentence


def test_compiled_per_sample_gradients_pass() -> None:
    theirs = per_sample("torch", "mnist", "clipped_sum", "compiled")
    judgement = judge(per_sample("jax", "mnist", "clipped_sum"), theirs)
    assert judgement.state == "passed", judgement.sentence


# In float64 nothing but rounding at 1e-16 is left.


@pytest.mark.parametrize(("benchmark", "model"), MODELS)
def test_training_agrees_in_float64(benchmark: str, model: str) -> None:
    ours, theirs = (
        gated_numbers(framework, "train", benchmark=benchmark, model=model, float64=True)
        for framework in ("jax", "torch")
    )
    assert [check for check in compare(ours, theirs, FLOAT64_TOLERANCE) if not check.passed] == []


@pytest.mark.parametrize("output", OUTPUTS)
def test_per_sample_gradients_agree_in_float64(output: str) -> None:
    ours, theirs = (
        gated_numbers(framework, "per_sample_gradients", options={"output": output}, float64=True)
        for framework in ("jax", "torch")
    )
    assert [check for check in compare(ours, theirs, FLOAT64_TOLERANCE) if not check.passed] == []


# Planted faults. Each is planted on one side only, and the sentence names the first tensor that it changes.


def require_caught(ours: ParityNumbers, theirs: ParityNumbers, first: str, times: float) -> None:
    """`times`: how far above its tolerance the first tensor must be."""
    judgement = judge(ours, theirs)
    assert judgement.state == "failed", judgement.sentence
    assert judgement.sentence.startswith(f"{first}: relative error ")
    check = next(check for check in compare(ours, theirs) if not check.passed)
    assert check.error > times * check.tolerance, judgement.sentence


def with_changed_model(module: Any, change: Callable[[torch.nn.Module], None]) -> Any:
    make_model = module.make_model

    def make_changed(name: str) -> torch.nn.Module:
        model = make_model(name)
        change(model)
        return model

    return mock.patch.object(module, "make_model", make_changed)


def test_wrong_epsilon_of_batch_norm_is_caught() -> None:
    def change(model: torch.nn.Module) -> None:
        for layer in model.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.eps = 1e-3

    with with_changed_model(torch_cifar10, change):
        theirs = gated_numbers("torch", "train", benchmark="cifar10", model="resnet18")
    require_caught(trained("jax", "cifar10", "resnet18"), theirs, "logits", times=5)


def test_wrong_momentum_of_running_statistics_is_caught() -> None:
    """Nothing in training depends on them; only the evaluation does."""

    def change(model: torch.nn.Module) -> None:
        model.get_submodule("layer3.0.bn2").momentum = 0.9

    with with_changed_model(torch_cifar10, change):
        theirs = gated_numbers("torch", "train", benchmark="cifar10", model="resnet18")
    first = "running statistics of layer3.0.bn2.running_mean"
    require_caught(trained("jax", "cifar10", "resnet18"), theirs, first, times=100)


class PaddedAsSame(torch.nn.Conv2d):
    """28 x 28 by 8 x 8 with stride 2: SAME pads (3, 3), which agrees. One more on the right and one less on the left
    gives the same shape too."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.pad(images, (2, 4, 2, 4)), self.weight, self.bias, self.stride)


def test_wrong_padding_is_caught() -> None:
    def change(model: torch.nn.Module) -> None:
        model.conv1 = PaddedAsSame(1, 16, 8, stride=2)

    with with_changed_model(torch_mnist, change):
        theirs = gated_numbers("torch", "train")
    require_caught(trained("jax", "mnist", "cnn"), theirs, "logits", times=100)


@pytest.mark.parametrize(("fault", "times"), [({"nesterov": True}, 3), ({"dampening": 0.9}, 10)], ids=str)
def test_wrong_momentum_convention_is_caught(fault: dict[str, Any], times: float) -> None:
    with mock.patch.object(torch.optim, "SGD", partial(torch.optim.SGD, **fault)):
        theirs = gated_numbers("torch", "train")
    require_caught(trained("jax", "mnist", "cnn"), theirs, "sum of 5 updates of conv1.weight", times)


@pytest.mark.parametrize(("benchmark", "model"), [("mnist", "cnn"), ("cifar10", "resnet18")])
def test_missing_weight_decay_is_caught(benchmark: str, model: str) -> None:
    sgd = torch.optim.SGD

    def without_decay(parameters: Any, **keywords: Any) -> torch.optim.SGD:
        return sgd(parameters, **(keywords | {"weight_decay": 0.0}))

    with mock.patch.object(torch.optim, "SGD", without_decay):
        theirs = gated_numbers("torch", "train", benchmark=benchmark, model=model)
    require_caught(trained("jax", benchmark, model), theirs, "sum of 5 updates of conv1.weight", times=3)


@contextmanager
def gelu_for_relu(*, approximate_in_jax: bool, approximate_in_torch: bool) -> Iterator[None]:
    """No model of the benchmarks has a GELU yet, so this gives them one."""
    in_jax = partial(jax.nn.gelu, approximate=approximate_in_jax)
    in_torch = partial(F.gelu, approximate="tanh" if approximate_in_torch else "none")
    with mock.patch.object(nnx, "relu", in_jax), mock.patch.object(F, "relu", in_torch):
        yield


def test_gelu_of_the_other_kind_is_caught() -> None:
    with gelu_for_relu(approximate_in_jax=True, approximate_in_torch=False):  # the two defaults
        ours, theirs = gated_numbers("jax", "train"), gated_numbers("torch", "train")
    require_caught(ours, theirs, "logits", times=2)
    with gelu_for_relu(approximate_in_jax=True, approximate_in_torch=True):
        theirs = gated_numbers("torch", "train")
    assert judge(ours, theirs).state == "passed"


def test_permuted_flatten_is_caught() -> None:
    with mock.patch.object(jax_mnist, "FLATTENED", {}):
        ours = gated_numbers("jax", "train")
    require_caught(ours, trained("torch", "mnist", "cnn"), "logits", times=100)


def test_inverted_clip_factor_is_caught() -> None:
    reduce_gradients = torch_per_sample_gradients.reduce_gradients

    def inverted(gradients: dict[str, torch.Tensor], output: str, clip_norm: float) -> dict[str, torch.Tensor]:
        norms = reduce_gradients(gradients, "norms", clip_norm)["norms"]
        factors = (norms / clip_norm).clamp(max=1.0)
        return {name: torch.tensordot(factors, value, dims=1) for name, value in gradients.items()}

    with mock.patch.object(torch_per_sample_gradients, "reduce_gradients", inverted):
        theirs = gated_numbers("torch", "per_sample_gradients", options={"output": "clipped_sum"})
    require_caught(per_sample("jax", "mnist", "clipped_sum"), theirs, "clipped sum of conv1.weight", times=5)


def test_tf32_on_one_side_is_caught() -> None:
    """A matrix product of TF32 rounds its inputs to 10 bits of mantissa; here by hand, as a CPU has no TF32."""
    linear = F.linear

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values + (values.detach().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) - values.detach()

    def in_tf32(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return linear(rounded(images), rounded(weight), bias)

    with mock.patch.object(F, "linear", in_tf32):
        theirs = gated_numbers("torch", "train")
    assert judge(trained("jax", "mnist", "cnn"), theirs).state == "failed"
