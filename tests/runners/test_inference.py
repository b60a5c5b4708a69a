"""Use case 5 in both frameworks: what a model gives, however its BatchNorm, its inputs and its calls are arranged."""

from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from numpy.typing import NDArray
from torch._dynamo.utils import counters

from harness.errors import CheckFailed, Refused
from harness.measure.program import Session
from harness.measure.use_cases import inference as shared
from harness.plan import FRAMEWORKS, Framework
from harness.work.folding import folded
from harness.work.use_cases import inference as declared
from harness.work.use_cases.inference import HOST_BATCHES
from harness.work.weights import inference_weight
from jax_runner.use_cases import inference as jax_inference
from jax_runner.weights import arrays_of
from jax_runner.weights import store_as as jax_store_as
from tests.made.captures import allow_captures, only_trace
from tests.made.laid_out import OnGpu, backwards, kernels_in_memory
from tests.made.sessions import build, make_session, measure, with_pretrained, with_small_images, with_variant
from torch_runner.folding import without_batch_norm
from torch_runner.use_cases import inference as torch_inference
from torch_runner.weights import load_weights
from torch_runner.weights import store_as as torch_store_as

pytestmark = pytest.mark.takes(20)

RUNNERS = {"jax": jax_inference, "torch": torch_inference}
HOST = {"inputs": "on_host"}
KEPT = {"batch_norm": "kept"}
RESNET = {"benchmark": "cifar10", "model": "resnet18"}
TEXT = {"benchmark": "text", "model": "mlp"}
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


def session_of(framework: Framework, **arguments: Any) -> Session[Any]:
    return with_small_images(make_session(framework, "inference", **arguments))


def answers_of(program: Any) -> list[NDArray[np.float64]]:
    """To both of the check's batches, [batch, ...]."""
    found = (program.answer_to(batch) for batch in program.requests.checked())
    return [np.asarray(outputs, np.float64).copy() for outputs in found]


@cache
def answers_in_float64(framework: Framework, data: str, model: str, batch_norm: str, inputs: str) -> Any:
    options = {"batch_norm": batch_norm, "inputs": inputs}
    return answers_of(build(session_of(framework, benchmark=data, model=model, precision="fp64", options=options)))


@pytest.mark.parametrize(
    ("data", "model", "batch_norm", "inputs"),
    [
        ("mnist", "cnn", "folded", "on_device"),
        ("text", "mlp", "folded", "on_host"),
        ("synthetic", "convnet", "folded", "on_host"),
        ("synthetic", "mlp", "folded", "on_device"),
        ("cifar10", "resnet18", "folded", "on_host"),
    ],
)
def test_both_frameworks_give_the_same_outputs(data: str, model: str, batch_norm: str, inputs: str) -> None:
    of_torch = answers_in_float64("torch", data, model, batch_norm, inputs)
    of_jax = answers_in_float64("jax", data, model, batch_norm, inputs)
    for ours, theirs in zip(of_jax, of_torch, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())
    assert np.abs(of_jax[0] - of_jax[1]).max() > 1e-3 * np.abs(of_jax[0]).max(), "both batches look the same"


@every_framework
def test_folding_changes_nothing(framework: Framework) -> None:
    """Nor does it matter where the inputs come from."""
    of_folded = answers_in_float64(framework, "cifar10", "resnet18", "folded", "on_host")
    of_kept = answers_in_float64(framework, "cifar10", "resnet18", "kept", "on_device")
    for ours, theirs in zip(of_folded, of_kept, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())


