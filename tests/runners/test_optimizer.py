"""SGD, AdamW and clipping in both frameworks: by hand, in every way to run a step, and shorter epochs."""

import inspect
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from jax import numpy as jnp

from harness.errors import CheckFailed
from harness.plan import FRAMEWORKS, Framework
from harness.work.use_cases.train import Settings
from jax_runner.device import model_dtypes
from jax_runner.models import make_model
from jax_runner.optimizer import make_optimizer
from jax_runner.weights import neutral_name, to_neutral_layout
from tests.made.captures import allow_captures
from tests.made.numbers import TOLERANCE, Numbers, losses_of, require_same
from tests.made.sessions import SETTINGS, build, make_session, measure, with_first
from torch_runner import optimizer as torch_optimizer
from torch_runner.use_cases import train as torch_train

RECIPE = {
    "optimizer": "adamw",
    "learning_rate": 0.01,
    "weight_decay": 1.0,
    "beta2": 0.95,
    "epsilon": 1e-4,
    "max_gradient_norm": 0.1,
    "schedule": "cosine",
    "warmup_epochs": 0.3,
    "epochs": 2,
    "epoch_steps": 6,
    "evaluation_samples": 20,
}
BATCH_SIZE = 4


def small_session(framework: Framework, mode: str = "", **settings: Any) -> Any:
    """48 windows of text: 12 steps in a whole epoch."""
    arguments: dict[str, Any] = {"benchmark": "text", "model": "mlp", "batch_size": BATCH_SIZE, "precision": "fp64"}
    session = make_session(framework, "train", execution_mode=mode, **arguments, **(RECIPE | settings))
    return with_first(session, train=48)


def settings_of(**settings: Any) -> Settings:
    return Settings.model_validate(SETTINGS["train"] | settings)


# By hand


