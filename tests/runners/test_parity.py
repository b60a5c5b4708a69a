"""The same model on both sides: parameters, logits, loss and gradients in float64, from the same weights and images."""

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from torch.nn import functional as F

from harness.gradient_check import relative_error
from tests.runners.sessions import PROTOCOL, make_session

MODELS = [("mnist", "cnn", 26_010), ("cifar10", "cnn", 605_226), ("cifar10", "resnet18", 11_173_962)]
BATCH_SIZE = 4


def images_and_labels(benchmark: str) -> tuple[np.ndarray, np.ndarray]:
    """Normalised in float64: [batch, height, width, channels]."""
    dataset = make_session("torch", "train", benchmark=benchmark).dataset
    images = (dataset.train_images[:BATCH_SIZE] / 255 - dataset.mean.astype(np.float64)) / dataset.std.astype(
        np.float64
    )
    return images, dataset.train_labels[:BATCH_SIZE]


def jax_side(benchmark: str, model: str):
    """Logits, mean loss, gradients by neutral name, parameter count; BatchNorm as in training."""
    from jax_runner import weights
    from jax_runner.use_cases.per_sample_gradients import Problem

    problem = Problem(make_session("jax", "per_sample_gradients", benchmark=benchmark, model=model))
    with jax.enable_x64(True):
        images, labels = map(jnp.asarray, images_and_labels(benchmark))
        net = problem.make_model({"dtype": jnp.float64, "param_dtype": jnp.float64})
        graphdef, params, others = nnx.split(net, nnx.Param, ...)
        params, others = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (params, others))

        @jax.jit
        @jax.value_and_grad
        def loss_of(params: nnx.State) -> jax.Array:
            return problem.losses(nnx.merge(graphdef, params, others, copy=True)(images), labels).mean()

        logits = np.asarray(nnx.merge(graphdef, params, others, copy=True)(images))
        loss, gradients = loss_of(params)
        neutral = weights.to_neutral(nnx.to_pure_dict(gradients), problem.benchmark.FLATTENED)
        assert logits.dtype == np.float64
        return logits, float(loss), neutral, weights.parameter_count(net)


def torch_side(benchmark: str, model: str):
    from torch_runner import weights
    from torch_runner.use_cases.per_sample_gradients import Problem

    problem = Problem(make_session("torch", "per_sample_gradients", benchmark=benchmark, model=model))
    device = problem.device
    images, labels = (torch.from_numpy(array).to(device) for array in images_and_labels(benchmark))
    net = problem.model.double()
    logits = net(images.permute(0, 3, 1, 2))
    loss = F.cross_entropy(logits, labels.long())
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
    return logits.detach().cpu().numpy(), loss.item(), weights.to_neutral(gradients), weights.parameter_count(net)


# ResNet-18 in float64 goes through the gate itself (test_gate_bites.py).
@pytest.mark.parametrize(("benchmark", "model", "count"), MODELS[:2])
def test_same_weights_give_the_same_logits_loss_and_gradients(benchmark: str, model: str, count: int) -> None:
    logits, loss, gradients, parameters = jax_side(benchmark, model)
    torch_logits, torch_loss, torch_gradients, torch_parameters = torch_side(benchmark, model)
    assert (parameters, torch_parameters) == (count, count)
    # float64 rounds at 1e-16.
    np.testing.assert_allclose(logits, torch_logits, rtol=0, atol=1e-9 * np.abs(torch_logits).max())
    assert loss == pytest.approx(torch_loss, rel=1e-9)
    assert gradients.keys() == torch_gradients.keys()
    for name, gradient in torch_gradients.items():
        assert relative_error({name: gradients[name]}, {name: gradient}) < 1e-9, name


@pytest.mark.parametrize("benchmark", ["mnist", "cifar10"])
def test_same_normalised_images(benchmark: str) -> None:
    from jax_runner.use_cases import per_sample_gradients as jax_use_case
    from torch_runner.use_cases import per_sample_gradients as torch_use_case

    rows = [5, 0, 7]
    images, labels = jax_use_case.Problem(make_session("jax", "per_sample_gradients", benchmark=benchmark)).batch(rows)
    problem = torch_use_case.Problem(make_session("torch", "per_sample_gradients", benchmark=benchmark))
    torch_images, torch_labels = problem.batch(rows)
    in_one_layout = torch_images.permute(0, 2, 3, 1).cpu().numpy()
    np.testing.assert_allclose(np.asarray(images), in_one_layout, rtol=0, atol=1e-6)  # of standard deviations
    np.testing.assert_array_equal(np.asarray(labels), torch_labels.cpu().numpy())


@pytest.mark.parametrize(("benchmark", "model", "_count"), MODELS)
def test_same_initial_weights(benchmark: str, model: str, _count: int) -> None:
    """Bit for bit, and running statistics too; the neutral layout is torch's own."""
    import importlib

    from jax_runner import weights
    from jax_runner.device import model_dtypes
    from torch_runner.weights import load_initial_weights

    module = importlib.import_module(f"jax_runner.benchmarks.{benchmark}")
    net = module.make_model(model, model_dtypes("fp32"))
    weights.load_initial_weights(net, PROTOCOL.seed, module.FLATTENED)
    ours = weights.to_neutral(weights.arrays_of(net, nnx.Any(nnx.Param, nnx.BatchStat)), module.FLATTENED)

    torch_net = importlib.import_module(f"torch_runner.benchmarks.{benchmark}").make_model(model)
    load_initial_weights(torch_net, PROTOCOL.seed)
    theirs = {name: value for name, value in torch_net.state_dict().items() if "num_batches" not in name}
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value.numpy(), err_msg=name)


def test_out_of_memory_is_known_where_it_happens() -> None:
    """A real allocation that no machine can give, on the device of this machine and on the CPU."""
    torch_device = make_session("torch", "train").device
    for name in {"cpu", torch_device.device.type}:
        with pytest.raises(RuntimeError) as raised:
            torch.empty(1 << 50, dtype=torch.uint8, device=name)
        assert torch_device.is_out_of_memory(raised.value)
    assert not torch_device.is_out_of_memory(RuntimeError("shapes do not match"))

    jax_device = make_session("jax", "train").device
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED") as jax_raised:
        jnp.zeros((1 << 20, 1 << 26), jnp.uint8).block_until_ready()
    assert jax_device.is_out_of_memory(jax_raised.value)
    assert not jax_device.is_out_of_memory(RuntimeError("shapes do not match"))
