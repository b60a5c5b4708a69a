"""Ghost norms on both sides against one reference: torch.autograd, sample by sample, in float64."""

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from torch import nn

from harness.errors import Refused
from harness.plan import Framework
from harness.work.closeness import relative_error
from harness.work.ghost import Cost, Form, Shape, choose, costs, slices
from harness.work.use_cases.per_sample_gradients import Settings
from jax_runner import ghost as of_jax
from jax_runner.captured import Captured
from jax_runner.layers import Sequential
from tests.made.captures import only_trace
from tests.made.numbers import TOLERANCE, Numbers, OneByOne, one_by_one
from tests.made.sessions import build, make_session, with_small_images
from torch_runner import ghost as of_torch
from torch_runner.task import ImageClassification
from torch_runner.weights import to_neutral

MODELS = {"mnist": ("cnn", 75.0), "cifar10": ("cnn", 1.19), "text": ("mlp", 1.02)}
"""Each benchmark's model, and a norm to clip to: some of the first samples are clipped, some are not."""
BATCH_SIZE = 5


def make_problem(framework: Framework, benchmark: str) -> Any:
    model, _ = MODELS[benchmark]
    mode = {"jax": "vmap.jit", "torch": "loop.eager"}[framework]
    session = make_session(
        framework, "per_sample_gradients", benchmark=benchmark, model=model, execution_mode=mode, precision="fp64"
    )
    return build(with_small_images(session)).problem


@cache
def loop(benchmark: str) -> OneByOne:
    return one_by_one(make_problem("torch", benchmark), BATCH_SIZE)


def expected(benchmark: str, output: str) -> Numbers:
    return loop(benchmark).output(output, MODELS[benchmark][1])


CASES = [("mnist", "clipped_sum"), ("cifar10", "clipped_sum"), ("text", "norms")]
"""The clipped sum takes the norms, so it stands for both; that of `text` is below."""


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("benchmark", "output"), CASES)
def test_torch_is_the_loop(benchmark: str, output: str, traced: bool) -> None:
    problem = make_problem("torch", benchmark)
    compute = of_torch.ghost(problem, output, MODELS[benchmark][1], traced=traced)
    actual = to_neutral(compute(*problem.batch(np.arange(BATCH_SIZE))))
    assert relative_error(actual, expected(benchmark, output)) < TOLERANCE


@pytest.mark.parametrize(("benchmark", "output"), CASES)
def test_jax_is_the_loop(benchmark: str, output: str) -> None:
    problem = make_problem("jax", benchmark)
    settings = Settings(chunk_size=1, clip_norm=MODELS[benchmark][1])
    compute = jax.jit(of_jax.ghost(problem, output, settings))
    outputs = compute(problem.params, *problem.batch(np.arange(BATCH_SIZE)))
    actual = problem.to_neutral(outputs) if output == "clipped_sum" else {"norms": np.asarray(outputs["norms"])}
    assert relative_error(actual, expected(benchmark, output)) < TOLERANCE


