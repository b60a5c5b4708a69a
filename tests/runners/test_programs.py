"""Whatever is declared is built: every execution mode of every use case, in both frameworks, as harness/work has it.

A new use case, mode, benchmark or model is here as soon as it is declared.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from harness.errors import Refused
from harness.measure.program import Program, Trains
from harness.plan import FRAMEWORKS, Framework
from harness.work.applies import why_not
from harness.work.closeness import relative_error
from harness.work.declared import Mode, benchmark, benchmark_names, use_case, use_case_names
from harness.work.weights import RUNNING_STATISTICS, initial_weight
from jax_runner import models as jax_models
from jax_runner import weights as jax_weights
from jax_runner.device import model_dtypes
from tests.gpu.cases import PRECISIONS, combinations
from tests.made.applies import MODELS
from tests.made.sessions import PROTOCOL, build, make_session, with_measurement
from torch_runner import models as torch_models
from torch_runner import weights as torch_weights

PARAMETERS = {
    ("mnist", "cnn"): 26_010,
    ("cifar10", "cnn"): 605_226,
    ("cifar10", "resnet18"): 11_173_962,
    ("text", "mlp"): 256 * 32 + (8 * 32 * 128 + 128) + (128 * 256 + 256),
    ("imagenet100", "resnet50"): 23_712_932,
    ("imagenet100", "vit_b_16"): 85_737_316,  # of 64 pixels, so of fewer positions
    ("imagenet100", "mobilenet_v3_small"): 1_620_356,
    ("imagenet100", "efficientnet_b0"): 4_135_648,
    ("synthetic", "linear"): 6 * 5 + 5,
    ("synthetic", "conv2d"): 2 * 4 * 9 + 4,
    ("synthetic", "mlp"): (6 * 7 + 7) + 2 * (7 * 7 + 7) + (7 * 5 + 5),
    ("synthetic", "convnet"): (2 * 4 * 9 + 4) + 2 * (4 * 4 * 9 + 4) + (4 * 3 * 9 + 3),
    # Codes of atoms; five layers of a dense one, a root, codes of bonds and LayerNorm; the output.
    ("molpcba", "gcn"): 174 * 256 + 5 * (256**2 + 256 + 256 + 13 * 256 + 2 * 256) + 256 * 128 + 128,
    # Both tables; five steps of dense layers for edges, nodes and the graph, with LayerNorm; the output.
    ("molpcba", "graphnet"): (174 + 13) * 256
    + sum(2 * (3 * 256 + own) * 256 + (2 * 256 + own) * 256 + 9 * 256 for own in (128, 256, 256, 256, 256))
    + (256 * 128 + 128),
}
"""By hand; of `synthetic`, with other sizes than the default; of `imagenet100` torchvision's own count
(`num_params` in its table of weights), with 100 outputs for 1,000."""

MISSING = ("needs an NVIDIA GPU", "is for nodes with several", "is for several devices", "on cpu: No viable backend")
"""How a mode is refused for what this machine lacks."""


def declared_modes() -> Iterator[Any]:
    """By day each formulation of a use case, and each way to run one; their products by night."""
    for name in use_case_names():
        for framework in FRAMEWORKS:
            seen: set[Any] = set()
            for mode in use_case(name).modes[framework]:
                marks = pytest.mark.nightly if {mode.written, mode.run} <= seen else ()
                seen |= {mode.written, mode.run}
                yield pytest.param(framework, name, mode, marks=marks, id=f"{framework}-{name}-{mode.name}")


@pytest.mark.parametrize(("framework", "name", "mode"), list(declared_modes()))
def test_every_declared_mode_is_built(framework: Framework, name: str, mode: Mode) -> None:
    """Of the smallest model that it makes sense for, a program for one device; else the mode is refused for what this
    machine lacks."""
    try:
        session = make_session(framework, name, execution_mode=mode.name, **what_it_can_do(name, mode))
        program = build(session)
    except Refused as refused:
        assert any(words in str(refused) for words in MISSING), refused
        return
    of_gpus = mode.formulation in ("streams", "cudnn_attention") or mode.run_as == "max_autotune"
    assert torch.cuda.is_available() or not (of_gpus or mode.graph != "none")
    assert isinstance(program, Program)
    assert isinstance(program, Trains) == (name == "train")
    assert not program.communicates
    assert not build(session, joined=False).communicates
    assert program.samples_per_step % 8 == 0


def what_it_can_do(name: str, mode: Mode) -> dict[str, Any]:
    declared, devices = use_case(name), max(mode.written.min_devices, mode.run.min_devices)
    smallest_first = sorted(MODELS, key=lambda names: PARAMETERS.get(names, math.inf))
    every = itertools.product(smallest_first, PRECISIONS, combinations(declared.options))
    return next(
        {"benchmark": data, "model": model, "precision": precision, "options": options}
        for (data, model), precision, options in every
        if why_not(declared, benchmark(data), benchmark(data).model(model), mode, precision, options, devices) is None
    )


@pytest.mark.parametrize("name", use_case_names())
def test_both_sides_count_the_same_and_start_from_the_weights_of_their_replicate(name: str) -> None:
    """By each framework's plain mode: one call, and what the programs say of themselves."""
    said, outputs = [], []
    for framework in FRAMEWORKS:
        program = build(with_measurement(make_session(framework, name), replicate=1))
        outputs.append({"outputs": program.parity()["outputs"]})
        program.session.device.wait((program.step(), program.state()))
        said.append((program.samples_per_step, program.steps_per_call, program.parameter_count, program.details))
    assert said[0] == said[1]
    of_first = {"outputs": build(make_session("torch", name)).parity()["outputs"]}
    assert relative_error(*outputs) < 1e-4
    assert relative_error(of_first, outputs[1]) > 0.1


