"""Training on both sides: in float64 the same numbers in every execution mode, and the whole use case."""

import gc
import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from harness.errors import CheckFailed
from harness.plan import FRAMEWORKS, Framework
from harness.results.record import EpochPoint
from harness.work.weights import batch_order, initial_weight
from jax_runner.use_cases import train as jax_train
from tests.made.captures import allow_captures, only_trace
from tests.made.laid_out import OnGpu, backwards, kernels_in_memory
from tests.made.numbers import TOLERANCE, Numbers, losses_of, require_same
from tests.made.sessions import build, make_session, measure, with_first, with_measurement, with_small_images
from torch_runner.use_cases import train as torch_train

pytestmark = pytest.mark.takes(40)

MODULES: dict[Framework, Any] = {"jax": jax_train, "torch": torch_train}


@cache
def trained(framework: Framework, benchmark: str, model: str, mode: str = "") -> Numbers:
    """The first batch, five steps, and after them the evaluation of eight test samples.

    The weight decay is so large that its absence would show; the learning rate so small that two runs of a deep network
    with BatchNorm do not drift apart by rounding.
    """
    session = make_session(
        framework,
        "train",
        benchmark=benchmark,
        model=model,
        execution_mode=mode,
        precision="fp64",
        learning_rate=1e-4,
        weight_decay=1.0,
    )
    program: Any = build(with_first(with_small_images(session), test=8))
    numbers = dict(program.parity())
    loss, score, _ = program.evaluate()
    return numbers | {"test loss": np.array(loss), "test score": np.array(score)}


@pytest.mark.parametrize(("benchmark", "model"), [("cifar10", "cnn"), ("text", "mlp")])
def test_same_numbers_on_both_sides(benchmark: str, model: str) -> None:
    """Outputs, losses, gradients, updates, and the evaluation. Of BatchNorm: test_gate_bites.py."""
    ours, theirs = trained("jax", benchmark, model), trained("torch", benchmark, model)
    require_same(ours, theirs)
    assert len(set(ours["losses_of_steps"])) == 5


@pytest.mark.parametrize(("framework", "mode"), [("jax", "scan.jit"), ("torch", "step.compiled")])
def test_same_numbers_in_every_mode(framework: Framework, mode: str) -> None:
    """By XLA and by Inductor itself."""
    require_same(trained(framework, "text", "mlp", mode), trained("torch", "text", "mlp"))


# The whole use case


@cache
def whole_run(framework: Framework, mode: str = "") -> list[EpochPoint]:
    """Of few and small batches: JAX has no fast convolution in float64 on a CPU."""
    session = make_session(framework, "train", batch_size=16, execution_mode=mode, epochs=2, precision="fp64")
    result = measure(with_first(session, train=120, test=40))
    assert result.recompiles == 0
    assert result.blocks is not None
    assert result.blocks.steps_per_call == (7 if mode == "epoch.compiled_graph" else 1)  # 120 // 16
    assert result.blocks_alone is None
    return result.epochs


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_short_replicate_has_its_own_seed_and_measures_what_a_ratio_needs(framework: Framework) -> None:
    """The plan's seed is 3, so the fourth replicate's is 6."""
    session = with_first(make_session(framework, "train", batch_size=16), train=120)
    session = with_measurement(session, replicate=3)
    result = measure(session)
    assert result.blocks and result.checks and result.compile_time_s is not None
    assert (result.latency, result.epochs, result.details.get("phases")) == (None, [], None)
    program: Any = build(session)
    for name, weight in program.weights().items():
        np.testing.assert_array_equal(weight, initial_weight(6, name, weight.shape), err_msg=name)
    np.testing.assert_array_equal(program.order, batch_order(6, 120, 16, 1))


