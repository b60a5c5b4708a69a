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

from harness.plan import FRAMEWORKS, Framework
from harness.results.parity import ParityNumbers, compare, judge, quantity_of
from harness.work.weights import WeightOf, inference_weight
from jax_runner.models import mnist as jax_mnist
from tests.made.captures import only_trace
from tests.made.numbers import gated
from tests.made.sessions import build, make_session, with_pretrained
from tests.made.shallow import shallow_resnet
from torch_runner import optimizer as torch_optimizer
from torch_runner.models import cifar10 as torch_cifar10
from torch_runner.use_cases import per_sample_gradients as torch_per_sample_gradients
from torch_runner.use_cases import train as torch_train

pytestmark = pytest.mark.takes(20)

CLIP_NORM = {"mnist": 60.0, "cifar10": 20.0}
"""As in experiments.yaml: about half of the samples are clipped."""


def gated_numbers(
    framework: Framework, use_case: str, benchmark: str = "mnist", weights: WeightOf | None = None, **arguments: Any
) -> ParityNumbers:
    """As a job's child computes them, or from other weights."""
    settings = {"clip_norm": CLIP_NORM[benchmark]} if use_case == "per_sample_gradients" else {}
    session = make_session(framework, use_case, benchmark=benchmark, **settings, **arguments)
    with shallow_resnet(framework):
        return gated(session, lambda own: build(own if weights is None else with_pretrained(own, weights)))


CNN, RESNET, TEXT = ("mnist", "cnn"), ("cifar10", "resnet18"), ("text", "mlp")
ADAMW = {"optimizer": "adamw", "weight_decay": 0.1, "beta2": 0.95, "max_gradient_norm": 1.0}


def train(
    framework: Framework, work: tuple[str, str], optimizer: str, mode: str = "", weights: WeightOf | None = None
) -> ParityNumbers:
    settings = ADAMW if optimizer == "adamw" else {}
    return gated_numbers(framework, "train", work[0], weights, model=work[1], execution_mode=mode, **settings)


trained = cache(train)


# What is right passes.


def require_passed(ours: ParityNumbers, theirs: ParityNumbers) -> None:
    judgement = judge(ours, theirs)
    assert judgement.state == "passed", judgement.sentence


