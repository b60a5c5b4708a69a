"""Training on both sides: step by step from the same weights on the same batches, and the whole use case."""

import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from harness.errors import Refused
from harness.gradient_check import relative_error
from harness.record import EpochPoint
from harness.session import Session
from harness.weights import batch_order, initial_weight
from jax_runner.use_cases import train as jax_train
from jax_runner.weights import to_neutral as jax_to_neutral
from tests.runners.sessions import PROTOCOL, make_session
from torch_runner.use_cases import train as torch_train
from torch_runner.weights import to_neutral

STEPS = 5
BATCH_SIZE = 16
LEARNING_RATE = {"cnn": 0.01, "resnet18": 1e-3}
"""Small for BatchNorm: at large ones two runs of the same program drift apart by rounding alone."""
LOSS_TOLERANCE = 2e-4
"""Relative, in float32; forward and backward round at 1e-6, and five steps with momentum let that grow."""

UPDATE_TOLERANCE = 2e-2
"""Relative L2, in float32: an activation that rounds across zero opens or closes a path through ReLU."""


class Trained(NamedTuple):
    """After STEPS steps."""

    losses: list[float]
    parameters: dict[str, np.ndarray]
    """By neutral name, BatchNorm's running statistics among them."""
    logits: np.ndarray
    """Of the first test images, in evaluation mode."""


def order_of(session: Session) -> np.ndarray:
    measurement = session.measurement
    count = len(session.dataset.train_labels)
    return batch_order(measurement.protocol.seed, count, measurement.variant.batch_size, epochs=1)


def train_with_jax(session: Session) -> Trained:
    training = jax_train.Training(session)
    train_step = jax_train.make_train_step(training, steps_per_call=1)
    dataset = session.dataset
    data = jax.device_put(jax_train.Data(dataset.train_images, dataset.train_labels, order_of(session)))
    state = training.initial_state()
    losses = []
    for _ in range(STEPS):
        state, loss = train_step(state, data)
        losses.append(float(loss))
    logits, _ = training.logits(state.params, state.batch_stats, dataset.test_images[:8], training=False)
    flattened = training.benchmark.FLATTENED
    parameters = jax_to_neutral(state.params, flattened) | jax_to_neutral(state.batch_stats, flattened)
    return Trained(losses, parameters, np.asarray(logits))


def train_with_torch(session: Session) -> Trained:
    training = torch_train.Training(session)
    train_step = torch_train.make_train_step(training, "eager")
    training.reset()
    order = torch.from_numpy(order_of(session)).to(session.device.device)
    losses = [train_step(order[step]).item() for step in range(STEPS)]
    training.objective.eval()
    with torch.no_grad():
        logits = training.objective.logits(torch.from_numpy(session.dataset.test_images[:8]).to(order.device))
    state = training.objective.model.state_dict().items()
    parameters = {name: value.double().cpu().numpy() for name, value in state if "num_batches" not in name}
    return Trained(losses, parameters, logits.cpu().numpy())


class Both(NamedTuple):
    jax: Trained
    torch: Trained


@pytest.fixture(scope="module", params=[("mnist", "cnn"), ("cifar10", "cnn"), ("cifar10", "resnet18")], ids="-".join)
def both(request: pytest.FixtureRequest) -> Both:
    benchmark, model = request.param
    arguments: dict[str, Any] = {
        "benchmark": benchmark,
        "model": model,
        "batch_size": BATCH_SIZE,
        "learning_rate": LEARNING_RATE[model],
        "weight_decay": 0.1,  # so large that its absence would show after one step
    }
    jax_session = make_session("jax", "train", **arguments)
    torch_session = make_session("torch", "train", **arguments)
    return Both(train_with_jax(jax_session), train_with_torch(torch_session))


def test_same_losses_step_by_step(both: Both) -> None:
    np.testing.assert_allclose(both.jax.losses, both.torch.losses, rtol=LOSS_TOLERANCE)
    assert both.jax.losses[0] == pytest.approx(both.torch.losses[0], rel=1e-5)  # nothing has grown yet
    assert len(set(both.jax.losses)) == STEPS


def test_same_updates_after_the_steps(both: Both) -> None:
    """What the steps have added to the initial parameters, all of them together: a missing weight decay or a momentum
    of another meaning is far above the tolerance."""
    names = [name for name in both.torch.parameters if "running" not in name]
    initial = {name: initial_weight(PROTOCOL.seed, name, both.torch.parameters[name].shape) for name in names}
    ours = {name: both.jax.parameters[name] - initial[name] for name in names}
    theirs = {name: both.torch.parameters[name] - initial[name] for name in names}
    assert both.jax.parameters.keys() == both.torch.parameters.keys()
    assert relative_error(ours, theirs) < UPDATE_TOLERANCE


