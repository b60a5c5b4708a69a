"""Training with a schedule, smoothed labels, crops and chunks: the same in both frameworks, and what it should be."""

from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest import mock

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
from tests.made.captures import allow_captures, only_trace
from tests.made.numbers import TOLERANCE, Numbers, error_of, losses_of, require_same
from tests.made.sessions import build, make_session, measure, with_first, with_pretrained
from tests.runners.test_optimizer import small_session as session_of_adamw

pytestmark = pytest.mark.takes(25)

RECIPE = {
    "schedule": "cosine",
    "warmup_epochs": 0.3,
    "label_smoothing": 0.1,
    "augmentation": "crop_and_flip",
    "epochs": 2,
}
TEXT: dict[str, Any] = {"benchmark": "text", "model": "mlp"}
"""Of dense layers: JAX has no fast convolution in float64 on a CPU."""
BATCH_SIZE = 4
SAMPLE_BYTES = 28 * 28 + 4


def small_session(framework: Framework, train: int = 8 * BATCH_SIZE, test: int = 20, **arguments: Any) -> Any:
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


def session_of_crops(framework: Framework, mode: str) -> Any:
    return small_session(framework, execution_mode=mode, **RECIPE)


@pytest.mark.parametrize(
    ("session_of", "mode"),
    [
        *((session_of_crops, mode) for mode in ("step.compiled", "step.compiled_graph", "epoch.compiled_graph")),
        *((session_of_adamw, mode) for mode in ("step.eager_graph", "epoch.compiled_graph")),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU captures them as they are")
def test_recipes_in_graphs(session_of: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates and crops come from the device's own count. Of an epoch's graph, the losses of both epochs, twice."""
    plain: Any = build(session_of("torch", "step.eager"))
    only_trace(monkeypatch)
    allow_captures(monkeypatch)
    program: Any = build(session_of("torch", mode))
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
def test_the_check_knows_the_recipe(framework: Framework) -> None:
    """And finds a program with another one."""
    session = small_session(framework, **RECIPE)
    program: Any = build(session)
    assert all(check.error < TOLERANCE for check in program.check())
    right, plain = program.steps, small_session(framework, **(RECIPE | {"label_smoothing": 0.0}))
    for other in (
        {"steps": replace(right, crops=right.crops[::-1])},
        {"steps": replace(right, rates=np.full_like(right.rates, 0.02))},
        {"session": plain, "settings": declared.Settings.model_validate(plain.measurement.settings)},
    ):
        with mock.patch.multiple(program, **other), pytest.raises(CheckFailed, match="of the step against float64"):
            program.check()


def test_crops_are_for_images() -> None:
    with pytest.raises(ConfigError, match="crop_and_flip is for images; this training set has tokens"):
        build(make_session("torch", "train", **TEXT, augmentation="crop_and_flip"))


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


@pytest.mark.parametrize(("framework", "use_case"), [("torch", "train"), ("jax", "inference")])
def test_pretrained_weights_that_are_not_there(framework: Framework, use_case: str) -> None:
    with pytest.raises(DataError, match="weights: pretrained: there are none for cnn of mnist .sample data.. Choose"):
        build(with_pretrained(make_session(framework, use_case), None))


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


def course(framework: Framework, mode: str) -> list[EpochPoint]:
    """Two epochs of 8 steps."""
    return measure(small_session(framework, execution_mode=mode, **RECIPE)).epochs


@cache
def course_of_a_whole_set() -> list[EpochPoint]:
    """Return PyTorch's epochs with the whole training set on the device."""
    return course("torch", "step.eager")


FIVE_STEPS = 5 * BATCH_SIZE * SAMPLE_BYTES


@pytest.mark.parametrize(
    ("framework", "mode"),
    [("jax", "step.jit"), ("jax", "scan.jit"), ("torch", "step.eager"), ("torch", "step.eager_graph")],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU captures graphs as they are")
def test_a_training_set_in_chunks_gives_the_same_losses(
    framework: Framework, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of 5 steps ends within the first epoch and begins again in the second; an epoch's calls of 4 steps are
    those of `scan`. The time of the copies is told and not added."""
    whole = course_of_a_whole_set()
    monkeypatch.setattr(chunks, "CHUNK_BYTES", FIVE_STEPS)
    allow_captures(monkeypatch)
    for ours, theirs in zip(course(framework, mode), whole, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=TOLERANCE)
        assert ours.test_loss == pytest.approx(theirs.test_loss, rel=TOLERANCE)
        assert theirs.input_time_s is None
        assert ours.input_time_s is not None and ours.input_time_s > 0


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
        build(small_session("jax", train=7 * BATCH_SIZE, execution_mode="scan.jit"))