@pytest.mark.parametrize(
    ("framework", "mode"), [("jax", "step.jit"), ("torch", "step.eager_graph"), ("torch", "epoch.compiled_graph")]
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU captures graphs as they are")
def test_whole_use_case_learns_the_same_on_both_sides(
    framework: Framework, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same batches in the same order, both epochs from the initial weights: whatever was timed before left no trace.

    On a CPU the step of a CUDA graph runs uncaptured; its batches, its reset and its losses must be those of eager. The
    order of 14 batches begins again and again while it is timed.
    """
    expected = whole_run("torch")
    allow_captures(monkeypatch)
    only_trace(monkeypatch)
    epochs = whole_run(framework, mode)
    assert [point.epoch for point in epochs] == [1, 2]
    for ours, theirs in zip(epochs, expected, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=TOLERANCE)
        assert ours.test_loss == pytest.approx(theirs.test_loss, rel=TOLERANCE)
        assert ours.test_metric == theirs.test_metric
    assert epochs[1].train_loss < epochs[0].train_loss


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_reference_that_the_device_has_no_memory_for_is_made_on_the_cpu(
    framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the check needs must not stand for what the program needs."""
    program: Any = build(make_session(framework, "train"))
    right, asked = program.reference_on, []

    def short_of_memory(where: Any) -> Any:
        asked.append(where)
        if len(asked) == 1:
            raise {"jax": RuntimeError, "torch": torch.OutOfMemoryError}[framework]("RESOURCE_EXHAUSTED: out of memory")
        return right(where)

    monkeypatch.setattr(program, "reference_on", short_of_memory)
    assert all(check.passed for check in program.check())
    assert len(asked) == 2


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_diverging_training_is_told_before_it_is_timed(framework: Framework) -> None:
    session = make_session(framework, "train", learning_rate=1e30)
    with pytest.raises(CheckFailed, match=r"the loss of epoch 1, step 2 of 2, is (nan|inf): training diverged"):
        measure(session)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_of_the_timed_part_is_left_for_the_control(
    framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On several devices the control of a large model needs the memory."""
    module = MODULES[framework]
    right = module.build
    models: list[weakref.ref[Any]] = []
    left_bytes: list[int] = []

    def watched(session: Any, *, joined: bool = True) -> Any:
        assert [model() for model in models] == [None] * len(models)
        left_bytes.append(sum(array.nbytes for array in jax.live_arrays()))
        program = right(session, joined=joined)
        program.step()  # JAX asks while it traces
        program.communicates = joined
        models.append(weakref.ref(program.model))
        return program

    monkeypatch.setattr(module, "build", watched)
    gc.collect()
    result = measure(with_first(make_session(framework, "train", batch_size=16), train=480))
    assert result.blocks_alone is not None
    before, after = left_bytes
    assert after - before < 10_000  # the images are 0.4 MB


# What the timed steps get


def test_order_is_placed_as_pytorch_indexes() -> None:
    """Anything but int64 is converted in every step."""
    program: Any = build(make_session("torch", "train"))
    assert program.placed_order.dtype == torch.int64
    np.testing.assert_array_equal(program.placed_order.cpu().numpy(), program.order)


def test_timed_step_gets_and_returns_plain_containers() -> None:
    """JAX takes these apart in C++; any other, such as an nnx.State, in Python and in every call."""
    program: Any = build(make_session("jax", "train", benchmark="cifar10", model="resnet18"))
    assert is_plain(program.state())
    assert is_plain(jax.eval_shape(program.compute, *program.state()))
    assert not is_plain(nnx.state(program.model))


@pytest.mark.parametrize("mode", ["step.jit", "scan.jit"])
def test_jax_step_overwrites_its_state_and_keeps_the_data(mode: str) -> None:
    """As PyTorch's step does: otherwise JAX needs its weights and the optimizer's state twice, and copies them."""
    session = make_session("jax", "train", benchmark="text", model="mlp", execution_mode=mode)
    program: Any = build(with_first(session, train=24, test=8))
    state, data = program.state()
    program.step()
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(data))


@pytest.mark.parametrize("mode", ["step.jit", "scan.jit"])
def test_jax_state_lies_as_xla_wants_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA is free in what comes in and what goes out, so that it can be donated. The same training, from each reset to
    the evaluation, and the check passes."""
    session = with_first(make_session("jax", "train", precision="fp64", execution_mode=mode), train=24, test=16)
    plain: Any = build(session)
    program: Any = build(replace(session, device=OnGpu()))
    assert program.lowered().as_text().count('layout_mode = "auto"') == 2 * len(jax.tree.leaves(plain.current))
    monkeypatch.setattr(jax_train, "FREE", backwards(plain.current))
    program = build(replace(session, device=OnGpu()))
    program.compile()
    program.place()
    assert kernels_in_memory(program.current) == {(3, 2, 1, 0)}
    programs = program.session.device.compilations()
    of_step = program.step()[1]
    assert (program.session.device.compilations(), type(program.run)) == (programs, jax.stages.Compiled)
    np.testing.assert_allclose(of_step, plain.step()[1], rtol=1e-12)
    program.check()
    plain.reset()
    for _ in range(2):
        np.testing.assert_allclose(program.step()[1], plain.step()[1], rtol=1e-12)
    assert kernels_in_memory(program.current) == {(3, 2, 1, 0)}
    np.testing.assert_allclose(program.evaluate()[:2], plain.evaluate()[:2], rtol=1e-12)
    require_same(dict(program.parity()), dict(plain.parity()))


def is_plain(tree: Any) -> bool:
    if isinstance(tree, tuple):  # JAX knows named tuples too
        return all(map(is_plain, tree))
    if isinstance(tree, dict):
        return all(map(is_plain, tree.values()))
    return tree is None or isinstance(tree, jax.Array | jax.ShapeDtypeStruct)


# The check of JAX's training. Other optimizers are in test_optimizer.py, wrong kernels in test_wrong_kernels.py.


def three_steps(mode: str, **others: Any) -> Any:
    """Three steps in an epoch of 24 samples."""
    return with_first(make_session("jax", "train", batch_size=8, execution_mode=mode, **others), train=24)


@pytest.mark.parametrize("mode", ["step.jit", "scan.jit"])
def test_what_is_right_passes(mode: str) -> None:
    """And leaves the program as it was built."""
    program: Any = build(three_steps(mode, weight_decay=0.1))
    calls = 1 if program.steps_per_call > 1 else 3
    first = losses_of(program, calls)
    assert len(set(first.tolist())) == 3
    errors = [check.error for check in program.check()]
    assert len(errors) == {"step.jit": 5, "scan.jit": 6}[mode]
    assert max(errors) < 1e-4
    assert losses_of(program, calls) == pytest.approx(first, rel=1e-6)


def test_a_scan_that_repeats_a_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong between the steps of a call shows in no single step."""
    right = jax_train.Training.optimizer_step

    def wrong(self: Any, state: Any, data: Any) -> Any:
        state, loss = right(self, state, data)
        return state._replace(step=0 * state.step), loss

    monkeypatch.setattr(jax_train.Training, "optimizer_step", wrong)
    with pytest.raises(CheckFailed, match="of 2 scanned steps against float64"):
        build(three_steps("scan.jit")).check()