def test_same_running_statistics_after_the_steps(both: Both) -> None:
    for name, value in both.torch.parameters.items():
        if "running" in name:
            assert relative_error({name: both.jax.parameters[name]}, {name: value}) < 2e-3, name


def test_same_logits_in_evaluation_mode(both: Both) -> None:
    scale = np.abs(both.torch.logits).max()
    np.testing.assert_allclose(both.jax.logits, both.torch.logits, rtol=0, atol=2e-3 * scale)


def test_optimizer_by_hand() -> None:
    """Two steps of SGD with momentum and weight decay from the same gradients, on both sides.

    v <- momentum v + (g + decay w);  w <- w - rate v.   With w = 1, g = 0.5, decay = 0.1, momentum = 0.9, rate = 0.2:
    v = 0.6, w = 0.88;  then g + decay w = 0.588, v = 0.54 + 0.588 = 1.128, w = 0.88 - 0.2256 = 0.6544.
    """
    settings = {"learning_rate": 0.2, "momentum": 0.9, "weight_decay": 0.1}
    optimizer = jax_train.Training(make_session("jax", "train", **settings)).optimizer
    weight, gradient = jax.numpy.array(1.0), jax.numpy.array(0.5)
    state = optimizer.init(weight)
    for expected in (0.88, 0.6544):
        updates, state = optimizer.update(gradient, state, weight)
        weight = weight + updates
        assert float(weight) == pytest.approx(expected, rel=1e-6)

    training = torch_train.Training(make_session("torch", "train", **settings))
    parameter = training.objective.model.fc2.bias
    with torch.no_grad():
        parameter.fill_(1.0)
    for expected in (0.88, 0.6544):
        training.optimizer.zero_grad()
        parameter.grad = torch.full_like(parameter, 0.5)
        training.optimizer.step()
        np.testing.assert_allclose(parameter.detach().cpu().numpy(), expected, rtol=1e-6)


