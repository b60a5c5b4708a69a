"""SGD, AdamW and clipping in both frameworks: as they are written down in harness/work/optimizers.py, of which
tests/harness/work/test_optimizers.py has the numbers by hand, in every way to run a step, and shorter epochs."""

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


# What was left out changes nothing


def test_plain_sgd_of_jax_is_optaxs() -> None:
    """The same operations."""
    weights = {"matrix": jnp.ones((1, 1)), "vector": jnp.ones(1)}

    def operations(optimizer: optax.GradientTransformation) -> str:
        return str(jax.make_jaxpr(optimizer.update)(weights, optimizer.init(weights), weights))

    settings = Settings.model_validate(SETTINGS["train"])
    plain = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.01, momentum=0.9))
    assert operations(make_optimizer(settings, None)) == operations(plain)


def test_plain_sgd_of_pytorch_is_one_fused_optimizer_that_clips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a constant rate, which needs no array."""
    monkeypatch.setattr(torch_train, "clip_gradients", None)
    program: Any = build(make_session("torch", "train"))
    program.step()
    assert type(program.optimizer) is torch.optim.SGD
    assert [(type(group["lr"]), group["fused"]) for group in program.optimizer.param_groups] == [(float, True)]


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

    def places() -> list[int]:
        states = program.optimizer.state.values() if framework == "torch" else []
        return [state[name].data_ptr() for state in states for name in ("step", "exp_avg", "exp_avg_sq")]

    first, before = losses_of(program, 4), places()
    program.reset()
    assert places() == before
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


@pytest.mark.parametrize("max_norm", [0.1, 100.0], ids=["clipped", "as they are"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_check_of_the_recipe(framework: Framework, max_norm: float) -> None:
    checks = build(small_session(framework, max_gradient_norm=max_norm)).check()
    assert len(checks) == 5
    assert max(check.error for check in checks) < TOLERANCE


@pytest.mark.parametrize(
    ("framework", "wrong", "found"),
    [
        ("jax", {"beta2": 0.999}, "updates of 2 steps"),
        ("jax", {"max_gradient_norm": 0.0}, "gradients"),
        ("torch", {"epsilon": 1e-8}, "updates of 2 steps"),
        ("torch", {"weight_decay": 0.0}, "updates of 2 steps"),
        ("torch", {"beta1": 0.5}, "gradients"),
        ("jax", SGD | {"weight_decay": 0.0}, "gradients"),
        ("torch", SGD | {"momentum": 0.45}, "updates of 2 steps"),
    ],
    ids=str,
)
def test_the_check_finds_another_optimizer(framework: Framework, wrong: dict[str, Any], found: str) -> None:
    """Than the settings ask for. The gradient is the first moment by (1 - beta1), so clip and beta1 show in it."""
    program: Any = build(small_session(framework, **wrong))
    asked_for = small_session(framework, **(SGD if "optimizer" in wrong else {})).measurement.settings
    program.settings = Settings.model_validate(asked_for)
    with pytest.raises(CheckFailed, match=found):
        program.check()


# Shorter epochs and evaluations


def test_an_epoch_of_fewer_steps() -> None:
    """Six of twelve steps of each permutation, and the schedule ends with the last of them."""
    program: Any = build(small_session("torch"))
    whole: Any = build(small_session("torch", epoch_steps=0))
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