class OneOfEach(torch.nn.Module):
    """A matrix and a vector of one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.ones(1, 1))
        self.vector = torch.nn.Parameter(torch.ones(1))


def found_by_jax(settings: Settings, gradients: list[tuple[float, float]]) -> list[tuple[float, float]]:
    optimizer = make_optimizer(settings, None)
    weights = {"matrix": jnp.ones((1, 1)), "vector": jnp.ones(1)}
    state, found = optimizer.init(weights), []
    for of_matrix, of_vector in gradients:
        grads = {"matrix": jnp.full((1, 1), of_matrix), "vector": jnp.full(1, of_vector)}
        updates, state = optimizer.update(grads, state, weights)
        weights = optax.apply_updates(weights, updates)
        found.append((float(weights["matrix"][0, 0]), float(weights["vector"][0])))
    return found


def found_by_torch(settings: Settings, gradients: list[tuple[float, float]]) -> list[tuple[float, float]]:
    model, found = OneOfEach(), []
    rate = torch.full((1,), settings.learning_rate)
    optimizer = torch_optimizer.make_optimizer(settings, model, rate, in_graph=False)
    for of_matrix, of_vector in gradients:
        model.matrix.grad, model.vector.grad = torch.full((1, 1), of_matrix), torch.full((1,), of_vector)
        if settings.max_gradient_norm:
            torch_optimizer.clip_gradients(model, settings.max_gradient_norm)
        optimizer.step()
        found.append((model.matrix.item(), model.vector.item()))
    return found


FOUND_BY = {"jax": found_by_jax, "torch": found_by_torch}


ADAMW = {"optimizer": "adamw", "learning_rate": 0.1, "weight_decay": 0.2, "beta1": 0.5, "beta2": 0.75, "epsilon": 0.5}
TWO_STEPS = [
    # v <- momentum v + (g + decay w);  w <- w - rate v.   With w = 1, g = 0.5: v = 0.6, w = 0.88;  then
    # g + decay w = 0.588, v = 0.54 + 0.588 = 1.128, w = 0.88 - 0.2256 = 0.6544.
    (
        {"learning_rate": 0.2, "momentum": 0.9, "weight_decay": 0.1},
        [(0.5, 0.5), (0.5, 0.5)],
        [(0.88, 0.88), (0.6544, 0.6544)],
    ),
    # [3, 4] has the norm 5, so a fifth of it is left; [0.3, 0.4] has 0.5.
    (
        {"learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0, "max_gradient_norm": 1.0},
        [(3.0, 4.0), (0.3, 0.4)],
        [(0.94, 0.92), (0.91, 0.88)],
    ),
    # The numbers of tests/harness/work/test_optimizers.py: the matrix is decayed and the vector is not.
    (ADAMW, [(0.5, 0.5), (1.0, 1.0)], [(0.93, 0.95), (0.8484478, 0.8870478)]),
]
"""Settings, the gradients of matrix and vector, and what these are after each step."""


@pytest.mark.parametrize(("settings", "gradients", "wanted"), TWO_STEPS, ids=["SGD", "clipping", "AdamW"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_steps_by_hand(framework: Framework, settings: dict[str, Any], gradients: Any, wanted: Any) -> None:
    found = FOUND_BY[framework](settings_of(**settings), gradients)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_defaults_are_pytorchs_and_optaxs() -> None:
    settings = settings_of(optimizer="adamw")
    of_torch, of_optax = (inspect.signature(one).parameters for one in (torch.optim.AdamW, optax.adamw))
    assert of_torch["betas"].default == (settings.beta1, settings.beta2)
    assert (of_optax["b1"].default, of_optax["b2"].default) == (settings.beta1, settings.beta2)
    assert of_torch["eps"].default == of_optax["eps"].default == settings.epsilon


# What was left out changes nothing


def test_plain_sgd_is_the_program_that_it_was() -> None:
    """One SGD for all parameters; of JAX, the same operations as of optax's SGD."""
    weights = {"matrix": jnp.ones((1, 1)), "vector": jnp.ones(1)}

    def operations(optimizer: optax.GradientTransformation) -> str:
        return str(jax.make_jaxpr(optimizer.update)(weights, optimizer.init(weights), weights))

    plain = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.01, momentum=0.9))
    assert operations(make_optimizer(settings_of(), None)) == operations(plain)
    assert operations(make_optimizer(settings_of(max_gradient_norm=1.0), None)) != operations(plain)
    program: Any = build(make_session("torch", "train"))
    assert type(program.optimizer) is torch.optim.SGD
    (group,) = program.optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"], group["fused"]) == (0.01, 0.9, 5e-4, True)