def as_a_replay(step: Callable[[], torch.Tensor], _optimizer: Any) -> Callable[[], torch.Tensor]:
    """What a CUDA graph looks like from outside: the loss lies where the last one lay."""
    static_loss = torch.zeros(())

    def replay() -> torch.Tensor:
        return static_loss.copy_(step().detach())

    return replay


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a GPU as it is")
def test_whole_use_case_with_the_step_of_a_cuda_graph(
    torch_epochs: list[EpochPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the step runs uncaptured; its batches, its reset and its losses must be those of eager."""
    monkeypatch.setattr(torch_train, "require_one_gpu", lambda *_: None)
    monkeypatch.setattr(torch_train, "captured", as_a_replay)
    require_same_course(whole_run("torch", "cuda_graph_step"), torch_epochs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("execution_mode", ["compiled_max_autotune", "cuda_graphs", "cuda_graph_step"])
def test_whole_use_case_in_the_modes_of_a_gpu(execution_mode: str, torch_epochs: list[EpochPoint]) -> None:
    require_same_course(whole_run("torch", execution_mode), torch_epochs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="these modes run on a GPU")
@pytest.mark.parametrize("execution_mode", ["compiled_max_autotune", "cuda_graphs", "cuda_graph_step"])
def test_modes_of_a_gpu_are_refused_on_a_cpu(execution_mode: str) -> None:
    with pytest.raises(Refused, match=f"execution mode {execution_mode} needs an NVIDIA GPU"):
        torch_train.run(make_session("torch", "train", execution_mode=execution_mode))


@pytest.mark.parametrize("execution_mode", ["cuda_graphs", "cuda_graph_step"])
def test_cuda_graphs_are_refused_on_several_devices(execution_mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = torch_train.Training(make_session("torch", "train"))
    training.averages = True
    monkeypatch.setattr(training, "device", torch.device("cuda"))
    with pytest.raises(Refused, match=f"{execution_mode} is for one GPU: this project has not tried it on several"):
        torch_train.make_step(training, torch.zeros(2, BATCH_SIZE, dtype=torch.int64), execution_mode)


def test_counting_step_is_the_eager_one() -> None:
    """Losses and weights of 7 steps over 3 batches, so the order begins again twice; then the same after a reset."""

    def course(counting: bool) -> tuple[list[float], dict[str, np.ndarray]]:
        session = make_session("torch", "train", batch_size=BATCH_SIZE, weight_decay=0.1)
        training = torch_train.Training(session)
        order = torch_train.place_order(order_of(session)[:3], session.world, training.device)
        if counting:
            step = torch_train.make_counting_step(training, order)
        else:
            step = torch_train.make_step(training, order, "eager")
        for _ in range(2):  # the second time from the weights, the momentum and the batch of the first
            training.reset()
            losses = [step().item() for _ in range(7)]
        return losses, to_neutral(training.objective.model.state_dict())

    losses, weights = course(counting=True)
    expected_losses, expected_weights = course(counting=False)
    assert len(set(losses)) == 7
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert relative_error(weights, expected_weights) < 1e-5


def test_order_is_placed_as_pytorch_indexes() -> None:
    """Anything but int64 is converted in every step."""
    session = make_session("torch", "train")
    placed = torch_train.place_order(order_of(session), session.world, session.device.device)
    assert placed.dtype == torch.int64
    np.testing.assert_array_equal(placed.cpu().numpy(), order_of(session))


def whole_run(framework: Any, execution_mode: str) -> list[EpochPoint]:
    module = {"jax": jax_train, "torch": torch_train}[framework]
    session = make_session(framework, "train", batch_size=200, execution_mode=execution_mode, epochs=2)
    result = module.run(session)
    assert result.recompiles == 0
    assert result.blocks.steps_per_call == (7 if execution_mode == "scan" else 1)  # 1536 // 200
    return result.epochs


@pytest.fixture(scope="module")
def torch_epochs() -> list[EpochPoint]:
    return whole_run("torch", "eager")


@pytest.mark.parametrize("execution_mode", ["jit", "scan"])
def test_whole_use_case_learns_the_same_on_both_sides(execution_mode: str, torch_epochs: list[EpochPoint]) -> None:
    """Same batches in the same order, both epochs from the initial weights: whatever was timed before left no trace."""
    require_same_course(whole_run("jax", execution_mode), torch_epochs)


def require_same_course(epochs: list[EpochPoint], expected: list[EpochPoint]) -> None:
    assert [point.epoch for point in epochs] == [1, 2]
    for ours, theirs in zip(epochs, expected, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)
        assert ours.test_loss == pytest.approx(theirs.test_loss, rel=1e-3)
        assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=0.01)
    assert epochs[1].train_loss < epochs[0].train_loss


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_nothing_of_the_timed_part_is_left_for_the_control(framework: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On several devices the control of a large model needs the memory."""
    module = {"jax": jax_train, "torch": torch_train}[framework]
    made = []

    class Watched(module.Training):
        def __init__(self, session: Session) -> None:
            super().__init__(session)
            made.append(weakref.ref(self.model if framework == "jax" else self.objective))

    monkeypatch.setattr(module, "Training", Watched)
    session = make_session(framework, "train", batch_size=256)
    order = order_of(session)
    gc.collect()
    before_bytes = sum(array.nbytes for array in jax.live_arrays())
    if framework == "jax":
        jax_train.measure(session, order, steps_per_call=1)
    else:
        torch_train.measure(session, torch.from_numpy(order).to(session.device.device))
    gc.collect()
    assert [reference() for reference in made] == [None]
    assert sum(array.nbytes for array in jax.live_arrays()) - before_bytes < 10_000  # the images are 1.2 MB


def test_reset_brings_the_initial_state_back() -> None:
    session = make_session("torch", "train", batch_size=BATCH_SIZE)
    training = torch_train.Training(session)
    train_step = torch_train.make_train_step(training, "eager")
    order = torch.from_numpy(order_of(session)).to(session.device.device)

    def losses() -> list[float]:
        training.reset()
        return [train_step(order[step]).item() for step in range(3)]

    assert losses() == pytest.approx(losses(), rel=1e-6)

    jax_training = jax_train.Training(make_session("jax", "train", batch_size=BATCH_SIZE))
    first, second = jax_training.initial_state(), jax_training.initial_state()
    for before, after in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(before, after)


def test_timed_step_gets_and_returns_plain_containers() -> None:
    """JAX takes these apart in C++; any other, such as an nnx.State, in Python and in every call."""
    training = jax_train.Training(make_session("jax", "train", benchmark="cifar10", model="resnet18"))
    state = training.initial_state()
    data = jax_train.Data(training.dataset.train_images, training.dataset.train_labels, np.zeros((1, 8), np.int32))
    assert is_plain(state)
    assert is_plain(jax.eval_shape(jax_train.make_train_step(training, steps_per_call=1), state, data))
    assert not is_plain(nnx.state(training.model))


def is_plain(tree: Any) -> bool:
    if isinstance(tree, tuple):  # JAX knows named tuples too
        return all(map(is_plain, tree))
    if isinstance(tree, dict):
        return all(map(is_plain, tree.values()))
    return isinstance(tree, jax.Array | jax.ShapeDtypeStruct)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_test_loss_that_is_not_finite_fails(framework: Any) -> None:
    """One step per epoch: the loss of the initial weights is finite; only the evaluation sees what became of them."""
    from harness.errors import CheckFailed

    module = {"jax": jax_train, "torch": torch_train}[framework]
    session = make_session(framework, "train", batch_size=1536, learning_rate=1e30)
    with pytest.raises(CheckFailed, match=r"the test loss after epoch 1, step 1 of 1, is (nan|inf): training diverged"):
        module.run(session)
