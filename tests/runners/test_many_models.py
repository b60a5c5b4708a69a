"""Use case 6: every formulation on both sides gives each of the N models what training it alone gives.

The reference is written out here: plain PyTorch modules and torch.optim.SGD in float64, one model after the other.
The formulations run in float64 too, so that only a mistake can make a difference; float32 has its own tests.
"""

import re
from functools import cache
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from harness.errors import CheckFailed
from harness.measure import clock
from harness.plan import Framework
from harness.work.closeness import relative_error
from harness.work.use_cases import many_models as shared
from harness.work.use_cases.many_models import USE_CASE
from harness.work.weights import initial_weight
from jax_runner.use_cases import many_models as jax_use_case
from tests.made.captures import allow_captures, only_trace
from tests.made.numbers import TOLERANCE, Numbers, require_same
from tests.made.sessions import PROTOCOL, build, make_session, measure, with_variant
from torch_runner.use_cases import many_models as torch_use_case
from torch_runner.weights import load_initial_weights

pytestmark = pytest.mark.takes(30)

COUNT = 3
BATCH_SIZE = 4
MODELS = ("linear", "conv2d", "mlp", "convnet", "cnn")
"""Of `synthetic`, and that of `mnist`."""
MODES = {
    ("jax", "vmap.jit"): ("linear", "conv2d", "mlp", "convnet"),
    ("jax", "unrolled.jit"): ("mlp",),
    ("jax", "map.jit"): ("mlp",),
    ("jax", "side_by_side.jit"): ("convnet",),
    ("jax", "patches.jit"): ("convnet",),
    ("torch", "loop.eager"): ("mlp", "convnet", "cnn"),
    ("torch", "batched.eager"): MODELS,
    ("torch", "vmap.eager"): ("mlp", "convnet", "cnn"),
    ("torch", "conv1d_loop.eager"): ("mlp",),
    ("torch", "grouped_conv1d.eager"): ("mlp",),
    ("torch", "patches.eager"): ("convnet", "cnn"),
}
"""Each with its models here: few of those of one layer, and of JAX's those that XLA compiles in a short time."""
TRACED = [
    mode.name
    for mode in USE_CASE.modes["torch"]
    if mode.formulation != "streams"
    and mode.run_as != "max_autotune"
    and (mode.run_as == "compiled") != (mode.graph == "step")
]
"""Captured, or traced for a compiler."""
CASES = [
    *((*mode, model, "different", "separate") for mode, models in MODES.items() for model in models),
    *((*mode, "mlp", "same", "one") for mode in (("jax", "vmap.jit"), ("torch", "batched.eager"))),
    ("torch", "patches.eager", "convnet", "same", "one"),
]
"""With batches and learning rates: every value of both, in two runs; the second in few modes, and forward in all."""
SINGLE = 1e-4
"""Float32 rounds at 6e-8; five steps add up, and gradients are small beside what they are sums of."""


MODULES: dict[str, Any] = {"jax": jax_use_case, "torch": torch_use_case}


def session(
    framework: Framework,
    mode: str,
    model: str,
    batches: str = "different",
    rates: str = "separate",
    *,
    models: int = COUNT,
    **others: Any,
) -> Any:
    return make_session(
        framework,
        "many_models",
        benchmark="mnist" if model == "cnn" else "synthetic",
        model=model,
        batch_size=BATCH_SIZE,
        execution_mode=mode,
        options={"models": models, "batches": batches, "learning_rates": rates},
        **others,
    )


def parity(*arguments: Any, **others: Any) -> Numbers:
    return dict(build(session(*arguments, **others)).parity())


@cache
def alone(model: str, batches: str = "different", rates: str = "separate") -> Numbers:
    """N models trained by themselves, in float64; each from its own seed, at its own rate, on its own batch."""
    problem = build(session("torch", "loop.eager", model, batches, rates, precision="fp64")).problem
    inputs, labels = problem.check_batch()
    of_rates = {"one": [0.1, 0.1, 0.1], "separate": [0.1, 0.1 / 10**0.5, 0.01]}[rates]
    of_models = []
    for index in range(COUNT):
        net = problem.make_model()
        load_initial_weights(net, PROTOCOL.seed + index)
        images, targets = (inputs, labels) if batches == "same" else (inputs[index], labels[index])
        optimizer = torch.optim.SGD(net.parameters(), lr=of_rates[index], momentum=0.9)
        numbers: Numbers = {}
        for step in range(5):
            optimizer.zero_grad()
            logits = net(images)
            loss = F.cross_entropy(logits, targets)
            loss.backward()
            if step == 0:
                numbers |= {"outputs": logits.detach().numpy(), "loss": loss.detach().numpy()}
                numbers |= {f"gradients/{name}": p.grad.numpy().copy() for name, p in net.named_parameters()}
            optimizer.step()
        for name, parameter in net.named_parameters():
            initial = initial_weight(PROTOCOL.seed + index, name, tuple(parameter.shape))
            numbers[f"updates/{name}"] = parameter.detach().numpy() - initial
        of_models.append(numbers)
    found = {name: np.stack([numbers[name] for numbers in of_models]) for name in of_models[0]}
    for name, value in found.items():  # or a formulation that mixes them up would pass
        assert all(relative_error({name: other}, {name: value[0]}) > 1e-3 for other in value[1:]), name
    return found


