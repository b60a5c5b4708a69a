"""Use cases 3 and 4: the gradient of every sample's own loss, on one GPU or on several. What both frameworks share.

Numbers only, no framework. The check's batch repeats a few distinct samples up to the measured batch size, so that the
very program that is timed is checked, and a one-by-one loop in float64 over the distinct samples is reference enough.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.plan import Frozen, Precision
from harness.results.parity import Numbers
from harness.results.record import Check
from harness.work.closeness import (
    TOLERANCES,
    Tensors,
    check_error,
    check_errors,
    errors_of_items,
    errors_of_tensors,
    relative_error,
)
from harness.work.datasets import Arrays
from harness.work.declared import (
    CONVOLUTIONS,
    EAGER,
    JAX_RUNS,
    JIT,
    PROCESS_PER_NODE,
    TORCH_RUNS,
    Formulation,
    Layer,
    Run,
    UseCase,
)
from harness.work.graphs import Given

Output = Literal["norms", "full", "clipped_sum", "batch_gradient"]

DISTINCT_SAMPLES = 8
PER_SAMPLE_OUTPUTS = ("norms", "full")
"""Outputs with one entry per sample, in the order of the batch; of several devices, each holds those of its own part.
The other outputs are sums over the whole batch, and the same on all devices."""
REFERENCE_TOLERANCE = 1e-9
"""Float64 against float64."""


class Options(Frozen):
    """What is asked for decides what may be fused away, so the outputs are never compared with each other."""

    output: Output
    """`norms`: B numbers. `full`: every sample's whole gradient. `clipped_sum`: the sum that DP-SGD takes, without
    noise. `batch_gradient`: one gradient of the mean loss, the base line."""


class Settings(Frozen):
    chunk_size: int = Field(ge=1)
    """Samples of one chunk in the chunked formulations."""
    clip_norm: float = Field(gt=0)
    """Largest L2 norm of a sample's gradient in `clipped_sum`."""
    max_nodes: int = Field(default=64, ge=1)
    """Graphs with more nodes are left out of every formulation: each graph has the room of the largest, so a few very
    large ones would make most of the work."""


def samples_of_use(train: Arrays, max_nodes: int) -> Arrays:
    """The samples of the training set that are taken; all but graphs with more than `max_nodes` nodes."""
    if "node_count" not in train:
        return train
    taken = np.flatnonzero(train["node_count"] <= max_nodes)
    return {name: array[taken] for name, array in train.items()}


def given_batches(train: Arrays, batch_size: int, devices: int) -> list[Given]:
    """What the task will be given: each device's part of the batch that is timed and of the check's, these few samples
    as one batch, and each sample alone."""
    if "node_count" not in train:
        return []
    timed, checked = np.arange(batch_size), check_batch_rows(batch_size)
    return [
        Given(arrays=train, batches=np.split(timed, devices)),
        Given(arrays=train, batches=[*np.split(checked, devices), np.unique(checked)]),
        Given(arrays=train, batches=timed[:, None]),
    ]


LAYERWISE = frozenset(
    {
        *(Layer.DENSE, Layer.DENSE_WITHOUT_BIAS, Layer.CONVOLUTION, Layer.CONVOLUTION_WITHOUT_BIAS),
        *(Layer.PATCH_PROJECTION, Layer.SCALE, Layer.TABLE, Layer.TIED_HEAD, Layer.ATTENTION, Layer.GRAPH),
    }
)
"""Kinds of layers whose weights' gradients are made of the layer's input and the gradient by its output."""
PER_SAMPLE: dict[str, frozenset[Output]] = {"output": frozenset({"norms", "full", "clipped_sum"})}
OF_THE_BATCH: dict[str, frozenset[Output]] = {"output": frozenset({"batch_gradient"})}
WITHOUT_GRADIENTS: dict[str, frozenset[Output]] = {"output": frozenset({"norms", "clipped_sum"})}
"""Ghost norms never have the gradients themselves."""


def formulations(runs: tuple[Run, ...], several: tuple[Run, ...], chunked: tuple[Run, ...]) -> tuple[Formulation, ...]:
    """Those that both frameworks have.

    Args:
        several: further runs of `batch` and `vmap`, for several devices.
        chunked: runs of the chunked ones.
    """
    return (
        Formulation(
            name="batch",
            about="one gradient of the mean loss: the base line, without per-sample gradients",
            runs=(*runs, *several),
            options=OF_THE_BATCH,
            whole_batch=True,
        ),
        Formulation(
            name="vmap", about="`vmap(grad(loss))`, then the output", runs=(*runs, *several), options=PER_SAMPLE
        ),
        Formulation(
            name="outer_product",
            about="one backward pass to each layer's output, and the outer product of that with the layer's input for "
            "each sample (Goodfellow 2015, arXiv 1510.01799; Opacus' hooks do the same)",
            runs=runs,
            options=PER_SAMPLE,
            knows=LAYERWISE,
            whole_batch=True,
        ),
        Formulation(
            name="ghost",
            about="the same pass; norms and clipped sums without the gradients themselves (harness/work/ghost.py)",
            runs=runs,
            options=WITHOUT_GRADIENTS,
            knows=LAYERWISE,
            whole_batch=True,
        ),
        Formulation(
            name="chunked",
            about="`vmap` over chunks of `chunk_size` samples: less memory",
            runs=chunked,
            options=PER_SAMPLE,
            chunks_of="vmap",
        ),
        Formulation(
            name="chunked_outer_product",
            about="`outer_product` over such chunks",
            runs=chunked,
            options=PER_SAMPLE,
            knows=LAYERWISE,
            whole_batch=True,
            chunks_of="outer_product",
        ),
    )


