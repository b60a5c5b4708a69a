"""Training with a schedule, smoothed labels, crops and chunks: the same in both frameworks, and what it should be."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from harness.errors import CheckFailed, ConfigError, DataError, Refused
from harness.plan import FRAMEWORKS, Framework
from harness.results.parity import gate_measurement
from harness.results.record import EpochPoint
from harness.work import chunks
from harness.work.tasks import IMAGES_OF_MANY_CLASSES
from harness.work.use_cases import train as declared
from harness.work.weights import initial_weight
from jax_runner.use_cases import train as jax_train
from tests.made.captures import allow_captures, only_trace
from tests.made.numbers import TOLERANCE, Numbers, error_of, losses_of, require_same
from tests.made.sessions import build, make_session, measure, with_first, with_pretrained
from tests.runners.test_optimizer import small_session as session_of_adamw
from torch_runner.use_cases import train as torch_train

MODULES: dict[Framework, Any] = {"jax": jax_train, "torch": torch_train}
RECIPE = {
    "schedule": "cosine",
    "warmup_epochs": 0.3,
    "label_smoothing": 0.1,
    "augmentation": "crop_and_flip",
    "epochs": 2,
}
TEXT: dict[str, Any] = {"benchmark": "text", "model": "mlp"}
"""Of dense layers: JAX has no fast convolution in float64 on a CPU."""
BATCH_SIZE = 12
SAMPLE_BYTES = 28 * 28 + 4


def small_session(framework: Framework, train: int = 96, test: int = 20, **arguments: Any) -> Any:
    """mnist's first samples: 8 steps in an epoch."""
    arguments = {"batch_size": BATCH_SIZE, "precision": "fp64", "weight_decay": 0.1} | arguments
    return with_first(make_session(framework, "train", **arguments), train, test)


@cache
def recipe_numbers(framework: Framework, mode: str = "", **settings: Any) -> Numbers:
    """What the gate compares, of the whole recipe unless told otherwise."""
    program = build(small_session(framework, execution_mode=mode, **(RECIPE | settings)))
    return dict(program.parity())


@pytest.mark.parametrize("mode", ["step.jit", "scan.jit"])
def test_the_recipe_is_the_same_on_both_sides(mode: str) -> None:
    require_same(recipe_numbers("jax", mode), recipe_numbers("torch"))


SESSIONS = {
    "crops and smoothing": lambda mode: small_session("torch", execution_mode=mode, **RECIPE),
    "AdamW and clipping": lambda mode: session_of_adamw("torch", mode),
}