def test_no_gradient_is_clipped_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def clipped(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(torch_train, "clip_gradients", clipped)
    build(make_session("torch", "train")).step()
    with pytest.raises(AssertionError):
        build(make_session("torch", "train", max_gradient_norm=1.0)).step()


# The same in both frameworks and in every way to run a step


@cache
def recipe_numbers(framework: Framework, mode: str = "") -> Numbers:
    return dict(build(small_session(framework, mode)).parity())


@pytest.mark.parametrize("mode", ["step.jit", "scan.jit"])
def test_same_numbers_on_both_sides(mode: str) -> None:
    theirs = recipe_numbers("torch")
    require_same(recipe_numbers("jax", mode), theirs)
    gradients = [value for name, value in theirs.items() if name.startswith("gradients/")]
    assert np.sqrt(sum(np.sum(value**2) for value in gradients)) == pytest.approx(0.1)
    assert sum(name.startswith("second_moments/") for name in theirs) == 5


@pytest.mark.parametrize(
    ("framework", "mode"), [("jax", "step.jit"), ("torch", "step.eager"), ("torch", "step.eager_graph")]
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU captures graphs as they are")
def test_reset_forgets_moments_and_steps(framework: Framework, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same memory, for PyTorch."""
    allow_captures(monkeypatch)
    program: Any = build(small_session(framework, mode))

    first = losses_of(program, 4)
    kept = {} if framework == "jax" else dict(program.optimizer.state)
    places = [tensor.data_ptr() for state in kept.values() for tensor in state.values()]
    program.reset()
    if framework == "torch":
        states = program.optimizer.state.values()
        assert [tensor.data_ptr() for state in states for tensor in state.values()] == places
        assert {name for state in states for name in state} == {"step", "exp_avg", "exp_avg_sq"}
    assert losses_of(program, 4) == pytest.approx(first, rel=TOLERANCE)
    assert len(set(first.tolist())) == 4


def test_axes_are_those_of_the_neutral_layout() -> None:
    """Or the frameworks would decay other parameters."""
    session = make_session("jax", "train", benchmark="imagenet100", model="vit_b_16", batch_size=1)
    parameters = nnx.to_flat_state(nnx.state(make_model(session, model_dtypes("fp32")), nnx.Param))
    assert len(parameters) == 152
    for path, leaf in parameters:
        assert to_neutral_layout(path, np.empty(leaf.shape), {}).ndim == len(leaf.shape), neutral_name(path)


# The check

SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1.0}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_check_of_the_recipe(framework: Framework) -> None:
    checks = build(small_session(framework)).check()
    assert len(checks) == 5
    assert max(check.error for check in checks) < TOLERANCE


@pytest.mark.parametrize(
    ("framework", "wrong", "found"),
    [
        ("jax", {"beta2": 0.999}, "updates of 2 steps"),
        ("jax", {"max_gradient_norm": 0.0}, "gradients"),
        ("torch", {"beta2": 0.999}, "updates of 2 steps"),
        ("torch", {"epsilon": 1e-8}, "updates of 2 steps"),
        ("torch", {"weight_decay": 0.0}, "updates of 2 steps"),
        ("torch", {"max_gradient_norm": 0.0}, "gradients"),
        ("torch", {"beta1": 0.5}, "gradients"),
        *((framework, SGD | {"momentum": 0.45}, "updates of 2 steps") for framework in FRAMEWORKS),
        *((framework, SGD | {"weight_decay": 0.0}, "gradients") for framework in FRAMEWORKS),
    ],
    ids=str,
)
def test_the_check_finds_another_optimizer(
    framework: Framework, wrong: dict[str, Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Than the settings ask for. The gradient is the first moment by (1 - beta1), so clip and beta1 show in it."""
    program: Any = build(small_session(framework, **wrong))
    asked_for = small_session(framework, **(SGD if "optimizer" in wrong else {})).measurement.settings
    program.settings = Settings.model_validate(asked_for)
    if "max_gradient_norm" in wrong:
        monkeypatch.setattr(torch_train, "clip_gradients", lambda *_: None)
    with pytest.raises(CheckFailed, match=found):
        program.check()


# Shorter epochs and evaluations


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_epoch_of_fewer_steps(framework: Framework) -> None:
    """Six of twelve steps of each permutation, and the schedule ends with the last of them."""
    program: Any = build(small_session(framework))
    whole: Any = build(small_session(framework, epoch_steps=0))
    assert (len(program.order), len(whole.order)) == (12, 24)
    np.testing.assert_array_equal(program.order, np.concatenate([whole.order[:6], whole.order[12:18]]))
    assert len(program.steps.rates) == 12
    # Two steps of warm-up; the 9th of the ten that are left ends at half a cosine's tenth part.
    assert program.steps.rates[[0, 1, 2]] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert program.steps.rates[-1] == pytest.approx(0.01 * (1 + np.cos(0.9 * np.pi)) / 2)


@pytest.mark.parametrize(("framework", "mode"), [("jax", "step.jit"), ("jax", "scan.jit"), ("torch", "step.eager")])
def test_a_measurement_of_shorter_epochs(framework: Framework, mode: str) -> None:
    """The protocol makes as many steps, and evaluates the first 20 samples."""
    session = small_session(framework, mode)
    result = measure(session)
    plain: Any = build(small_session("torch"))
    plain.settings = plain.settings.model_copy(update={"evaluation_samples": 0})
    plain.session = with_first(plain.session, test=20)
    for point in result.epochs:
        losses = losses_of(plain, 6)
        assert point.train_loss == pytest.approx(losses.mean(), rel=TOLERANCE)
        assert point.test_loss == pytest.approx(plain.evaluate().loss, rel=TOLERANCE)
    assert result.blocks is not None
    assert result.blocks.steps_per_call == (6 if mode == "scan.jit" else 1)
