"""The parity gate, as numbers: what is compared before the speed of a pair is, and how close it must be. Pure.

Both frameworks compute the same few things from the same weights and the same small batch, in strict fp32, with the
program of the variant itself. They leave them in the neutral layout of work/weights.py; nothing here needs either.

Names of the numbers: a quantity (QUANTITIES), or a quantity and a tensor, such as `gradients/conv1.weight`.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.plan import DataKind, Framework, Frozen, Measurement, Scalar
from harness.results.model_trace import other_parameters, short
from harness.results.record import Check, Outcome

Numbers = Mapping[str, NDArray[np.float64]]

PARITY_BATCH_SIZE = 16
"""Samples, or the next multiple of the devices. BatchNorm's last statistics are then over 256 values and more."""
PARITY_STEPS = 5

LARGE = 2**14
"""Elements above which a tensor is kept as its sketch."""
SKETCH_SIZE = 2**12

FLOOR = 1e-3
"""Of the quantity's whole L2 norm. A tensor smaller than that is compared on this scale: what is zero in exact
arithmetic has no relative error."""


WHOLE, MEDIAN = "all tensors together", "median tensor"
"""In the place of a tensor's name, in a quantity that has a tolerance for its typical error."""


class Quantity(Frozen):
    words: str
    """Before `of <tensor>`, or alone."""
    tolerance: float
    """Relative L2 error of each tensor, in fp32."""
    typical: float | None = None
    """The same of all tensors together and of the median tensor, where a single tensor may be further off."""


FORWARD = 5e-5
"""Through the model once. On a CPU, 20 layers of convolution and BatchNorm were seen at 3e-6. An epsilon of 1e-3 for
1e-5 gives 9e-4 there."""
GRADIENT = 2e-2
"""Of single quantities, and the typical error of a gradient's tensors. A ReLU whose input rounds across zero opens or
closes a whole path. If rounding is of relative size e, about e of all activations do, so a gradient is off by about the
square root of e: 2.6e-3 was seen with e = 3e-6."""
UPDATES = 5e-2
"""Typical, of five such gradients with momentum; 9e-3 was seen. At another learning rate they would drift apart, see
GATE_SETTINGS."""
WORST_TENSOR = 1e-1
"""Of a deep network's gradients and updates. One tensor of a right pair may be several times as far off as the
median one, as a framework's float32 is from its own float64. A mistake of mathematics is in most tensors, or is all of
one."""

QUANTITIES: dict[str, Quantity] = {
    "outputs": Quantity(words="outputs", tolerance=FORWARD),
    "loss": Quantity(words="loss", tolerance=FORWARD),
    "norms": Quantity(words="norms of the per-sample gradients", tolerance=GRADIENT),
    "per_sample_gradients": Quantity(words="per-sample gradients", tolerance=GRADIENT),
    "clipped_sum": Quantity(words="clipped sum", tolerance=GRADIENT),
    "gradients": Quantity(words="gradient", tolerance=WORST_TENSOR, typical=GRADIENT),
    "statistics": Quantity(words="running statistics", tolerance=FORWARD),
    "first_moments": Quantity(
        words=f"first moment after {PARITY_STEPS} steps", tolerance=WORST_TENSOR, typical=UPDATES
    ),
    "second_moments": Quantity(
        words=f"second moment after {PARITY_STEPS} steps", tolerance=WORST_TENSOR, typical=UPDATES
    ),
    "updates": Quantity(words=f"sum of {PARITY_STEPS} updates", tolerance=WORST_TENSOR, typical=UPDATES),
    "losses_of_steps": Quantity(words=f"losses of {PARITY_STEPS} steps", tolerance=FORWARD),
    "statistics_after_steps": Quantity(words=f"running statistics after {PARITY_STEPS} steps", tolerance=FORWARD),
}
"""In the order of the comparison: what comes first can cause what follows, and not the other way round."""

