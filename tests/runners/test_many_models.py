"""Use case 6: every formulation on both sides gives each of the N models what training it alone gives.

The reference is written out here: plain PyTorch modules and torch.optim.SGD in float64, one model after the other.
The formulations run in float64 too, so that only a mistake can make a difference; float32 has its own tests.
"""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp
from torch.nn import functional as F

from harness.errors import CheckFailed, Refused
from harness.gradient_check import relative_error
from jax_runner.use_cases import many_models as jax_use_case
from tests.runners.sessions import PROTOCOL, make_session
from torch_runner.use_cases import many_models as torch_use_case
from torch_runner.weights import load_initial_weights

Numbers = dict[str, np.ndarray]

COUNT = 3
BATCH_SIZE = 4
MODELS = [("synthetic", name) for name in ("linear", "conv2d", "mlp", "convnet")] + [("mnist", "cnn")]
DENSE = ("linear", "mlp")
MODES = [
    ("jax", "vmap"),
    ("jax", "unrolled"),
    ("jax", "map"),
    ("torch", "loop"),
    ("torch", "batched"),
    ("torch", "vmap"),
]
DENSE_MODES = [("torch", "conv1d_loop"), ("torch", "grouped_conv1d")]
CONVOLUTION_MODES = [("jax", "side_by_side")]
AXES = [("different", "separate"), ("same", "one")]
"""Batches and learning rates: every value of both, in two runs; the second on the two deep models only."""
CASES = [
    (framework, mode, benchmark, model, batches, rates)
    for benchmark, model in MODELS
    for framework, mode in MODES + (DENSE_MODES if model in DENSE else CONVOLUTION_MODES)
    for batches, rates in AXES
    if batches == "different" or model in ("mlp", "convnet")
]
TIGHT = 1e-9
"""Float64 rounds at 1e-16."""
SINGLE = 1e-4
"""Float32 rounds at 6e-8; five steps add up, and gradients are small beside what they are sums of."""


def session(framework: Any, mode: str, benchmark: str, model: str, batches: str, rates: str, **settings: Any):
    return make_session(
        framework,
        "many_models",
        benchmark=benchmark,
        model=model,
        batch_size=BATCH_SIZE,
        execution_mode=mode,
        options={"models": COUNT, "batches": batches, "learning_rates": rates},
        **settings,
    )


def numbers_of(framework: str, mode: str, benchmark: str, model: str, batches: str, rates: str, bits: int) -> Numbers:
    """What `parity_numbers` gives, in float64 or as it is."""
    own = session(framework, mode, benchmark, model, batches, rates)
    if bits == 32:
        return {"jax": jax_use_case, "torch": torch_use_case}[framework].parity_numbers(own)
    if framework == "torch":
        return torch_use_case.numbers_of(torch_use_case.Problem(own, torch.float64), mode)
    with jax.enable_x64(True):
        return jax_use_case.numbers_of(jax_use_case.Problem(own, jnp.float64), mode)


@cache
def alone(benchmark: str, model: str, batches: str, rates: str) -> Numbers:
    """N models trained by themselves, in float64; each from its own seed, at its own rate, on its own batch."""
    problem = torch_use_case.Problem(session("torch", "loop", benchmark, model, batches, rates))
    inputs, labels = problem.check_batch()
    of_rates = {"one": [0.1, 0.1, 0.1], "separate": [0.1, 0.1 / 10**0.5, 0.01]}[rates]
    of_models = []
    for index in range(COUNT):
        net = problem.make_model()
        load_initial_weights(net, PROTOCOL.seed + index)
        net.double()
        own = (inputs, labels) if batches == "same" else (inputs[index], labels[index])
        images, targets = torch.from_numpy(own[0]).double(), torch.from_numpy(own[1]).long()
        optimizer = torch.optim.SGD(net.parameters(), lr=of_rates[index], momentum=0.9)
        numbers: Numbers = {}
        for step in range(5):
            optimizer.zero_grad()
            logits = net(images)
            loss = F.cross_entropy(logits, targets)
            loss.backward()
            if step == 0:
                numbers |= {"outputs": logits.detach().numpy(), "loss": loss.detach().numpy()}
                numbers |= {f"gradient/{name}": p.grad.numpy().copy() for name, p in net.named_parameters()}
            optimizer.step()
        numbers |= {f"weights_after_5_steps/{name}": p.detach().numpy() for name, p in net.named_parameters()}
        of_models.append(numbers)
    return {name: np.stack([numbers[name] for numbers in of_models]) for name in of_models[0]}


def assert_equal_model_by_model(actual: Numbers, expected: Numbers, tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].shape == value.shape, name
        for index in range(COUNT):
            error = relative_error({name: actual[name][index]}, {name: value[index]})
            assert error < tolerance, (name, index)


@pytest.mark.parametrize(("framework", "mode", "benchmark", "model", "batches", "rates"), CASES)
def test_every_model_is_as_if_alone(
    framework: str, mode: str, benchmark: str, model: str, batches: str, rates: str
) -> None:
    """So the frameworks agree with each other too, in every pair of formulations."""
    actual = numbers_of(framework, mode, benchmark, model, batches, rates, bits=64)
    assert_equal_model_by_model(actual, alone(benchmark, model, batches, rates), TIGHT)