def models_of(*, place: str = "cpu", **names: Any) -> tuple[Any, Any]:
    """JAX's and PyTorch's; `place`: of PyTorch's tensors."""
    jax_session, torch_session = (make_session(framework, "train", **names) for framework in FRAMEWORKS)
    ours = jax_models.make_model(jax_session, model_dtypes("fp32"))
    with torch.device(place):
        return ours, torch_models.make_model(torch_session, torch.float32)


@pytest.mark.parametrize(
    ("data", "model"),
    [pytest.param(*one, marks=pytest.mark.nightly if one[0] == "imagenet100" else ()) for one in MODELS],
)  # those of ImageNet-100 give the same outputs, by day: test_imagenet100.py
def test_same_initial_weights(data: str, model: str) -> None:
    """Bit for bit those of the seed, and running statistics too; the neutral layout is PyTorch's own."""
    ours, theirs = models_of(benchmark=data, model=model)
    jax_weights.load_initial_weights(ours, PROTOCOL.seed)
    torch_weights.load_initial_weights(theirs, PROTOCOL.seed)
    of_jax = jax_weights.to_neutral(jax_weights.arrays_of(ours), jax_weights.flattened_of(ours))
    state = {name: value for name, value in theirs.state_dict().items() if "num_batches" not in name}
    of_torch = torch_weights.to_neutral(state)

    assert of_jax.keys() == of_torch.keys()
    for name, value in of_torch.items():
        expected = initial_weight(PROTOCOL.seed, name, value.shape)
        np.testing.assert_array_equal(value, expected, err_msg=name)
        np.testing.assert_array_equal(of_jax[name], expected, err_msg=name)
    counts = {jax_weights.parameter_count(ours), torch_weights.parameter_count(theirs)}
    assert counts == {sum(value.size for name, value in of_torch.items() if not name.endswith(RUNNING_STATISTICS))}
    assert counts == {PARAMETERS.get((data, model), *counts)}


@pytest.mark.parametrize("data", sorted({*benchmark_names()} - {"imagenet100"}))  # whose names and shapes are compared
def test_both_sides_count_what_is_declared_of_the_default_sizes(data: str) -> None:
    declared = benchmark(data)
    for model in declared.models:
        sizes = declared.sizes().model_dump()
        ours, theirs = models_of(place="meta", benchmark=data, model=model.name, sizes=sizes)
        counts = jax_weights.parameter_count(ours), torch_weights.parameter_count(theirs)
        assert counts == (model.parameter_count,) * 2, model.name