def assert_equal_model_by_model(actual: Numbers, expected: Numbers, tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].shape == value.shape, name
        for index in range(COUNT):
            error = relative_error({name: actual[name][index]}, {name: value[index]})
            assert error < tolerance, (name, index)


@pytest.mark.parametrize(("framework", "mode", "model", "batches", "rates"), CASES)
def test_every_model_is_as_if_alone(framework: Framework, mode: str, model: str, batches: str, rates: str) -> None:
    """So the frameworks agree with each other too, in every pair of formulations."""
    actual = parity(framework, mode, model, batches, rates, precision="fp64")
    assert_equal_model_by_model(actual, alone(model, batches, rates), TOLERANCE)


@pytest.mark.nightly
def test_by_inductor_too() -> None:
    """One mode, as that takes a while; separate rates, which stacked models compile as well."""
    assert_equal_model_by_model(parity("torch", "batched.compiled", "mlp", precision="fp64"), alone("mlp"), TOLERANCE)


@pytest.mark.parametrize("mode", TRACED)
def test_every_mode_is_as_if_alone(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_captures(monkeypatch)
    only_trace(monkeypatch)
    model = "mlp" if "conv1d" in mode else "convnet"
    assert_equal_model_by_model(parity("torch", mode, model, precision="fp64"), alone(model), TOLERANCE)


@pytest.mark.parametrize(("framework", "mode"), [("jax", "vmap.jit"), ("torch", "batched.eager")])
def test_in_float32_as_they_are_timed(framework: Framework, mode: str) -> None:
    assert_equal_model_by_model(parity(framework, mode, "cnn"), alone("cnn"), SINGLE)


# JAX: the gradient of the losses' sum is each model's own


@pytest.mark.parametrize(
    ("mode", "model", "batches"), [("vmap.jit", "mlp", "same"), ("side_by_side.jit", "convnet", "different")]
)
def test_gradient_of_the_sum_is_each_models_own(mode: str, model: str, batches: str) -> None:
    """The phases and the whole step."""
    actual = parity("jax", f"grad_of_{mode}", model, batches, precision="fp64")
    require_same(actual, parity("jax", mode, model, batches, precision="fp64"), 1e-12)


@pytest.mark.parametrize("mode", ["vmap.jit", "side_by_side.jit"])
def test_xla_sees_grouped_weight_gradients(mode: str) -> None:
    """One for each of the four convolutions; forward, and by the images, they are grouped by features."""

    def batch_groups(mode: str) -> list[int]:
        """Of the convolutions that have several."""
        program: Any = build(session("jax", mode, "convnet"))
        groups = [int(count) for count in re.findall(r"batch_group_count = (\d+)", program.lowered().as_text())]
        return [count for count in groups if count > 1]

    assert batch_groups(mode) == []
    assert batch_groups(f"grad_of_{mode}") == [COUNT] * 4


def test_jax_step_overwrites_all_models_and_keeps_the_batches() -> None:
    program: Any = build(session("jax", "vmap.jit", "mlp"))
    models, *batches = program.state()
    program.step()
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(models))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(batches))


def test_a_step_has_no_more_arrays_unrolled() -> None:
    """What a call costs the host grows with their number."""
    shapes = []
    for mode in ("vmap.jit", "unrolled.jit"):
        program = build(session("jax", mode, "mlp"))
        shapes.append([leaf.shape for leaf in jax.tree.leaves((program.state(), program.step()))])
    assert shapes[0] == shapes[1]


# Forward only


def forward(framework: Framework, mode: str, model: str, batches: str = "different", **others: Any) -> Any:
    own = session(framework, mode, model, batches, "one", **others)
    return with_variant(own, options=own.measurement.variant.options | {"work": "forward"})