@pytest.mark.parametrize(("benchmark", "model"), MODELS)
def test_the_references_models_differ(benchmark: str, model: str) -> None:
    """Or a formulation that mixes them up would pass."""
    for batches, rates in AXES:
        for name, value in alone(benchmark, model, batches, rates).items():
            for index in range(1, COUNT):
                assert relative_error({name: value[index]}, {name: value[0]}) > 1e-3, name


@pytest.mark.parametrize(
    ("mode", "model"),
    [
        ("loop_compiled", "mlp"),
        ("conv1d_loop_compiled", "linear"),
        ("grouped_conv1d_compiled", "mlp"),
        ("batched_compiled", "convnet"),
        ("vmap_compiled", "convnet"),
    ],
)
def test_compiled_too(mode: str, model: str) -> None:
    """In float32, as they are timed. One model for each, as compiling takes a while; separate rates, which stacked
    models compile as well."""
    actual = numbers_of("torch", mode, "synthetic", model, "different", "separate", bits=32)
    assert_equal_model_by_model(actual, alone("synthetic", model, "different", "separate"), SINGLE)


@pytest.mark.parametrize(("framework", "mode"), [("jax", "vmap"), ("torch", "batched")])
def test_in_float32_as_they_are_timed(framework: str, mode: str) -> None:
    actual = numbers_of(framework, mode, "mnist", "cnn", "different", "separate", bits=32)
    assert_equal_model_by_model(actual, alone("mnist", "cnn", "different", "separate"), SINGLE)


# The run


@pytest.mark.parametrize(("framework", "mode"), [("jax", "vmap"), ("torch", "batched")])
def test_result_counts_all_models_and_holds_the_phases(framework: str, mode: str) -> None:
    module: Any = {"jax": jax_use_case, "torch": torch_use_case}[framework]
    result = module.run(session(framework, mode, "synthetic", "linear", "different", "one"))
    assert result.blocks.samples_per_step == COUNT * BATCH_SIZE
    assert result.parameter_count == COUNT * (6 * 5 + 5)
    assert result.details["models"] == COUNT
    phases = ["data_generation", "zero_gradients", "forward", "backward", "optimizer"]
    assert list(result.details["phases"]) == [name for name in phases if framework == "torch" or "zero" not in name]
    assert all(len(times_s) == 1 and times_s[0] > 0 for times_s in result.details["phases"].values())
    assert result.recompiles == 0
    assert [check.passed for check in result.checks] == [True] * 3
    assert all(0 < check.error < 1e-4 for check in result.checks)