@pytest.mark.parametrize(
    ("work", "optimizer", "parameters", "own"),
    [
        (CNN, "sgd", 8, set()),
        (("cifar10", "cnn"), "sgd", 16, set()),
        (RESNET, "sgd", 20, {"statistics", "statistics_after_steps"}),
        (TEXT, "sgd", 5, set()),
        (CNN, "adamw", 8, {"first_moments", "second_moments"}),
        (TEXT, "adamw", 5, {"first_moments", "second_moments"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_training_passes(work: tuple[str, str], optimizer: str, parameters: int, own: set[str]) -> None:
    """AdamW by far: what an element's own rounding would make of its update, epsilon holds down."""
    ours, theirs = (trained(framework, work, optimizer) for framework in FRAMEWORKS)
    require_passed(ours, theirs)
    expected = {"outputs", "loss", "gradients", "losses_of_steps", "updates"} | own
    assert {name.partition("/")[0] for name in theirs.kept} == expected
    assert sum(name.startswith("gradients/") for name in theirs.kept) == parameters
    assert optimizer == "sgd" or max(check.error for check in compare(ours, theirs)) < 1e-4


def test_training_by_a_compiler_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    only_trace(monkeypatch)
    require_passed(trained("jax", CNN, "sgd", "scan.jit"), trained("torch", CNN, "sgd", "step.compiled"))


@pytest.mark.parametrize(
    ("benchmark", "output"),
    [*(("mnist", output) for output in ("norms", "full", "clipped_sum", "batch_gradient")), ("cifar10", "clipped_sum")],
)
def test_per_sample_gradients_pass(benchmark: str, output: str) -> None:
    options = {"output": output}
    require_passed(*(gated_numbers(side, "per_sample_gradients", benchmark, options=options) for side in FRAMEWORKS))


# Planted faults. Each is planted on one side only.


def require_caught(ours: ParityNumbers, theirs: ParityNumbers, quantity: str, times: float) -> None:
    """`times`: how far above its tolerance a tensor of the quantity must be."""
    assert judge(ours, theirs).state == "failed"
    checks = [check for check in compare(ours, theirs) if quantity_of(check.name) == quantity]
    assert max(check.error / check.tolerance for check in checks) > times


def with_resnet(change: Callable[[torch.nn.Module], None]) -> Any:
    make_model = torch_cifar10.make_model

    def make_changed(name: str, sizes: Any) -> torch.nn.Module:
        model = make_model(name, sizes)
        change(model)
        return model

    return mock.patch.object(torch_cifar10, "make_model", make_changed)


def wrong_epsilon(model: torch.nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.eps = 1e-3


def wrong_momentum(model: torch.nn.Module) -> None:
    """Of running statistics: nothing in training depends on them; only the evaluation does."""
    model.get_submodule("layer2.0.bn2").momentum = 0.9


def convolved_one_off(convolve: Any, images: torch.Tensor) -> torch.Tensor:
    """28 x 28 by 8 x 8 with stride 2: SAME pads (3, 3); one more on the right and one less on the left gives the same
    shape too."""
    if convolve.kernel_size != (8, 8):
        return CONVOLVE(convolve, images)
    return F.conv2d(F.pad(images, (2, 4, 2, 4)), convolve.weight, convolve.bias, convolve.stride)


CONVOLVE = torch.nn.Conv2d.forward
SGD, ADAMW_OF_TORCH = torch.optim.SGD, torch.optim.AdamW


def with_sgd(**instead: Any) -> Any:
    return mock.patch.object(torch.optim, "SGD", lambda parameters, **own: SGD(parameters, **(own | instead)))


def with_adamw(**instead: Any) -> Any:
    """Also of every group of parameters."""

    def make(groups: Any, **keywords: Any) -> torch.optim.Optimizer:
        wrong = [group | {name: value for name, value in instead.items() if name in group} for group in groups]
        return ADAMW_OF_TORCH(wrong, **(keywords | instead))

    return mock.patch.object(torch.optim, "AdamW", make)


FAULTS: dict[str, tuple[Any, tuple[str, str], str, str, float]] = {
    "epsilon of BatchNorm": (with_resnet(wrong_epsilon), RESNET, "sgd", "outputs", 5),
    "momentum of BatchNorm": (with_resnet(wrong_momentum), RESNET, "sgd", "statistics", 100),
    "padding": (mock.patch.object(torch.nn.Conv2d, "forward", convolved_one_off), CNN, "sgd", "outputs", 100),
    "Nesterov's momentum": (with_sgd(nesterov=True), CNN, "sgd", "updates", 1.5),
    "dampening": (with_sgd(dampening=0.9), CNN, "sgd", "updates", 5),
    "no weight decay": (with_sgd(weight_decay=0.0), CNN, "sgd", "updates", 3),
    "no decay of AdamW": (with_adamw(weight_decay=0.0), CNN, "adamw", "updates", 9),
    "decay in the gradient": (
        mock.patch.object(torch.optim, "AdamW", torch.optim.Adam),
        *(CNN, "adamw", "first_moments", 5),
    ),
    "another beta1": (with_adamw(betas=(0.95, 0.95)), CNN, "adamw", "first_moments", 4),
    "another beta2": (with_adamw(betas=(0.9, 0.999)), CNN, "adamw", "second_moments", 9),
    "another epsilon": (with_adamw(eps=1e-8), TEXT, "adamw", "updates", 3),
    "gradients that are not clipped": (
        mock.patch.object(torch_train, "clip_gradients", lambda *_: None),
        *(CNN, "adamw", "gradients", 9),
    ),
}
"""What plants it, the work, the optimizer, the quantity that shows it, and how far above its tolerance this is."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_pytorchs_training_is_caught(fault: str) -> None:
    planted, work, optimizer, quantity, times = FAULTS[fault]
    with planted:
        theirs = train("torch", work, optimizer)
    require_caught(trained("jax", work, optimizer), theirs, quantity, times)


def test_permuted_flatten_is_caught() -> None:
    with mock.patch.object(jax_mnist.Cnn, "FLATTENED", {}):
        ours = train("jax", CNN, "sgd")
    require_caught(ours, trained("torch", CNN, "sgd"), "outputs", times=100)


def test_inverted_clip_factor_is_caught() -> None:
    reduce_gradients = torch_per_sample_gradients.reduce_gradients

    def inverted(gradients: dict[str, torch.Tensor], output: str, clip_norm: float) -> dict[str, torch.Tensor]:
        factors = (reduce_gradients(gradients, "norms", clip_norm)["norms"] / clip_norm).clamp(max=1.0)
        return {name: torch.tensordot(factors, value, dims=1) for name, value in gradients.items()}

    clipped = partial(gated_numbers, use_case="per_sample_gradients", options={"output": "clipped_sum"})
    with mock.patch.object(torch_per_sample_gradients, "reduce_gradients", inverted):
        theirs = clipped("torch")
    require_caught(clipped("jax"), theirs, "clipped_sum", times=5)


def test_gradients_that_jax_does_not_clip_are_caught() -> None:
    """Its gradients are not those of the step, but its moments and its updates are."""
    with mock.patch.object(optax, "clip_by_global_norm", lambda _: optax.identity()):
        ours = train("jax", TEXT, "adamw")
    require_caught(ours, trained("torch", TEXT, "adamw"), "first_moments", times=5)
    require_caught(ours, trained("torch", TEXT, "adamw"), "updates", times=2)


def test_decay_of_vectors_is_caught() -> None:
    """Of biases that are not zero, as the scales of normalisation are not; a bias of zero hides it."""
    weights = partial(inference_weight, 3)
    ours, right = (train(side, TEXT, "adamw", weights=weights) for side in FRAMEWORKS)
    require_passed(ours, right)
    with mock.patch.object(torch_optimizer, "weight_decay_of", lambda settings, _axes: settings.weight_decay):
        theirs = train("torch", TEXT, "adamw", weights=weights)
    require_caught(ours, theirs, "updates", times=3)


def test_tf32_on_one_side_is_caught() -> None:
    """A matrix product of TF32 rounds its inputs to 10 bits of mantissa; here by hand, as a CPU has no TF32."""
    linear = F.linear

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values + (values.detach().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) - values.detach()

    def in_tf32(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return linear(rounded(images), rounded(weight), bias)

    with mock.patch.object(F, "linear", in_tf32):
        theirs = train("torch", CNN, "sgd")
    assert judge(trained("jax", CNN, "sgd"), theirs).state == "failed"