GATE_SETTINGS: dict[str, Scalar] = {
    "chunk_size": 5,
    "learning_rate": 1e-4,
    "weight_decay": 1.0,
    "weights": "drawn",
    "max_gradient_norm": 0.1,
}
"""Instead of the variant's, unless that is zero. Chunks must be smaller than the batch, and leave a rest. At a learning
rate for training, five steps of a deep network with BatchNorm drift apart by rounding alone (by 30 % of the updates of
one ResNet-18 layer at 0.02, seen on a CPU); at this one they stay with their gradients. A weight decay for training is
so small that its absence would not show after five steps. Drawn weights leave no parameter at a value at which its
absence would not show, and are there on every machine. A norm of 0.1 clips: the gradients of the models here are larger
at drawn weights."""
GATE_SETTINGS_OF_ADAMW: dict[str, Scalar] = GATE_SETTINGS | {"weight_decay": 10.0}
GATE_EPSILON = 1e-4
"""Instead of those above, and of the epsilon, where `optimizer` is `adamw`. AdamW divides a gradient by its own size,
so an update is about 1, whatever the gradient is, times the learning rate; a decay of 10 adds 10 times the weight. With
1 its absence would hardly show in weights of 0.02; with 100 little else would show in those of 0.1. For the same reason
a forgotten clip changes next to nothing unless epsilon is about as large as what is divided, and an element whose
gradient is all rounding becomes an update of full size. A gradient that is clipped to a norm of 0.1 has, over 10^5 to
10^7 parameters, elements of 3e-4 to 3e-5. Five steps hardly tell the betas apart, as the bias is corrected, so the
moments are compared too."""
GATE_SIZES: dict[str, int] = {"image_size": 64, "positions": 64}
"""At most. Rounding grows with the size of the sums, and mistakes do not: small images and short texts show the same
ones."""


class Judgement(Frozen):
    """Whether a pair may have a ratio."""

    state: Literal["passed", "failed", "unchecked"]
    sentence: str
    """passed: what was compared. failed: the first tensor that differs and by how much, or which program broke.
    unchecked: why."""


