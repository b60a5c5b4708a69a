"""Use case 5: the outputs of a batch, on one GPU. What both frameworks share.

Numbers only, no framework. The check's batches repeat a few distinct samples up to the measured batch size, so that the
very program that is timed is checked, and a float64 reference of the distinct samples is enough.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import Refused
from harness.plan import Frozen, Measurement, Precision, Scalar
from harness.results.record import Check
from harness.work.closeness import OUTPUTS, check_error, check_worst, errors_of_centred, relative_error_of
from harness.work.datasets import Dataset
from harness.work.declared import JAX_RUNS, TORCH_RUNS, Benchmark, Formulation, Layer, Model, Run, UseCase
from harness.work.graphs import Given
from harness.work.tasks import Metric, Task
from harness.work.use_cases.many_models import drawn_batch
from harness.work.use_cases.train import ANY_CONVOLUTION, CUDNN_ATTENTION, SORTED_SUMS, SORTED_SUMS_OF_TORCH, TAPS

Weights = Literal["drawn", "pretrained"]
Rows = NDArray[np.int64]
"""Places of samples."""

HOST_BATCHES = 8
"""In rotation where inputs come from the host, so that a call does not find its batch where the last one left it."""
CHECKED_BATCHES = 2
"""A CUDA graph that reads anything but its input gives the same answer twice."""
DISTINCT_SAMPLES = 4
"""In each of the check's batches."""
PREDICTED_SAMPLES = 5_000
"""Of the test set, at most, for the predictions that a record keeps."""
PREDICTIONS = 2**16
"""Of all samples; no batch is predicted any more when there are so many. Each takes two bytes of a record."""


class Options(Frozen):
    batch_norm: Literal["folded", "kept"]
    """Multiplied into the convolution before it, as every deployment does; or a layer of its own, as it was trained."""
    inputs: Literal["on_device", "on_host"]
    """Normalised and there before the call, and the outputs stay there; or raw (images as uint8) in the host's memory,
    pinned where there is a GPU, and the call ends when the outputs are in the host's memory."""


class Settings(Frozen):
    weights: Weights = "drawn"
    """Drawn from the seed, or those that torchvision publishes for ImageNet (`main.py data` brings them)."""


EAGER_NCHW = Run(
    name="eager_nchw",
    run_as="eager",
    layout="nchw",
    about="eager in PyTorch's default layout, where nobody asks for channels_last as all other runs do",
    needs=ANY_CONVOLUTION,
)


def why_not_options(benchmark: Benchmark, model: Model, options: Mapping[str, Any], _devices: int) -> str | None:
    if options["batch_norm"] == "kept" and Layer.BATCH_NORM not in model.layers:
        return f"{model.name} has no BatchNorm that could be kept, so it would be the same program once more"
    return why_not_on_host(benchmark.task, options["inputs"])


def why_not_on_host(task: Task, inputs: str) -> str | None:
    """Inputs on the host are for samples that are their own arrays alone."""
    if task.shared and inputs == "on_host":
        return f"inputs on_host: {task.samples} are parts of arrays that lie on the device as a whole"
    return None


USE_CASE = UseCase(
    name="inference",
    about="outputs of a batch: latency, throughput",
    work="Inference of {model}",
    options=Options,
    settings=Settings,
    why_not_options=why_not_options,
    one_device=True,
    forward_passes=1,
    has_gradients=False,
    headline={"jax": "forward.jit", "torch": "forward.compiled"},
    formulations={
        "jax": (
            Formulation(
                name="forward", about="the model as it is written, with the weights as arguments", runs=JAX_RUNS
            ),
            TAPS,
            CUDNN_ATTENTION,
            SORTED_SUMS,
        ),
        "torch": (
            Formulation(name="forward", about="the module, in inference mode", runs=(*TORCH_RUNS, EAGER_NCHW)),
            SORTED_SUMS_OF_TORCH,
        ),
    },
)


def no_score(settings: Settings) -> str | None:
    """Why predictions have no quality; None where they have."""
    return "the weights are drawn" if settings.weights == "drawn" else None


def are_enough(labels: Sequence[NDArray[np.integer[Any]]]) -> bool:
    """Of each batch so far, [samples, ...]."""
    return sum(of_batch.size for of_batch in labels) >= PREDICTIONS


def quality_of(
    said: Sequence[tuple[NDArray[Any], NDArray[Any]]], metric: Metric, settings: Settings
) -> tuple[float | None, str | None]:
    """What the metric is made of, or why there is no quality.

    Args:
        said: of each batch, what the task's `scores` and `targets` gave.
    """
    if why_not := no_score(settings):
        return None, why_not
    of_test_set = metric.of_test_set(said)
    mean = float(np.concatenate([scores for scores, _ in said]).mean())
    return (mean if of_test_set is None else of_test_set), None


