"""The work of a step: both runners count it by themselves, and find the same."""

from typing import Any

import jax
import pytest
import torch
from jax import numpy as jnp

from harness.measure.explain import work_of_step
from harness.plan import FRAMEWORKS
from harness.work.declared import benchmark
from harness.work.products import Product, work_of
from jax_runner.products import forward_products as of_jax
from tests.made.sessions import build, make_session
from torch_runner.products import forward_products as of_torch

MODELS = (
    ("train", "mnist", "cnn", {}),
    ("train", "cifar10", "cnn", {}),
    ("train", "cifar10", "resnet18", {}),
    ("train", "enwik8", "gpt_nano", {"optimizer": "adamw", "momentum": 0}),
    ("train", "text", "mlp", {}),
    ("train", "molpcba", "gcn", {}),
    ("per_sample_gradients", "molpcba", "graphnet", {}),
    ("per_sample_gradients", "mnist", "cnn", {}),
    ("many_models", "synthetic", "mlp", {}),
    ("many_models", "synthetic", "convnet", {}),
)


def work(framework: Any, use_case: str, name: str, model: str, **settings: Any) -> Any:
    session = make_session(framework, use_case, benchmark=name, model=model, batch_size=32, **settings)
    return work_of_step(build(session), session)


@pytest.mark.parametrize(("use_case", "name", "model", "settings"), MODELS)
def test_both_frameworks_count_the_same(use_case: str, name: str, model: str, settings: dict[str, Any]) -> None:
    ours, theirs = (work(framework, use_case, name, model, **settings) for framework in FRAMEWORKS)
    assert ours == theirs
    assert ours.operations > 0


def test_mnist_by_hand() -> None:
    """Images 28 x 28. conv1: 8 x 8 on 1 channel to 16 of 14 x 14; pooling to 13 x 13. conv2: 4 x 4 on 16 channels to 32
    of 5 x 5; pooling to 4 x 4. Dense: 512 to 32 to 10. The images need no gradient, so conv1 is done twice and the
    others three times."""
    first = 64 * 16 * 14 * 14
    others = 16 * 16 * 32 * 5 * 5 + 512 * 32 + 32 * 10
    found = work("jax", "train", "mnist", "cnn")
    assert found.products == 4
    assert found.forward_operations == 2 * 32 * (first + others) == 27_021_312
    assert found.operations == 2 * 32 * (2 * first + 3 * others)
    assert found.operations == 68_218_880, "what torch.utils.flop_counter counts over a step of training"
    elements_first = 32 * 28 * 28 + 64 * 16 + 32 * 16 * 14 * 14
    elements_others = (
        (32 * 16 * 13 * 13 + 16 * 16 * 32 + 32 * 32 * 5 * 5)
        + (32 * 512 + 512 * 32 + 32 * 32)
        + (32 * 32 + 32 * 10 + 32 * 10)
    )
    assert found.least_bytes == 4 * (2 * elements_first + 3 * elements_others + 5 * 26_010)


def test_inference_has_the_forward_pass_only_and_many_models_do_it_many_times() -> None:
    of_inference, of_training = (work("torch", use_case, "mnist", "cnn") for use_case in ("inference", "train"))
    assert of_inference.operations == of_inference.forward_operations == of_training.forward_operations
    several = work("torch", "many_models", "mnist", "cnn")
    assert several.forward_operations == 3 * of_training.forward_operations
    assert several.operations == 3 * of_training.operations


def test_work_by_hand() -> None:
    """[2, 3] by [3, 4], whose first operand is data, and [5, 6] by [6, 7], both of whose depend on parameters."""
    products = [Product(24, 6 + 12 + 8, 1), Product(210, 30 + 42 + 35, 2)]
    found = work_of(products, precision="bf16", with_gradients=True, models=2, parameter_count=10, parameter_passes=5)
    assert found.forward_operations == 2 * 2 * (24 + 210)
    assert found.operations == 2 * 2 * (2 * 24 + 3 * 210)
    assert found.least_bytes == 2 * 2 * (2 * 26 + 3 * 107) + 10 * 5 * 4
    forward = work_of(products, precision="fp64", with_gradients=False)
    assert forward.operations == forward.forward_operations == 2 * (24 + 210)
    assert forward.least_bytes == 8 * (26 + 107)
    assert work_of(products, precision="fp16", with_gradients=False).least_bytes == 2 * (26 + 107)


def tokens_or_images(*shape: int) -> torch.Tensor:
    """[samples, positions], or NCHW."""
    return torch.empty(shape, dtype=torch.long if len(shape) == 2 else torch.float32, device="meta")


@pytest.mark.parametrize(
    ("name", "model", "shape"),
    [
        ("imagenet100", "resnet50", (2, 3, 64, 64)),
        ("imagenet100", "vit_b_16", (2, 3, 64, 64)),
        ("fineweb", "gpt2", (2, 64)),
    ],
)
def test_both_frameworks_count_the_same_from_shapes_alone(name: str, model: str, shape: tuple[int, ...]) -> None:
    """In a small size. No program is built."""
    ours, theirs = (
        make_session(framework, "train", benchmark=name, model=model, batch_size=2) for framework in FRAMEWORKS
    )
    of_images, of_tokens = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)
    found = of_jax(ours, of_tokens if len(shape) == 2 else of_images)
    assert sorted(found) == sorted(of_torch(theirs, tokens_or_images(*shape)))


@pytest.mark.parametrize(
    ("name", "model"),
    [("imagenet100", name) for name in ("resnet50", "vit_b_16", "mobilenet_v3_small", "efficientnet_b0")]
    + [("enwik8", "gpt_nano"), ("enwik8", "gpt_mini"), ("fineweb", "gpt2")],
)
def test_a_model_has_the_multiply_adds_that_it_declares(name: str, model: str) -> None:
    """Of one sample at full size; nothing is computed. So what is achieved by declaration is so by count."""
    declared = benchmark(name)
    sizes = declared.sizes().model_dump()
    session = make_session("torch", "train", benchmark=name, model=model, batch_size=2, sizes=sizes)
    positions = {"gpt_nano": (64,), "gpt_mini": (256,), "gpt2": (1024,)}
    found = of_torch(session, tokens_or_images(1, *positions.get(model, (3, 224, 224))))
    assert sum(product.multiply_adds for product in found) == declared.model(model).multiply_adds