@pytest.mark.parametrize("batches", ["different", "same"])
@pytest.mark.parametrize(
    ("framework", "mode", "model"),
    [(*mode, "convnet" if "convnet" in models else "mlp") for mode, models in MODES.items()],
)
def test_outputs_without_training_are_those_of_models_alone(
    framework: Framework, mode: str, model: str, batches: str
) -> None:
    program = build(forward(framework, mode, model, batches, precision="fp64"))
    numbers = dict(program.parity())
    assert_equal_model_by_model(numbers, {"outputs": alone(model, batches, "one")["outputs"]}, TOLERANCE)
    assert [check.passed for check in program.check()] == [True]
    assert (program.phases(), program.construction()) == ([], [])
    program.step()
    np.testing.assert_array_equal(program.parity()["outputs"], numbers["outputs"])  # no weight has changed


@pytest.mark.parametrize(("framework", "mode"), [("jax", "vmap.jit"), ("torch", "loop.eager")])
def test_wrong_outputs_are_found(framework: Framework, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models with each other's outputs."""
    program = build(forward(framework, mode, "mlp"))
    right = program.outputs_alone()
    monkeypatch.setattr(program, "outputs_alone", lambda: right[[1, 0, 2]])
    with pytest.raises(CheckFailed, match="outputs against models alone"):
        program.check()


# The run


@pytest.mark.parametrize(("framework", "mode"), [("jax", "vmap.jit"), ("torch", "batched.eager")])
def test_result_counts_all_models_and_holds_the_phases(framework: Framework, mode: str) -> None:
    result = measure(session(framework, mode, "linear", "different", "one"))
    assert result.blocks.samples_per_step == COUNT * BATCH_SIZE
    assert result.parameter_count == COUNT * (6 * 5 + 5)
    assert result.details["models"] == COUNT
    phases = ["build", "data_generation", "zero_gradients", "forward", "backward", "optimizer"]
    assert list(result.details["phases"]) == [name for name in phases if framework == "torch" or "zero" not in name]
    assert all(len(times_s) == 1 and times_s[0] > 0 for times_s in result.details["phases"].values())
    assert result.recompiles == 0
    assert [check.passed for check in result.checks] == [True] * 3
    assert all(0 < check.error < 1e-4 for check in result.checks)


@pytest.mark.parametrize(("framework", "mode"), [("jax", "unrolled.jit"), ("torch", "loop.eager")])
def test_a_wrong_step_is_found_and_never_timed(
    framework: Framework, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One model of three trains at twice its rate."""
    monkeypatch.setattr(clock, "measure_steady", mock.Mock(side_effect=AssertionError("a wrong step was timed")))
    right, rates = MODULES[framework].build, shared.learning_rates

    def wrong(own: Any, *, joined: bool) -> Any:
        """The reference makes a problem of its own."""
        with mock.patch.object(shared, "learning_rates", lambda *given: rates(*given) * [1, 2, 1]):
            return right(own, joined=joined)

    monkeypatch.setattr(MODULES[framework], "build", lambda own, joined=True: wrong(own, joined=joined))
    with pytest.raises(CheckFailed, match=r"losses of the first steps .*worst model, which is number 1: "):
        measure(session(framework, mode, "mlp"))


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_drawn_batches_have_the_layout_of_given_ones(framework: Framework, mode: str) -> None:
    """Or what is timed would be another program than what is checked."""
    for model in {"mlp", "convnet"}.intersection(MODES[framework, mode]):
        for batches in ("different", "same"):
            program: Any = build(session(framework, mode, model, batches, "one"))
            given = layout(program)
            program.settle()
            first = np.asarray(jax.tree.leaves(program.inputs)[0]).copy()
            assert layout(program) == given
            program.draw()
            assert not np.array_equal(first, jax.tree.leaves(program.inputs)[0])
            assert 0.7 < first.std() < 1.3  # normal: 24 numbers or more


def layout(program: Any) -> list[Any]:
    leaves = [*jax.tree.leaves(program.inputs), *jax.tree.leaves(program.targets)]
    return [(leaf.shape, str(leaf.dtype), leaf.stride() if isinstance(leaf, torch.Tensor) else None) for leaf in leaves]


@pytest.mark.parametrize("batches", ["different", "same"])
@pytest.mark.parametrize(
    ("framework", "mode"), [("jax", "vmap.jit"), ("torch", "batched.eager"), ("torch", "grouped_conv1d.eager")]
)
def test_one_model_alone_is_no_special_case(framework: Framework, mode: str, batches: str) -> None:
    """With N = 1, side by side and one for all have the same shape. The batch of one model has the first numbers of the
    batch of many."""
    numbers = parity(framework, mode, "mlp", batches, "one", models=1, precision="fp64")
    for name, value in alone("mlp", "same", "one").items():
        assert relative_error({name: numbers[name][0]}, {name: value[0]}) < TOLERANCE, name