@pytest.mark.parametrize(("framework", "mode"), [("torch", "ghost.compiled"), ("jax", "ghost.jit")])
def test_mode_is_the_loop_and_says_how(framework: Framework, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only_trace(monkeypatch)
    model, clip_norm = MODELS["text"]
    names: dict[str, Any] = {"benchmark": "text", "model": model, "execution_mode": mode, "precision": "fp64"}
    asked = {"options": {"output": "clipped_sum"}, "clip_norm": clip_norm, "batch_size": BATCH_SIZE}
    program = build(make_session(framework, "per_sample_gradients", **names, **asked))
    numbers = {name.rpartition("/")[2]: value for name, value in program.parity().items() if "/" in name}
    assert relative_error(numbers, expected("text", "clipped_sum")) < TOLERANCE
    assert program.details["choices"] == ["embed: equal_tokens", "hidden: gram", "output: gram"]


WIDE = {"width": 256, "layers": 1}
"""A graph of 60 atoms is cheapest as Gram matrices then, and for 13 codes of bonds the table is."""
CHOSEN: dict[tuple[str, str], tuple[dict[str, int], set[str]]] = {
    **{(benchmark, model): ({}, set()) for benchmark, (model, _) in MODELS.items()},
    ("enwik8", "gpt_nano"): ({}, {"wte: equal_tokens", "wpe: rows", "ln_f: summed", "head: gram"}),
    ("molpcba", "gcn"): (WIDE, {"atom: gram", "layers.0.linear: gram", "layers.0.bond: instantiated"}),
    ("molpcba", "graphnet"): (WIDE, {"steps.0.edge.dense: gram", "output: rank_one"}),
}
"""Sizes, and some of the layers' forms."""


@pytest.mark.parametrize(("benchmark", "model"), CHOSEN)
def test_both_frameworks_choose_the_same(benchmark: str, model: str) -> None:
    sizes, some = CHOSEN[benchmark, model]
    chosen = []
    for framework, choices in (("jax", of_jax.choices), ("torch", of_torch.choices)):
        names = {"benchmark": benchmark, "model": model, "sizes": sizes, "batch_size": 6}
        session = make_session(framework, "per_sample_gradients", **names)  # type: ignore[arg-type]
        chosen.append(sorted(choices(build(with_small_images(session)).problem)))
    assert chosen[0] == chosen[1] and some <= set(chosen[0])


# The forms of one layer

LAYERS: dict[str, Any] = {
    # kernel, stride, padding of convolutions
    "same": ((3, 3), (1, 1), (1, 1)),
    "odd": ((4, 2), (1, 1), (2, 0)),
    "strided": ((3, 2), (2, 3), (1, 0)),
    "dense": (),
}
SAMPLES = 3


@pytest.fixture
def double() -> Any:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("slice_bytes", [2**24, 1], ids=["whole", "one by one"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.usefixtures("double")
def test_forms_agree(name: str, slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each other, with autograd, and of both frameworks."""
    torch.manual_seed(0)
    forms: list[Form] = ["gram", "instantiated"]
    if name == "dense":
        module: Any = nn.Linear(7, 4, bias=False).double()
        inputs = torch.randn(SAMPLES, 6, 7, dtype=torch.float64)
        of_flax: Any = nnx.Linear(7, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    else:
        kernel, stride, padding = LAYERS[name]
        forms += ["pixel_gram"] if stride == (1, 1) else []
        module = nn.Conv2d(2, 4, kernel, stride, padding, bias=False).double()
        inputs = torch.randn(SAMPLES, 2, 6, 5, dtype=torch.float64)
        of_flax = nnx.Conv(2, 4, kernel, strides=stride, padding=padding, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    gradient = torch.randn_like(module(inputs))
    wanted = []
    for one, of_one in zip(inputs, gradient, strict=True):
        (weight,) = torch.autograd.grad(module(one[None]), module.weight, of_one[None])
        wanted.append(weight.square().sum().item())
    for machine in ("cpu", "gpu"):
        monkeypatch.setitem(of_jax.SLICE_BYTES, machine, slice_bytes)

    def last(tensor: torch.Tensor) -> jax.Array:
        return jnp.asarray(tensor.numpy() if name == "dense" else tensor.movedim(1, -1).numpy())

    captured = Captured(of_flax, lambda *_: jnp.zeros(()), last(inputs), last(gradient))
    for form in forms:
        layer = of_torch.Layer("layer", module, form, slice_bytes)
        np.testing.assert_allclose(of_torch.squared_norms(layer, inputs, gradient), wanted, rtol=1e-12, err_msg=form)
        for on_gpu in (False, True):
            found = of_jax.squared_norms(captured, form, on_gpu=on_gpu)
            np.testing.assert_allclose(found, wanted, rtol=1e-12, err_msg=form)


# The choice


def test_choice_by_hand() -> None:
    """The second and the seventh convolution of the network for CIFAR-10."""
    second = Shape(positions=1024, seen=288, features=32, window=(3, 3), pixels=1024)
    assert costs(second) == {
        "gram": Cost(2 * 1024**2 * (288 + 32), 2 * 1024**2 + 1024 * 288),
        "instantiated": Cost(2 * 1024 * 288 * 32, 288 * 32 + 1024 * 288),
        # Both matrices, and one for each of 3 + 3 shifts; a pixel has 32 channels.
        "pixel_gram": Cost(2 * 1024**2 * (32 + 32), (2 + 6) * 1024**2),
    }
    assert choose(second) == "instantiated"  # 28.6 million; the others 749 and 403
    seventh = Shape(positions=16, seen=1152, features=256, window=(3, 3), pixels=16)
    assert {form: cost.total for form, cost in costs(seventh).items()} == {
        "gram": 2 * 256 * 1408 + 32 * (2 * 256 + 16 * 1152),
        "instantiated": 2 * 16 * 1152 * 256 + 32 * (1152 * 256 + 16 * 1152),
        "pixel_gram": 2 * 256 * (128 + 256) + 32 * 8 * 256,
    }
    assert choose(seventh) == "pixel_gram"
    assert choose(seventh._replace(has_stride=True)) == "gram"
    assert choose(Shape(positions=1, seen=512, features=32)) == "rank_one"
    assert choose(Shape(positions=1024, seen=64, features=64)) == "instantiated"


def test_slices_are_of_one_sample_at_least() -> None:
    assert slices(5, 10, 25) == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert len(slices(5, 10, 1)) == 5


# What is refused


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc(self.fc(inputs))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), r"knows .*, not torch.*LayerNorm \(1\)"),
        (Twice(), "used twice, as fc is"),
        (tied(), "weights that two layers share"),
    ],
    ids=["unknown", "twice", "tied"],
)
def test_torch_refuses(model: nn.Module, message: str) -> None:
    problem = SimpleNamespace(
        model=model,
        params=None,
        device=torch.device("cpu"),
        batch=lambda _rows: (torch.zeros(1, 2), torch.zeros(1)),
        apply=lambda _params, inputs: model(inputs),
        bf16=False,
        task=ImageClassification(torch.zeros(1), torch.ones(1), ()),
    )
    with pytest.raises(Refused, match=message):
        of_torch.ghost(problem, "norms", 1.0, traced=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (partial(nnx.LayerNorm, 2), r"knows .*, not flax.*LayerNorm \(0\)"),
        (partial(nnx.Conv, 2, 2, (3, 3), feature_group_count=2), "one group without dilation, not 0"),
        (partial(nnx.Conv, 2, 2, (3, 3), padding="SAME"), "padded by numbers, not 0"),
    ],
    ids=["unknown", "grouped", "padded by name"],
)
def test_jax_refuses(layer: Any, message: str) -> None:
    problem = SimpleNamespace(model=Sequential(layer(rngs=nnx.Rngs(0))))
    with pytest.raises(Refused, match=message):
        of_jax.ghost(problem, "norms", Settings(chunk_size=1, clip_norm=1.0))  # type: ignore[arg-type]