@pytest.mark.parametrize(("framework", "mode"), [("jax", "vmap"), ("torch", "batched")])
def test_phases_without_memory_cost_no_number(framework: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's phases keep what the step does not. Any other error is one."""
    module: Any = {"jax": jax_use_case, "torch": torch_use_case}[framework]
    words = {"jax": "RESOURCE_EXHAUSTED: Out of memory", "torch": "DefaultCPUAllocator: can't allocate memory"}[
        framework
    ]
    raised = RuntimeError(f"{words}\nand a trace")

    def forward(_: Any) -> None:
        raise raised

    monkeypatch.setattr(module.Training, "phases", lambda training: [("forward", lambda: forward(training))])
    own = session(framework, mode, "synthetic", "linear", "different", "one")
    result = module.run(own)
    assert result.blocks.block_times_s
    assert result.details == {"models": COUNT, "phases": {}, "phases_absent": f"out of memory: {words}"}
    raised = RuntimeError("shapes do not match")
    with pytest.raises(RuntimeError, match="shapes do not match"):
        module.run(own)


@pytest.mark.parametrize(("framework", "mode"), [("jax", "unrolled"), ("torch", "loop")])
def test_a_wrong_step_is_found_and_never_timed(framework: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One model of three trains at twice its rate."""
    module: Any = {"jax": jax_use_case, "torch": torch_use_case}[framework]

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a wrong step was timed")

    own = session(framework, mode, "synthetic", "mlp", "different", "separate")
    monkeypatch.setattr(type(own), "measure_steady", never)
    training = module.Training

    class Wrong(training):
        def __init__(self, problem: Any, execution_mode: str) -> None:
            right = problem.rates
            problem.rates = (np.array(right) * [1, 2, 1]).tolist() if framework == "torch" else right * [1, 2, 1]
            super().__init__(problem, execution_mode)
            problem.rates = right

    monkeypatch.setattr(module, "Training", Wrong)
    with pytest.raises(CheckFailed, match=r"losses of the first steps .*worst model, which is number 1: "):
        module.run(own)


@pytest.mark.parametrize(
    ("framework", "mode"),
    [("jax", "vmap"), ("jax", "side_by_side"), ("jax", "unrolled"), ("torch", "loop"), ("torch", "batched")],
)
def test_drawn_batches_have_the_layout_of_given_ones(framework: str, mode: str) -> None:
    """Or what is timed would be another program than what is checked."""
    module: Any = {"jax": jax_use_case, "torch": torch_use_case}[framework]
    for model in ("convnet",) if mode == "side_by_side" else ("mlp", "convnet"):
        for batches in ("different", "same"):
            problem = module.Problem(session(framework, mode, "synthetic", model, batches, "one"))
            training = module.Training(problem, mode)
            training.take(problem.check_batch())
            given = layout(training)
            training.draw()
            first = on_host(training.inputs)
            assert layout(training) == given
            training.draw()
            second = on_host(training.inputs)
            assert not np.array_equal(first, second)
            assert 0.7 < first.std() < 1.3  # normal: 24 numbers or more


def on_host(inputs: Any) -> np.ndarray:
    """The first array."""
    leaf = jax.tree.leaves(inputs)[0]
    return leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)


def layout(training: Any) -> list[Any]:
    leaves = [*jax.tree.leaves(training.inputs), *jax.tree.leaves(training.labels)]
    return [(leaf.shape, str(leaf.dtype), leaf.stride() if isinstance(leaf, torch.Tensor) else None) for leaf in leaves]


@pytest.mark.parametrize("mode", ["conv1d_loop", "grouped_conv1d", "grouped_conv1d_compiled"])
def test_conv1d_is_refused_for_convolutions(mode: str) -> None:
    own = session("torch", mode, "synthetic", "convnet", "different", "one")
    with pytest.raises(Refused, match="is for models of dense layers only"):
        torch_use_case.run(own)


def test_side_by_side_is_refused_without_convolutions() -> None:
    own = session("jax", "side_by_side", "synthetic", "mlp", "different", "one")
    with pytest.raises(Refused, match="is for models with convolutions"):
        jax_use_case.run(own)


@pytest.mark.skipif(torch.cuda.is_available(), reason="these modes run on a GPU")
@pytest.mark.parametrize("mode", ["streams", "loop_cuda_graphs", "batched_cuda_graphs", "vmap_cuda_graphs"])
def test_modes_of_a_gpu_are_refused_on_a_cpu(mode: str) -> None:
    own = session("torch", mode, "synthetic", "linear", "different", "one")
    with pytest.raises(Refused, match=f"{mode} needs an NVIDIA GPU"):
        torch_use_case.run(own)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("mode", ["streams", "loop_cuda_graphs", "batched_cuda_graphs", "vmap_cuda_graphs"])
def test_modes_of_a_gpu_are_the_models_alone(mode: str) -> None:
    actual = numbers_of("torch", mode, "synthetic", "convnet", "different", "separate", bits=32)
    assert_equal_model_by_model(actual, alone("synthetic", "convnet", "different", "separate"), SINGLE)


@pytest.mark.parametrize("batches", ["different", "same"])
@pytest.mark.parametrize(("framework", "mode"), [("jax", "vmap"), ("torch", "batched"), ("torch", "grouped_conv1d")])
def test_one_model_alone_is_no_special_case(framework: str, mode: str, batches: str) -> None:
    """With N = 1, side by side and one for all have the same shape."""
    own = make_session(
        framework,
        "many_models",
        benchmark="synthetic",
        model="mlp",
        batch_size=BATCH_SIZE,
        execution_mode=mode,
        options={"models": 1, "batches": batches, "learning_rates": "one"},
    )
    module: Any = {"jax": jax_use_case, "torch": torch_use_case}[framework]
    numbers = module.parity_numbers(own)
    expected = alone("synthetic", "mlp", "same", "one")
    # The batch of one model has the first numbers of the batch of many.
    for name, value in expected.items():
        assert relative_error({name: numbers[name][0]}, {name: value[0]}) < SINGLE, name


def test_every_benchmark_names_the_same_sizes() -> None:
    """Parameters of the four models in other sizes than the default, counted by hand."""
    from harness.synthetic import Sizes

    sizes = Sizes(
        in_features=6, hidden_features=7, out_features=5, channels=2, image_size=5, hidden_channels=4, classes=3
    )
    expected = {
        "linear": 6 * 5 + 5,
        "conv2d": 2 * 4 * 9 + 4,
        "mlp": (6 * 7 + 7) + 2 * (7 * 7 + 7) + (7 * 5 + 5),
        "convnet": (2 * 4 * 9 + 4) + 2 * (4 * 4 * 9 + 4) + (4 * 3 * 9 + 3),
    }
    from jax_runner.benchmarks import synthetic as of_jax
    from jax_runner.device import model_dtypes
    from jax_runner.weights import parameter_count as jax_count
    from torch_runner.benchmarks import synthetic as of_torch
    from torch_runner.weights import parameter_count as torch_count

    for name, count in expected.items():
        assert torch_count(of_torch.make_model(name, sizes)) == count
        assert jax_count(of_jax.make_model(name, model_dtypes("fp32"), sizes)) == count
    assert torch_count(of_torch.make_model("linear")) == 256 * 512 + 512
