"""The parity gate on the real models: what is right passes, and planted faults do not.

That every execution mode computes the same is shown in float64, in test_train.py, test_per_sample_gradients.py and
test_many_models.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any
from unittest import mock

import optax
import pytest
import torch
from torch.nn import functional as F

from harness.plan import Framework
from harness.results.parity import ParityNumbers, compare, judge, quantity_of
from harness.work.weights import WeightOf, inference_weight
from jax_runner.models import mnist as jax_mnist
from tests.made.captures import only_trace
from tests.made.numbers import gated
from tests.made.sessions import build, make_session, with_pretrained
from tests.made.shallow import shallow_resnet
from torch_runner import optimizer as torch_optimizer
from torch_runner.models import cifar10 as torch_cifar10
from torch_runner.models import mnist as torch_mnist
from torch_runner.use_cases import per_sample_gradients as torch_per_sample_gradients
from torch_runner.use_cases import train as torch_train

CLIP_NORM = {"mnist": 60.0, "cifar10": 20.0}
"""As in experiments.yaml: about half of the samples are clipped."""
OUTPUTS = ("norms", "full", "clipped_sum", "batch_gradient")


def gated_numbers(
    framework: Framework, use_case: str, benchmark: str = "mnist", weights: WeightOf | None = None, **arguments: Any
) -> ParityNumbers:
    """As a job's child computes them, or from other weights."""
    settings = {"clip_norm": CLIP_NORM[benchmark]} if use_case == "per_sample_gradients" else {}
    session = make_session(framework, use_case, benchmark=benchmark, **settings, **arguments)
    with shallow_resnet(framework):
        return gated(session, lambda own: build(own if weights is None else with_pretrained(own, weights)))


@cache
def trained(framework: Framework, benchmark: str = "mnist", model: str = "cnn", mode: str = "") -> ParityNumbers:
    return gated_numbers(framework, "train", benchmark, model=model, execution_mode=mode)


@cache
def per_sample(framework: Framework, benchmark: str, output: str) -> ParityNumbers:
    return gated_numbers(framework, "per_sample_gradients", benchmark, options={"output": output})


# What is right passes.


def require_passed(ours: ParityNumbers, theirs: ParityNumbers) -> None:
    judgement = judge(ours, theirs)
    assert judgement.state == "passed", judgement.sentence


@pytest.mark.parametrize(
    ("benchmark", "model", "parameters"),
    [
        ("mnist", "cnn", 8),
        ("cifar10", "cnn", 16),
        ("cifar10", "resnet18", 20),
        ("text", "mlp", 5),
    ],
)
def test_training_passes(benchmark: str, model: str, parameters: int) -> None:
    ours, theirs = trained("jax", benchmark, model), trained("torch", benchmark, model)
    require_passed(ours, theirs)
    expected = {"outputs", "loss", "gradients", "losses_of_steps", "updates"}
    if model == "resnet18":
        expected |= {"statistics", "statistics_after_steps"}
    assert {name.partition("/")[0] for name in theirs.kept} == expected
    assert sum(name.startswith("gradients/") for name in theirs.kept) == parameters


def test_training_by_a_compiler_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    only_trace(monkeypatch)
    require_passed(trained("jax", mode="scan.jit"), trained("torch", mode="step.compiled"))


@pytest.mark.parametrize(
    ("benchmark", "output"), [*(("mnist", output) for output in OUTPUTS), ("cifar10", "clipped_sum")]
)
def test_per_sample_gradients_pass(benchmark: str, output: str) -> None:
    require_passed(per_sample("jax", benchmark, output), per_sample("torch", benchmark, output))


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

    def make_changed(name: str, sizes: Any) -> torch.nn.Module:
        model = make_model(name, sizes)
        change(model)
        return model

    return mock.patch.object(module, "make_model", make_changed)