USE_CASE = UseCase(
    name="per_sample_gradients",
    about="the gradient of each single sample",
    work="Per-sample gradients of {model}",
    options=Options,
    settings=Settings,
    needs_data=True,
    without={Layer.BATCH_NORM: "BatchNorm mixes the samples of a batch, so a per-sample gradient is not defined"},
    headline={"jax": "vmap.jit", "torch": "vmap.compiled"},
    formulations={
        "jax": (
            # Chunks not as one graph: XLA leaves the loop outside, for an asynchronous copy of slices in it (jaxlib
            # 0.12.0).
            *formulations(JAX_RUNS, several=(PROCESS_PER_NODE,), chunked=(JIT,)),
            Formulation(
                name="grouped",
                about="the pass of `outer_product`; a convolution's weight gradients are one grouped weight gradient. "
                "For GPUs: on a CPU it is XLA's slowest by far",
                runs=JAX_RUNS,
                options=PER_SAMPLE,
                needs=CONVOLUTIONS,
                knows=LAYERWISE,
                whole_batch=True,
            ),
        ),
        "torch": (
            *formulations(TORCH_RUNS, several=(), chunked=TORCH_RUNS),
            Formulation(
                name="loop",
                about="one backward pass for each sample: the reference, not a contender",
                runs=(EAGER,),
                options=PER_SAMPLE,
                is_loop=True,
            ),
        ),
    },
)


def check_batch_rows(batch_size: int) -> NDArray[np.int64]:
    """Rows of the training set for the check's batch: the first few samples over and over."""
    return np.arange(batch_size) % min(DISTINCT_SAMPLES, batch_size)


class Expected(NamedTuple):
    """Of the check's batch."""

    output: dict[str, NDArray[np.float64]]
    """What the use case must return."""
    mean: dict[str, NDArray[np.float64]]
    """The mean of the distinct samples' gradients."""


def expected_output(
    loop: Iterable[Tensors], output: str, batch_size: int, clip_norm: float, own: slice = slice(None)
) -> Expected:
    """One sample after the other: none stays in memory, unless all of them are the output.

    Args:
        loop: the gradient of each distinct sample's loss, float64, by neutral name.
        output: `full`: each sample's gradient, [batch, ...] per parameter. `norms`: [batch] L2 norms over all
            parameters. `clipped_sum`: sum of g * min(1, clip_norm / |g|) (Abadi et al. 2016, arXiv 1607.00133,
            algorithm 1, no noise). `batch_gradient`: gradient of the mean loss.
        own: this device's part of the batch.
    """
    rows = check_batch_rows(batch_size)
    counts = np.bincount(rows)
    norms, kept = [], []
    mean: dict[str, NDArray[np.float64]] = {}
    weighted: dict[str, NDArray[np.float64]] = {}
    for gradient, count in zip(loop, counts, strict=True):
        norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
        norms.append(norm)
        _add(mean, gradient, 1 / len(counts))
        if output == "full":
            kept.append(gradient)
        elif output != "norms":
            # clip_norm / max(norm, clip_norm) is min(1, clip_norm / norm), for a norm of zero too.
            factor = clip_norm / max(norm, clip_norm) if output == "clipped_sum" else 1 / batch_size
            _add(weighted, gradient, factor * count)
    if output == "norms":
        return Expected({"norms": np.array(norms)[rows[own]]}, mean)
    if output == "full":
        return Expected({name: np.stack([kept[row][name] for row in rows[own]]) for name in mean}, mean)
    return Expected(weighted, mean)


def _add(total: dict[str, NDArray[np.float64]], gradient: Tensors, factor: float) -> None:
    """In place."""
    for name, value in gradient.items():
        total[name] = total.get(name, 0.0) + factor * value


def check_gradients(
    *,
    actual: Tensors,
    loop: Iterable[Tensors],
    batch_gradient: Tensors,
    output: str,
    batch_size: int,
    clip_norm: float,
    precision: Precision,
    own: slice = slice(None),
) -> list[Check]:
    """The measured output against the loop, and the loop's mean against the batch gradient of the distinct samples
    (float64).

    Raises:
        CheckFailed: either is off by more than its tolerance; the variant is then recorded as failed and never timed.
    """
    expected, mean = expected_output(loop, output, batch_size, clip_norm, own)
    reference = check_error(
        "mean of the float64 loop against the float64 batch gradient",
        relative_error(mean, batch_gradient),
        REFERENCE_TOLERANCE,
    )
    name = f"{output} against the float64 loop"
    if output in PER_SAMPLE_OUTPUTS:
        return [reference, *check_errors(name, errors_of_items(actual, expected), "sample", TOLERANCES[precision])]
    whole = relative_error(actual, expected)
    return [
        reference,
        *check_errors(name, errors_of_tensors(actual, expected), "tensor", TOLERANCES[precision], worst=whole),
    ]


def parity_names(output: str, values: Numbers) -> dict[str, NDArray[np.float64]]:
    """The output under the names of the parity gate; a `batch_gradient` is a gradient like any other."""
    if output == "norms":
        return {"norms": values["norms"]}
    quantity = {"full": "per_sample_gradients", "clipped_sum": "clipped_sum", "batch_gradient": "gradients"}[output]
    return {f"{quantity}/{name}": value for name, value in values.items()}