def require_whole_inputs(task: Task, options: Options) -> None:
    """Raises Refused where inputs are to be on the host and a sample is not its own arrays alone."""
    if why_not := why_not_on_host(task, options.inputs):
        raise Refused(why_not)


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What a model is asked: samples of the test set, or drawn ones where the benchmark has no data."""

    benchmark: Benchmark
    dataset: Dataset
    model: str
    sizes: Mapping[str, Scalar]
    seed: int
    batch_size: int

    @classmethod
    def of(cls, measurement: Measurement, benchmark: Benchmark, dataset: Dataset) -> "Requests":
        variant = measurement.variant
        return cls(
            benchmark=benchmark,
            dataset=dataset,
            model=variant.model,
            sizes=measurement.sizes,
            seed=measurement.seed,
            batch_size=variant.batch_size,
        )

    def given(self) -> list[Given]:
        """All batches that the task will be given, of one size, where samples differ in size; first those that are
        timed."""
        test = self.dataset.test
        if not self.benchmark.task.balanced_by:
            return []
        count = self.dataset.test_count
        predicted = [filled for _, filled in self._predicted_rows(min(PREDICTED_SAMPLES, count))]
        others = [*checked_rows(self.batch_size), *predicted]
        return [
            Given(arrays=test, batches=[np.arange(self.batch_size) % count]),
            Given(arrays=test, batches=[rows % count for rows in others]),
        ]

    def _predicted_rows(self, count: int) -> Iterator[tuple[Rows, Rows]]:
        """Of each batch: the places that count, and those of the whole batch."""
        for first in range(0, count, self.batch_size):
            rows = first + np.arange(self.batch_size)
            yield rows[rows < count], np.where(rows < count, rows, rows - first)

    def samples(self, rows: Rows) -> dict[str, NDArray[Any]]:
        """The arrays that the model is given, [len(rows), ...]; from the start of the test set again behind its end.
        Of images that are larger than what the model sees, the centre."""
        if drawn := self.benchmark.drawn:
            sizes = self.benchmark.sizes.model_validate(self.sizes)
            shape, classes = drawn.shape(self.model, sizes), drawn.classes(self.model, sizes)
            batch = drawn_batch(self.seed, (int(rows.max()) + 1,), shape, classes)
        else:
            batch, rows = dict(self.dataset.test), rows % self.dataset.test_count
        arrays = {name: np.asarray(batch[name][rows]) for name in self.benchmark.task.model_inputs}
        size = self.sizes.get("image_size")
        if "images" in arrays and isinstance(size, int):
            arrays["images"] = centre(arrays["images"], size)
        return arrays

    def timed(self, count: int) -> list[dict[str, NDArray[Any]]]:
        """`count` batches of samples that differ, as far as there are enough of them."""
        rows = np.arange(count * self.batch_size).reshape(count, self.batch_size)
        return [self.samples(of_batch) for of_batch in rows]

    def checked(self) -> list[dict[str, NDArray[Any]]]:
        """The batches of the check, each of a few samples over and over."""
        return [self.samples(rows) for rows in checked_rows(self.batch_size)]

    def distinct(self) -> dict[str, NDArray[Any]]:
        """The samples of the check, each once."""
        return self.samples(np.arange(CHECKED_BATCHES * distinct_samples(self.batch_size)))

    def predicted(self) -> Iterator[tuple[Rows, dict[str, NDArray[Any]]]]:
        """Batches over the test set, or its beginning: (places of the samples that count, arrays of a whole batch).
        The last is filled up from its start."""
        for rows, filled in self._predicted_rows(min(PREDICTED_SAMPLES, self.dataset.test_count)):
            yield rows, self.samples(filled)


def centre(images: NDArray[Any], size: int) -> NDArray[Any]:
    """[samples, height, width, channels] to [samples, size, size, channels], contiguous; as they are where they are no
    larger."""
    top, left = (max(0, (extent - size) // 2) for extent in images.shape[1:3])
    return np.ascontiguousarray(images[:, top : top + size, left : left + size])


def distinct_samples(batch_size: int) -> int:
    return min(DISTINCT_SAMPLES, batch_size)


def checked_rows(batch_size: int) -> list[Rows]:
    """Places of the samples of each of the check's batches, [batch]; no sample is in two of them."""
    distinct = distinct_samples(batch_size)
    return [index * distinct + np.arange(batch_size) % distinct for index in range(CHECKED_BATCHES)]


def check_outputs(
    actual: Sequence[NDArray[np.float64]], reference: NDArray[np.float64], precision: Precision
) -> list[Check]:
    """The program that will be timed against the model with BatchNorm, operator by operator in float64.

    The outputs of all samples together, and each sample's less their mean over all samples: what all outputs have in
    common can be much larger than what tells one sample from another.

    Args:
        actual: of each of the check's batches, [batch, ...].
        reference: of the distinct samples, [samples, ...].

    Raises:
        CheckFailed: they differ; the variant is then recorded as failed and never timed.
    """
    whole, of_samples = output_errors(actual, reference)
    tolerance = OUTPUTS[precision]
    against = f"outputs of {CHECKED_BATCHES} batches against float64"
    return [
        check_error(against, whole, tolerance.typical),
        check_worst(f"{against}, less their mean", of_samples, "sample", tolerance.worst),
    ]


def output_errors(
    actual: Sequence[NDArray[np.float64]], reference: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Relative L2 errors: of all outputs together, and of each sample's less the mean over samples, [samples]. The
    arguments are those of `check_outputs`."""
    rows = np.concatenate(checked_rows(len(actual[0])))
    found, expected = [one for outputs in actual for one in outputs], [reference[row] for row in rows]
    return relative_error_of(found, expected), errors_of_centred(found, expected)