def wrong_epsilon(model: torch.nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.eps = 1e-3


def wrong_momentum(model: torch.nn.Module) -> None:
    """Of running statistics: nothing in training depends on them; only the evaluation does."""
    model.get_submodule("layer2.0.bn2").momentum = 0.9


class PaddedAsSame(torch.nn.Conv2d):
    """28 x 28 by 8 x 8 with stride 2: SAME pads (3, 3), which agrees. One more on the right and one less on the left
    gives the same shape too."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.pad(images, (2, 4, 2, 4)), self.weight, self.bias, self.stride)


def wrong_padding(model: torch.nn.Module) -> None:
    model.conv1 = PaddedAsSame(1, 16, 8, stride=2)


SGD = torch.optim.SGD


def with_sgd(**instead: Any) -> Any:
    return mock.patch.object(torch.optim, "SGD", lambda parameters, **own: SGD(parameters, **(own | instead)))


CNN, RESNET = ("mnist", "cnn"), ("cifar10", "resnet18")
UPDATES = "sum of 5 updates of conv1.weight"
STATISTICS = "running statistics of layer2.0.bn2.running_mean"
FAULTS: dict[str, tuple[Callable[[], Any], tuple[str, str], str, float]] = {
    "epsilon of BatchNorm": (lambda: with_changed_model(torch_cifar10, wrong_epsilon), RESNET, "outputs", 5),
    "momentum of BatchNorm": (lambda: with_changed_model(torch_cifar10, wrong_momentum), RESNET, STATISTICS, 100),
    "padding": (lambda: with_changed_model(torch_mnist, wrong_padding), CNN, "outputs", 100),
    "Nesterov's momentum": (lambda: with_sgd(nesterov=True), CNN, UPDATES, 1.5),
    "dampening": (lambda: with_sgd(dampening=0.9), CNN, UPDATES, 5),
    "no weight decay": (lambda: with_sgd(weight_decay=0.0), CNN, UPDATES, 3),
    "no weight decay of ResNet-18": (lambda: with_sgd(weight_decay=0.0), RESNET, UPDATES, 3),
}
"""What plants it, the model, the first tensor that it changes, and how far above its tolerance this is."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_pytorchs_training_is_caught(fault: str) -> None:
    plant, (benchmark, model), first, times = FAULTS[fault]
    with plant():
        theirs = gated_numbers("torch", "train", benchmark, model=model)
    require_caught(trained("jax", benchmark, model), theirs, first, times)


# Of AdamW and clipping


ADAMW = {"optimizer": "adamw", "weight_decay": 0.1, "beta2": 0.95, "max_gradient_norm": 1.0}


@cache
def by_adamw(framework: Framework, benchmark: str = "mnist", model: str = "cnn") -> ParityNumbers:
    return gated_numbers(framework, "train", benchmark, model=model, **ADAMW)


@pytest.mark.parametrize(("benchmark", "model"), [("mnist", "cnn"), ("text", "mlp")])
def test_adamw_passes(benchmark: str, model: str) -> None:
    """By far: what an element's own rounding would make of it, epsilon holds down."""
    ours, theirs = by_adamw("jax", benchmark, model), by_adamw("torch", benchmark, model)
    require_passed(ours, theirs)
    quantities = {name.partition("/")[0] for name in theirs.kept}
    assert {"first_moments", "second_moments", "updates"} < quantities
    assert max(check.error for check in compare(ours, theirs)) < 1e-4


def adamw_with(**instead: Any) -> Callable[..., torch.optim.Optimizer]:
    """Also of every group of parameters."""

    def make(groups: Any, **keywords: Any) -> torch.optim.Optimizer:
        wrong = [group | {name: value for name, value in instead.items() if name in group} for group in groups]
        return ADAMW_OF_TORCH(wrong, **(keywords | instead))

    return make


def decay_in_the_gradient(groups: Any, **keywords: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, **keywords)


ADAMW_OF_TORCH = torch.optim.AdamW
WRONG_OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], str, float]] = {
    "no decay": (adamw_with(weight_decay=0.0), "updates", 9),
    "decay in the gradient": (decay_in_the_gradient, "first_moments", 5),
    "another beta1": (adamw_with(betas=(0.95, 0.95)), "first_moments", 4),
    "another beta2": (adamw_with(betas=(0.9, 0.999)), "second_moments", 9),
    "another epsilon": (adamw_with(eps=1e-8), "updates", 3),
}
"""What makes them, the quantity that shows it, and how far above its tolerance a tensor of it is. The next steps carry
some into the others."""


def require_shown(ours: ParityNumbers, theirs: ParityNumbers, quantity: str, times: float) -> None:
    assert judge(ours, theirs).state == "failed"
    checks = [check for check in compare(ours, theirs) if quantity_of(check.name) == quantity]
    assert max(check.error / check.tolerance for check in checks) > times


@pytest.mark.parametrize("fault", WRONG_OPTIMIZERS)
@pytest.mark.parametrize(("benchmark", "model"), [("mnist", "cnn"), ("text", "mlp")])
def test_another_adamw_is_caught(benchmark: str, model: str, fault: str) -> None:
    wrong, quantity, times = WRONG_OPTIMIZERS[fault]
    with mock.patch.object(torch.optim, "AdamW", wrong):
        theirs = gated_numbers("torch", "train", benchmark, model=model, **ADAMW)
    require_shown(by_adamw("jax", benchmark, model), theirs, quantity, times)


def test_gradients_that_pytorch_does_not_clip_are_caught() -> None:
    with mock.patch.object(torch_train, "clip_gradients", lambda *_: None):
        theirs = gated_numbers("torch", "train", **ADAMW)
    require_caught(by_adamw("jax"), theirs, "gradient of conv1.weight", times=9)


@pytest.mark.parametrize(("benchmark", "model"), [("mnist", "cnn"), ("text", "mlp")])
def test_gradients_that_jax_does_not_clip_are_caught(benchmark: str, model: str) -> None:
    """Its gradients are not those of the step, but its moments and its updates are."""
    with mock.patch.object(optax, "clip_by_global_norm", lambda _: optax.identity()):
        ours = gated_numbers("jax", "train", benchmark, model=model, **ADAMW)
    require_shown(ours, by_adamw("torch", benchmark, model), "first_moments", times=5)
    updates = [check for check in compare(ours, by_adamw("torch", benchmark, model)) if "updates" in check.name]
    assert any(check.error > 2 * check.tolerance for check in updates)


def test_decay_of_vectors_is_caught() -> None:
    """Of biases that are not zero, as the scales of normalisation are not; a bias of zero hides it."""
    weights = partial(inference_weight, 3)
    ours, right = (gated_numbers(side, "train", "text", weights, model="mlp", **ADAMW) for side in ("jax", "torch"))
    require_passed(ours, right)
    with mock.patch.object(torch_optimizer, "weight_decay_of", lambda settings, _axes: settings.weight_decay):
        theirs = gated_numbers("torch", "train", "text", weights, model="mlp", **ADAMW)
    require_caught(ours, theirs, "sum of 5 updates of hidden.bias", times=3)


def test_permuted_flatten_is_caught() -> None:
    with mock.patch.object(jax_mnist.Cnn, "FLATTENED", {}):
        ours = gated_numbers("jax", "train")
    require_caught(ours, trained("torch"), "outputs", times=100)


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
    assert judge(trained("jax"), theirs).state == "failed"