@pytest.mark.parametrize("mode", ["step.compiled", "step.eager_graph", "step.compiled_graph", "epoch.compiled_graph"])
@pytest.mark.parametrize("recipe", SESSIONS)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU captures them as they are")
def test_recipes_in_graphs(recipe: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates and crops come from the device's own count. Of an epoch's graph, the losses of both epochs, twice."""
    plain: Any = build(SESSIONS[recipe]("step.eager"))
    only_trace(monkeypatch)
    allow_captures(monkeypatch)
    program: Any = build(SESSIONS[recipe](mode))
    if mode != "epoch.compiled_graph":
        require_same(dict(program.parity()), dict(plain.parity()))
        return
    expected = losses_of(plain, 2 * program.steps_per_call)
    for _ in range(2):
        program.reset()
        losses = losses_of(program, 2)
        np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("setting", "without"),
    [("schedule", "constant"), ("warmup_epochs", 0.0), ("label_smoothing", 0.0), ("augmentation", "none")],
)
def test_each_setting_shows_in_what_the_gate_compares(setting: str, without: Any) -> None:
    with_all, other = recipe_numbers("torch"), recipe_numbers("torch", **{setting: without})
    first = {"schedule": "updates/fc2.weight", "warmup_epochs": "updates/fc2.weight"}.get(setting, "loss")
    assert error_of(first, with_all, other) > 1e-3
    if first != "loss":
        np.testing.assert_array_equal(with_all["loss"], other["loss"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_updates_follow_the_rates(framework: Framework) -> None:
    """Two epochs of one step: the rates are 0.1 and 0.05. Without momentum and decay the second step goes half as far
    as at a constant rate."""
    settings = {"epochs": 2, "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 96} | TEXT

    def weights_after(steps: int, **schedule: Any) -> Numbers:
        program: Any = build(small_session(framework, **settings, **schedule))
        for _ in range(steps):
            program.step()
        if framework == "torch":
            return torch_train.to_neutral(dict(program.model.named_parameters()))
        return program.to_neutral(program.own_state().params)

    one, two = (weights_after(steps) for steps in (1, 2))
    scheduled = weights_after(2, schedule="cosine")
    half = {name: one[name] + 0.5 * (two[name] - one[name]) for name in one}
    for name, value in half.items():
        np.testing.assert_allclose(scheduled[name], value, rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_constant_rate_needs_no_array(framework: Framework) -> None:
    program: Any = build(small_session(framework, label_smoothing=0.1))
    assert (program.steps.rates, program.steps.crops) == (None, None)
    if framework == "torch":
        assert program.optimizer.param_groups[0]["lr"] == 0.01
        assert (program.rates, program.placed_crops) == (None, None)
    else:
        assert program.data.crops is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_check_knows_the_recipe(framework: Framework) -> None:
    """And finds a program with another one."""
    session = small_session(framework, **RECIPE)
    program: Any = build(session)
    assert all(check.error < TOLERANCE for check in program.check())
    settings = program.steps
    for wrong in (
        replace(settings, crops=settings.crops[::-1]),
        replace(settings, rates=np.full_like(settings.rates, 0.02)),
    ):
        program.steps = wrong
        with pytest.raises(CheckFailed, match="of the step against float64"):
            program.check()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_labels_that_the_program_does_not_smooth_are_found(framework: Framework) -> None:
    program: Any = build(small_session(framework, **RECIPE))
    program.problem.label_smoothing = 0.0
    with pytest.raises(CheckFailed, match="gradients of the step against float64"):
        program.check()


def test_crops_are_for_images() -> None:
    with pytest.raises(ConfigError, match="crop_and_flip is for images; this training set has tokens"):
        build(make_session("torch", "train", benchmark="text", model="mlp", augmentation="crop_and_flip"))


# The weights that training begins with


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_begins_with_the_pretrained_weights(framework: Framework) -> None:
    """Drawn from another seed here; the gate keeps to those of its own."""
    other = partial(initial_weight, 77)
    session = with_pretrained(small_session(framework, **TEXT), other)
    program: Any = build(session)
    assert all(check.error < TOLERANCE for check in program.check())
    protocol = session.measurement.protocol.model_copy(update={"seed": 77})
    drawn: Any = build(small_session(framework, protocol=protocol, **TEXT))
    (loss, score, _), (expected_loss, expected_score, _) = (one.evaluate() for one in (program, drawn))
    assert (loss, score) == pytest.approx((expected_loss, expected_score), rel=TOLERANCE)
    gated = replace(session, measurement=gate_measurement(session.measurement))
    assert gated.measurement.settings["weights"] == "drawn"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_pretrained_weights_that_are_not_there(framework: Framework) -> None:
    with pytest.raises(DataError, match="weights: pretrained: there are none for cnn of mnist .sample data.. Choose"):
        build(with_pretrained(small_session(framework), None))


# Evaluation


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_evaluation_in_batches_of_large_images(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 samples in batches of 8, 8 and 4, as in one; labels are not smoothed, images not cut."""
    plain = build(small_session(framework)).evaluate()  # type: ignore[attr-defined]
    monkeypatch.setattr(declared, "EVALUATION_BYTES", 8 * SAMPLE_BYTES)
    session = small_session(framework, **RECIPE)
    assert declared.evaluation_batch(session.dataset.test) == 8
    session = replace(session, benchmark=replace(session.benchmark, task=IMAGES_OF_MANY_CLASSES))
    found = build(session).evaluate()  # type: ignore[attr-defined]
    assert found[:2] == pytest.approx(plain[:2], rel=TOLERANCE)
    assert plain.further_scores == {}
    (top_5,) = found.further_scores.values()
    assert plain.score < top_5 < 1
    assert (top_5 * 20) == pytest.approx(round(top_5 * 20))


# Chunks


@cache
def course(framework: Framework, mode: str, bound: int | None, batch_size: int = BATCH_SIZE) -> list[EpochPoint]:
    """Two epochs of 8 steps; a chunk of 5 steps ends within the first epoch and begins again in the second."""
    with pytest.MonkeyPatch.context() as patch:
        if bound is not None:
            patch.setattr(chunks, "CHUNK_BYTES", bound)
        if mode.endswith("_graph"):
            allow_captures(patch)
        return measure(small_session(framework, execution_mode=mode, batch_size=batch_size, **RECIPE)).epochs


FIVE_STEPS = 5 * BATCH_SIZE * SAMPLE_BYTES


@pytest.mark.parametrize(
    ("framework", "mode"),
    [
        ("jax", "scan.jit"),
        ("torch", "step.eager"),
        ("torch", "step.eager_graph"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU captures graphs as they are")
def test_a_training_set_in_chunks_gives_the_same_losses(framework: Framework, mode: str) -> None:
    """Exactly; an epoch's calls of 4 steps are those of `scan`. The time of the copies is told and not added."""
    whole = course(framework, "step.jit" if mode == "scan.jit" else mode, None)
    cut = course(framework, mode, FIVE_STEPS)
    for ours, theirs in zip(cut, whole, strict=True):
        if mode == "scan.jit":  # another program
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=TOLERANCE)
            assert ours.test_loss == pytest.approx(theirs.test_loss, rel=TOLERANCE)
        else:
            assert (ours.train_loss, ours.test_loss) == (theirs.train_loss, theirs.test_loss)
        assert theirs.input_time_s is None
        assert ours.input_time_s is not None and ours.input_time_s > 0


def test_chunks_are_the_same_on_both_sides() -> None:
    for ours, theirs in zip(
        course("jax", "step.jit", FIVE_STEPS), course("torch", "step.eager", FIVE_STEPS), strict=True
    ):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=TOLERANCE)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_device_holds_one_chunk(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    """Always in the same place for PyTorch, whose graphs point at it; of the same shape for JAX."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", FIVE_STEPS)
    program: Any = build(small_session(framework, epochs=2))
    labels = program.order.ravel()

    def there() -> np.ndarray:
        images = program.problem.images if framework == "torch" else program.data.arrays["images"]
        assert images.shape == (5 * BATCH_SIZE, 28, 28, 1)
        return np.asarray(images.cpu() if framework == "torch" else images)

    place = program.problem.images.data_ptr() if framework == "torch" else None
    images = program.session.dataset.train["images"]
    assert [program.load(step) for step in (0, 3, 5, 14, 15)] == [5, 2, 5, 1, 5]
    of_last = np.concatenate([labels[15 * BATCH_SIZE :], labels[: 4 * BATCH_SIZE]])
    np.testing.assert_array_equal(there(), images[of_last])
    program.reset()
    np.testing.assert_array_equal(there(), images[labels[: 5 * BATCH_SIZE]])
    if framework == "torch":
        assert program.problem.images.data_ptr() == place


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_check_and_gate_of_a_chunk(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", FIVE_STEPS)
    program: Any = build(small_session(framework, **RECIPE))
    assert not program.is_resident
    assert all(check.error < TOLERANCE for check in program.check())
    require_same(dict(program.parity()), recipe_numbers("torch"))


def test_a_scan_of_one_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 steps in an epoch, of which a chunk holds 5."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", FIVE_STEPS)
    with pytest.raises(Refused, match="scan.jit needs an epoch of steps that 2 to 5 divide, as many as a chunk"):
        build(small_session("jax", train=84, execution_mode="scan.jit"))