class ParityKey(Frozen):
    """Everything that the numbers depend on. Batch size and precision are not in it: the gate has its own."""

    framework: Framework
    benchmark: str
    use_case_name: str
    model: str
    execution_mode: str
    options: dict[str, Scalar]
    devices: int
    seed: int
    settings: dict[str, Scalar]
    sizes: dict[str, Scalar]
    data: DataKind

    @property
    def digest(self) -> str:
        """Twelve hex digits of the content."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @property
    def work(self) -> dict[str, Any]:
        """What both sides of a pair share."""
        return self.model_dump(mode="json", exclude={"framework", "execution_mode"})


class ParityMetadata(Frozen):
    """What stands beside the numbers of one key."""

    schema_version: Literal[1] = 1
    key: ParityKey
    outcome: Outcome
    reason: str | None = None
    """Why there are no numbers."""
    shapes: dict[str, tuple[int, ...]] = {}
    """Of the tensors as they were computed; what is kept of a large one has another."""
    environment: dict[str, Any] = {}
    """Node, git commit, and what the framework says of itself: version, device, precision flags."""
    created_at: str
    """ISO 8601, UTC."""


class ParityNumbers(Frozen, arbitrary_types_allowed=True):
    """One key of one framework, as it is kept."""

    metadata: ParityMetadata
    kept: dict[str, NDArray[np.float64]] = {}


def key_of(measurement: Measurement) -> ParityKey:
    gated = gate_measurement(measurement)
    return ParityKey(
        framework=gated.framework,
        benchmark=gated.cell.benchmark,
        use_case_name=gated.cell.use_case_name,
        model=gated.variant.model,
        execution_mode=gated.variant.execution_mode,
        options=gated.variant.options,
        devices=gated.cell.devices,
        seed=gated.seed,
        settings=gated.settings,
        sizes=gated.sizes,
        data=gated.data,
    )


def work_of(measurement: Measurement) -> str:
    """Equal for measurements of both frameworks whose numbers are compared: model, options, settings."""
    return json.dumps(key_of(measurement).work, sort_keys=True)


def gate_measurement(measurement: Measurement) -> Measurement:
    """The same program on the gate's batch, in strict fp32, with the seed of replicate 0 for all replicates."""
    devices = measurement.cell.devices
    batch_size = -(-PARITY_BATCH_SIZE // devices) * devices
    variant = measurement.variant.model_copy(update={"batch_size": batch_size, "precision": "fp32"})
    return measurement.model_copy(
        update={
            "variant": variant,
            "replicate": 0,
            "settings": gate_settings(measurement.settings),
            "sizes": gate_sizes(measurement.sizes),
        }
    )


def gate_settings(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    is_adamw = settings.get("optimizer") == "adamw"
    instead = GATE_SETTINGS_OF_ADAMW if is_adamw else GATE_SETTINGS
    gated = {name: instead.get(name, value) if value else value for name, value in settings.items()}
    return gated | {"epsilon": GATE_EPSILON} if is_adamw else gated


def gate_sizes(sizes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {
        name: min(value, GATE_SIZES[name]) if isinstance(value, int) and name in GATE_SIZES else value
        for name, value in sizes.items()
    }


def condense(numbers: Numbers) -> tuple[dict[str, NDArray[np.float64]], dict[str, tuple[int, ...]]]:
    """What is kept of a key's numbers, and their shapes. Large tensors are kept as sketches."""
    unknown = [name for name in numbers if quantity_of(name) not in QUANTITIES]
    if unknown:
        raise ValueError(f"number {unknown[0]!r}: no such quantity; known: {', '.join(QUANTITIES)}")
    kept: dict[str, NDArray[np.float64]] = {}
    for name, value in numbers.items():  # one by one: all of them in float64 may not fit
        array = np.asarray(value, np.float64)
        kept[name] = sketch(name, array) if array.size > LARGE else array
    return kept, {name: np.shape(value) for name, value in numbers.items()}


def quantity_of(name: str) -> str:
    return name.partition("/")[0]


def sketch(name: str, tensor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every element with a random sign, added up in one of SKETCH_SIZE random places: [SKETCH_SIZE].

    A linear map that keeps L2 norms: the squared norm of the sketch of a difference has the squared norm of the
    difference as its mean and at most sqrt(2 / SKETCH_SIZE) = 2.2 % of it as its standard deviation, whatever the
    difference is and wherever it hides, as signs and places are drawn without regard to it. So the relative error of
    two sketches is that of the tensors, and they are compared like any other.

    Source: Thorup and Zhang 2004, "Tabulation based 4-universal hashing with applications to second moment estimation"
    (the count sketch of Charikar, Chen and Farach-Colton 2002). RandomState, as numpy promises its stream for ever.
    """
    draw = np.random.RandomState(zlib.crc32(name.encode()))
    places = draw.randint(0, SKETCH_SIZE, tensor.size, dtype=np.uint16)
    signs = draw.randint(0, 2, tensor.size, dtype=np.int8) * 2 - 1
    return np.bincount(places, weights=signs * tensor.ravel(), minlength=SKETCH_SIZE).astype(np.float64)


def compare(jax: ParityNumbers, torch: ParityNumbers) -> list[Check]:
    """One check for each tensor, in the order of QUANTITIES and then of the model. Where the typical error has a
    tolerance of its own, one of all tensors together and one of the median tensor follow."""
    names = _in_order(torch.kept, jax.kept)
    checks = []
    for name, quantity in QUANTITIES.items():
        errors = _errors([one for one in names if quantity_of(one) == name], jax, torch)
        checks += [_check(one, error, quantity.tolerance) for one, error in errors.items()]
        if errors and quantity.typical is not None:
            whole = _whole_error(list(errors), jax, torch)
            checks.append(_check(f"{name}/{WHOLE}", whole, quantity.typical))
            median = float(np.median(list(errors.values())))
            checks.append(_check(f"{name}/{MEDIAN}", median, quantity.typical))
    return checks


def _check(name: str, error: float, tolerance: float) -> Check:
    return Check(name=name, error=error, tolerance=tolerance, passed=error <= tolerance)


def _errors(names: Sequence[str], jax: ParityNumbers, torch: ParityNumbers) -> dict[str, float]:
    """Of the tensors of one quantity, by name."""
    floor = max(_norm(names, side.kept) for side in (jax, torch)) * FLOOR
    return {
        name: _error(jax.kept[name], torch.kept[name], floor) if _are_alike(name, jax, torch) else float("inf")
        for name in names
    }


def _whole_error(names: Sequence[str], jax: ParityNumbers, torch: ParityNumbers) -> float:
    """Over all tensors of one quantity; infinite where one side lacks one."""
    if not all(_are_alike(name, jax, torch) for name in names):
        return float("inf")
    ours, theirs = (np.concatenate([side.kept[name].ravel() for name in names]) for side in (jax, torch))
    return _error(ours, theirs, floor=0.0)


def _are_alike(name: str, jax: ParityNumbers, torch: ParityNumbers) -> bool:
    return jax.metadata.shapes.get(name) == torch.metadata.shapes.get(name)


def judge(jax: ParityNumbers, torch: ParityNumbers) -> Judgement:
    """Of one pair."""
    for numbers in (jax, torch):
        metadata = numbers.metadata
        if metadata.outcome != "ok":
            sentence = f"{metadata.key.framework} has no parity numbers: {metadata.outcome}: {metadata.reason}"
            return Judgement(state="failed", sentence=sentence)
    if jax.metadata.key.work != torch.metadata.key.work:
        ours, theirs = jax.metadata.key.work, torch.metadata.key.work
        differing = "; ".join(f"{name}: {ours[name]} and {theirs[name]}" for name in ours if ours[name] != theirs[name])
        sentence = f"the parity numbers of jax and torch are of different work: {differing}"
        return Judgement(state="unchecked", sentence=sentence)
    if cause := structure(jax, torch):
        return Judgement(state="failed", sentence=cause)
    checks = compare(jax, torch)
    tensor_count = len(jax.kept.keys() | torch.kept.keys())
    failed = [check for check in checks if not check.passed]
    if not checks:
        return Judgement(state="unchecked", sentence="neither framework left any parity numbers")
    if failed:
        return Judgement(state="failed", sentence=_difference(failed, tensor_count, jax, torch))
    closest = max(checks, key=lambda check: check.error / check.tolerance)
    sentence = (
        f"{tensor_count} tensors agree in fp32; nearest to its tolerance: {in_words(closest.name)}, "
        f"relative error {closest.error:.1e} of {closest.tolerance:.0e}"
    )
    return Judgement(state="passed", sentence=sentence)


PER_PARAMETER = ("gradients", "per_sample_gradients", "clipped_sum", "updates")
"""Quantities with a tensor for each parameter."""


def structure(jax: ParityNumbers, torch: ParityNumbers) -> str | None:
    """What tells the two models apart before any number: names, then shapes of their parameters; None where they are
    alike, or where nothing is computed for each parameter."""
    for quantity in PER_PARAMETER:
        ours, theirs = (
            {
                name.partition("/")[2]: tuple(shape)
                for name, shape in side.metadata.shapes.items()
                if quantity_of(name) == quantity and "/" in name
            }
            for side in (jax, torch)
        )
        if ours and theirs:
            return other_parameters(ours, theirs, with_counts=quantity != "per_sample_gradients")
    return None


def in_words(name: str) -> str:
    """`gradients/conv1.weight` -> `gradient of conv1.weight`."""
    quantity, _, tensor = name.partition("/")
    if tensor in (WHOLE, MEDIAN):
        return f"{QUANTITIES[quantity].words}, {tensor}"
    return f"{QUANTITIES[quantity].words} of {tensor}" if tensor else QUANTITIES[quantity].words


def _difference(failed: Sequence[Check], tensor_count: int, jax: ParityNumbers, torch: ParityNumbers) -> str:
    """Names a tensor, unless only too many of them are too far off."""
    of_tensors = [check for check in failed if check.name.partition("/")[2] not in (WHOLE, MEDIAN)]
    first = (of_tensors or failed)[0]
    how = f"relative error {short(first.error)}, allowed {short(first.tolerance)}"
    if not of_tensors:
        return f"{in_words(first.name)}: {how}; no single one of {tensor_count} tensors differs by more than it may"
    ours, theirs = (numbers.metadata.shapes.get(first.name) for numbers in (jax, torch))
    if ours is None or theirs is None:
        how = f"only {'torch' if ours is None else 'jax'} has it"
    elif ours != theirs:
        how = f"shape {list(ours)} in jax, {list(theirs)} in torch"
    count = tensor_count - 1
    if len(of_tensors) > 1:
        rest = f"{len(of_tensors) - 1} of the {count} other tensors differ too"
    else:
        rest = f"all {count} other tensors agree" if count > 1 else "the other tensor agrees"
    return f"{in_words(first.name)}: {how}; {rest}"


def _in_order(of_torch: Mapping[str, Any], of_jax: Mapping[str, Any]) -> list[str]:
    """PyTorch keeps parameters in the order in which the model is built; JAX sorts them."""
    quantities = list(QUANTITIES)
    names = list(dict.fromkeys([*of_torch, *of_jax]))
    return sorted(names, key=lambda name: quantities.index(quantity_of(name)))


def _norm(names: Sequence[str], numbers: Numbers) -> float:
    """L2, over all of these tensors that there are; zero where it is not finite."""
    norm = math.sqrt(sum(float(np.sum(numbers[name] ** 2)) for name in names if name in numbers))
    return norm if math.isfinite(norm) else 0.0


def _error(ours: NDArray[np.float64], theirs: NDArray[np.float64], floor: float) -> float:
    """|ours - theirs| over the larger of |ours|, |theirs| and the floor, L2; infinite where one is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = float(np.linalg.norm(ours - theirs))
        size = max(float(np.linalg.norm(ours)), float(np.linalg.norm(theirs)), floor)
    if difference == 0:
        return 0.0
    error = difference / size
    return error if np.isfinite(error) else float("inf")