@pytest.mark.parametrize(("name", "epsilon", "layers"), [("mobilenet_v3_small", 1e-3, 34), ("resnet50", 1e-5, 53)])
def test_torchvisions_models_fold(name: str, epsilon: float, layers: int) -> None:
    """All of their BatchNorms, by their names."""
    from torchvision import models

    weight_of = partial(inference_weight, 0)
    images = torch.from_numpy(np.random.RandomState(0).standard_normal((2, 3, 32, 32)))
    kept, without = (getattr(models, name)(num_classes=10).double().eval() for _ in range(2))
    load_weights(kept, weight_of)
    names = without_batch_norm(without)
    load_weights(without, folded(weight_of, names, epsilon))
    assert len(names) == layers and not [m for m in without.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    with torch.no_grad():
        torch.testing.assert_close(without(images), kept(images), rtol=1e-9, atol=1e-9)


@every_framework
def test_an_epsilon_that_is_not_the_models_is_caught(framework: Framework) -> None:
    def with_other_epsilon(weight_of: Any, names: Any, _epsilon: float) -> Any:
        return folded(weight_of, names, 1e-3)

    with mock.patch.object(shared, "folded", with_other_epsilon):
        program = build(session_of(framework, **RESNET))
    assert program.parameter_count == 11_173_962, "as the model has them, BatchNorm's too"
    with pytest.raises(CheckFailed, match="outputs of 2 batches against float64: relative error"):
        program.check()


# How PyTorch runs a call.


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("forward.eager_nchw", HOST),
        ("forward.eager_graph", {}),
        ("forward.eager_graph", HOST),
        ("forward.compiled", HOST),
        ("forward.compiled_graph", {}),
        ("forward.max_autotune_graph", HOST),
    ],
)
def test_modes_of_pytorch_give_what_eager_gives(
    mode: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_trace(monkeypatch)
    allow_captures(monkeypatch)
    counters.clear()  # of what other tests have compiled
    program = build(make_session("torch", "inference", execution_mode=mode, options=options))
    expected = answers_of(build(make_session("torch", "inference", execution_mode="forward.eager")))
    for ours, theirs in zip(answers_of(program), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=5e-6)
    program.settle()
    witness = program.witness()
    assert witness["cuda_graph_replays"] == (1 if mode.endswith("graph") else 0)
    assert bool(witness["compiled_graphs"]) == (not mode.startswith("forward.eager"))


def test_a_graph_that_does_not_read_its_input_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_captures(monkeypatch)
    monkeypatch.setattr(torch_inference, "captured", lambda step: cache(lambda: step().clone()))
    program = build(make_session("torch", "inference", execution_mode="forward.eager_graph"))
    with pytest.raises(CheckFailed):
        program.check()


@pytest.mark.parametrize(
    ("use_case", "mode", "strides"),
    [
        ("inference", "forward.eager", (784, 1, 28, 1)),
        ("inference", "forward.eager_nchw", (784, 784, 28, 1)),
        ("many_models", "loop.eager", (784, 1, 28, 1)),
    ],
)
def test_images_of_one_channel_have_the_layout_by_their_strides(
    use_case: str, mode: str, strides: tuple[int, ...]
) -> None:
    """28 x 28 pixels are contiguous in both; a convolution's output has the layout that its input seems to have."""
    program: Any = build(make_session("torch", use_case, execution_mode=mode))
    images = program.inputs[0] if use_case == "many_models" else program.inputs
    assert images.shape[1:] == (1, 28, 28)
    assert images.stride() == strides


def test_a_layout_of_images_is_refused_where_there_are_none() -> None:
    with pytest.raises(Refused, match="execution mode forward.eager_nchw is for models with convolutions"):
        build(make_session("torch", "inference", benchmark="text", model="mlp", execution_mode="forward.eager_nchw"))


# From and to the host.


@every_framework
def test_batches_from_the_host_come_in_turn(framework: Framework) -> None:
    """Only what the model is given is copied."""
    program: Any = build(make_session(framework, "inference", options=HOST))
    assert program.details == {"host_memory": "not pinned: without a GPU there is nothing to copy to"}
    for batch in program.on_the_host:
        ((name, images),) = batch.items()
        assert (name, images.shape, str(images.dtype)[-5:]) == ("images", (8, 28, 28, 1), "uint8")

    def next_outputs() -> NDArray[np.float64]:
        outputs = program.step()
        of_call = program.answer if framework == "torch" else outputs[1]
        return np.asarray(of_call).copy()

    of_calls = [next_outputs() for _ in range(HOST_BATCHES + 1)]
    np.testing.assert_array_equal(of_calls[0], of_calls[-1])
    assert len({outputs.tobytes() for outputs in of_calls}) == HOST_BATCHES
    expected = program.answer_to(program.requests.timed(2)[1])
    np.testing.assert_array_equal(of_calls[1], np.asarray(expected))


# Half precision, which a CPU can do, though no measurement on a CPU does.


@pytest.mark.parametrize(
    ("framework", "arguments"),
    [("jax", {}), ("torch", RESNET), ("torch", RESNET | {"options": KEPT | HOST})],
    ids=["jax", "torch-folded", "torch-kept"],
)
def test_bf16_is_near_enough(framework: Framework, arguments: dict[str, Any]) -> None:
    checks = build(with_variant(session_of(framework, **arguments), precision="bf16")).check()
    assert all(check.error > 1e-4 for check in checks), "this is not bf16"


@pytest.mark.parametrize("arguments", [{}, TEXT | {"options": HOST}], ids=["cnn", "mlp"])
@every_framework
def test_fp16_is_nearer(framework: Framework, arguments: dict[str, Any]) -> None:
    """It has three bits more than bfloat16, whose errors are 4e-3 and more."""
    program: Any = build(with_variant(session_of(framework, **arguments), precision="fp16"))
    assert str(program.step()[1].dtype if framework == "jax" else program.step().dtype).endswith("float16")
    whole, worst = program.check()
    assert 5e-5 < whole.error < 2e-3 and whole.error < worst.error < 1e-2


@every_framework
def test_weights_of_four_bits_do_not_pass_as_fp16(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to float8 before they are rounded to float16. As bfloat16 they would pass."""
    store, eight = (jax_store_as, jnp.float8_e4m3fn) if framework == "jax" else (torch_store_as, torch.float8_e4m3fn)

    def store_twice(model: Any, dtype: Any) -> None:
        store(model, eight)
        store(model, dtype)

    monkeypatch.setattr(RUNNERS[framework], "store_as", store_twice)
    build(with_variant(session_of(framework), precision="bf16")).check()
    with pytest.raises(CheckFailed, match="outputs of 2 batches against float64: relative error .*, tolerance 0.01"):
        build(with_variant(session_of(framework), precision="fp16")).check()


def test_bf16_is_stored_but_in_batch_norm() -> None:
    """Of a convolution and a BatchNorm: one weight and four tensors."""
    theirs = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1, bias=False), torch.nn.BatchNorm2d(3))
    torch_store_as(theirs, torch.bfloat16)
    of_torch = {name: str(value.dtype)[6:] for name, value in theirs.state_dict().items() if "tracked" not in name}
    ours = nnx.Sequential(nnx.Conv(2, 3, (1, 1), use_bias=False, rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
    jax_store_as(ours, jnp.bfloat16)
    of_jax = [str(leaf.dtype) for leaf in jax.tree.leaves(arrays_of(ours))]
    assert of_torch.pop("0.weight") == "bfloat16" and list(of_torch.values()) == ["float32"] * 4
    assert sorted(of_jax) == ["bfloat16", *["float32"] * 4]


# After the clock.


@pytest.mark.parametrize(("framework", "batch_size"), [("jax", 8), ("torch", 8), ("torch", 300)])
def test_predictions_are_those_of_the_model(
    framework: Framework, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As numbers of the reference: it gives the outputs of any samples, here of the whole test set, which has less than
    300. They end with the batch that makes them enough."""
    session = with_pretrained(make_session(framework, "inference", batch_size=batch_size), partial(inference_weight, 5))
    program: Any = build(session)
    labels, score, why_not = program.answers()
    everything = program.requests.samples(np.arange(session.dataset.test_count))
    with mock.patch.object(type(program.requests), "distinct", lambda _: everything):
        expected = program.reference_on(program.device).argmax(-1)
    np.testing.assert_array_equal(labels, expected)
    assert len(labels) == 261 and len(np.unique(expected)) > 1
    assert score == pytest.approx(np.mean(expected == session.dataset.test["labels"])) and why_not is None
    monkeypatch.setattr(declared, "PREDICTIONS", 17)
    np.testing.assert_array_equal(program.answers().labels, labels[: max(24, batch_size)])


@every_framework
@pytest.mark.parametrize("data", ["text", "synthetic"])
def test_a_measurement_from_end_to_end(framework: Framework, data: str) -> None:
    """Of drawn weights there are predictions and no quality; of drawn inputs not even these."""
    result = measure(make_session(framework, "inference", benchmark=data, model="mlp", options=HOST))
    assert result.blocks and result.blocks.samples_per_step == 8
    assert len(result.checks) == 2 and all(check.passed for check in result.checks)
    assert result.recompiles == 0
    if data == "synthetic":
        assert result.evaluation is None
        return
    assert result.evaluation and result.evaluation.shape == [40, 64]
    assert result.evaluation.test_metric is None
    assert result.evaluation.test_metric_absent == "the weights are drawn"


def test_jax_keeps_weights_out_of_the_program() -> None:
    """Or they would be constants in it, and a compiler would fold them for minutes."""
    program: Any = build(make_session("jax", "inference"))
    arguments = jax.tree.leaves(program.lowered().in_avals)
    assert sum(argument.size for argument in arguments) == 26_010 + 1 + 8 * 28 * 28


def test_jax_leaves_it_to_xla_how_weights_lie_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that nobody has compiled moves them by itself, and the outputs are the same. As it is measured:
    test_train.py."""
    session = make_session("jax", "inference", precision="fp64")
    plain: Any = build(session)
    program: Any = build(replace(session, device=OnGpu()))
    assert program.lowered().as_text().count('layout_mode = "auto"') == len(jax.tree.leaves(program.weights))
    monkeypatch.setattr(jax_inference, "FREE", backwards(plain.weights))
    program = build(replace(session, device=OnGpu()))
    assert kernels_in_memory(program.weights) == {(0, 1, 2, 3)}
    np.testing.assert_allclose(program.parity()["outputs"], plain.parity()["outputs"], rtol=1e-12)
    assert kernels_in_memory(program.weights) == {(3, 2, 1, 0)}
    assert isinstance(program.run, jax.stages.Compiled)
    program.check()
