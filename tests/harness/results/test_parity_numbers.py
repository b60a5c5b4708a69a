"""What the parity gate keeps, compares and says; numbers by hand, no framework. And harness/results/parity_gate.py."""

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import RecordError
from harness.paths import Results
from harness.plan import Framework, Measurement, MeasurementSettings
from harness.results.parity import (
    FORWARD,
    GRADIENT,
    LARGE,
    UPDATES,
    WORST_TENSOR,
    Judgement,
    ParityMetadata,
    ParityNumbers,
    compare,
    condense,
    gate_measurement,
    judge,
    key_of,
    sketch,
)
from harness.results.parity_file import read_parity, write_parity
from harness.results.parity_gate import ParityGate
from harness.results.record import Record
from tests.made.records import bare_record
from tests.made.report_records import plan

SETTINGS = {"learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0.0, "epochs": 3}
GOOD: dict[str, Any] = {
    "outputs": np.array([[3.0, 4.0]]),  # norm 5
    "loss": np.array(2.0),
    "gradients/conv.weight": np.array([3.0, 0.0, 4.0]),
    "gradients/conv.bias": np.array([1e-6]),
    "updates/conv.weight": np.array([0.6, 0.8]),
}


def measurement(framework: Framework = "jax", **changes: Any) -> Measurement:
    """`changes`: to it, to its cell or to its variant."""
    made = plan(framework, "step.jit", settings=SETTINGS, protocol=MeasurementSettings(seed=7), data="sample")
    one = next(made.measurements())
    changes = {"replicate": 2, "batch_size": 256, "precision": "tf32"} | changes
    parts = {}
    for name, part in (("cell", one.cell), ("variant", one.variant)):
        own = {field: changes.pop(field) for field in list(changes) if field in type(part).model_fields}
        parts[name] = part.model_copy(update=own)
    return one.model_copy(update=parts | changes)


def numbers(framework: Framework, values: Mapping[str, Any] = GOOD, **metadata: Any) -> ParityNumbers:
    kept, shapes = condense(values)
    fields = {"key": key_of(measurement(framework)), "outcome": "ok", "shapes": shapes, "created_at": "now"}
    return ParityNumbers(metadata=ParityMetadata.model_validate(fields | metadata), kept=kept)


# Keys.


SIZES = ({"batch_size": 64}, {"precision": "bf16"}, {"replicate": 0}, {"quick": True}, {"gpu": "a100", "use_case": 9})
PROGRAMS = (
    {"model": "resnet18"},
    {"execution_mode": "scan.jit"},
    {"options": {"output": "full"}},
    {"protocol": MeasurementSettings(seed=8)},
    {"settings": SETTINGS | {"momentum": 0.8}},
    {"data": "real"},
    {"devices": 2},
    {"framework": "torch"},
)


@pytest.mark.parametrize("change", [*SIZES, *PROGRAMS], ids=str)
def test_key_is_all_of_the_program_and_not_its_size(change: dict[str, Any]) -> None:
    key, before = key_of(measurement(**change)), key_of(measurement())
    assert (key != before) == (key.digest != before.digest) == (change in PROGRAMS)
    assert before.seed == 7  # that of replicate 0, whose numbers serve all replicates


def test_gate_has_a_batch_a_precision_and_rates_of_its_own() -> None:
    """What is off stays off."""
    settings = SETTINGS | {"chunk_size": 32, "clip_norm": 60.0}
    gated = gate_measurement(measurement(settings=settings, devices=3))
    assert (gated.variant.batch_size, gated.variant.precision, gated.replicate) == (18, "fp32", 0)
    assert gated.settings == settings | {"learning_rate": 1e-4, "chunk_size": 5}
    assert key_of(gated) == key_of(measurement(settings=settings, devices=3))
    assert gate_measurement(measurement()).variant.batch_size == 16
    of_training = {"weights": "pretrained", "schedule": "cosine", "label_smoothing": 0.1}
    gated = gate_measurement(measurement(settings=SETTINGS | of_training))
    assert gated.settings == SETTINGS | of_training | {"learning_rate": 1e-4, "weights": "drawn"}


def test_gate_shows_what_adamw_does() -> None:
    """The epsilon also where a recipe leaves it out; a clip only where there is one."""
    adamw = {"optimizer": "adamw", "weight_decay": 0.1, "beta2": 0.95, "max_gradient_norm": 1.0}
    gated = gate_measurement(measurement(settings=SETTINGS | adamw)).settings
    of_gate = {"weight_decay": 10.0, "epsilon": 1e-4, "max_gradient_norm": 0.1, "learning_rate": 1e-4}
    assert gated == SETTINGS | adamw | of_gate
    without = gate_measurement(measurement(settings=SETTINGS | {"optimizer": "adamw"})).settings
    assert without == SETTINGS | {"optimizer": "adamw", "epsilon": 1e-4, "learning_rate": 1e-4}
    clipped_sgd = gate_measurement(measurement(settings=SETTINGS | {"max_gradient_norm": 1.0})).settings
    assert clipped_sgd == SETTINGS | {"max_gradient_norm": 0.1, "learning_rate": 1e-4}


# Sketches.


def test_small_tensors_are_kept_and_large_ones_are_not() -> None:
    kept, shapes = condense({"gradients/a": np.ones((128, 128)), "gradients/b": np.ones((128, 129))})
    assert LARGE == 128 * 128
    assert (kept["gradients/a"].shape, kept["gradients/b"].shape) == ((128, 128), (4096,))
    assert shapes == {"gradients/a": (128, 128), "gradients/b": (128, 129)}
    with pytest.raises(ValueError, match="number 'grads/a': no such quantity; known: outputs, loss"):
        condense({"grads/a": np.ones(2)})


def test_a_sketch_is_linear_keeps_the_norm_and_is_the_same_for_ever() -> None:
    """By hand, from RandomState(crc32(b"gradients/a")): element 0 goes to the first place drawn, with the first sign.
    Its L2 norm is the tensor's, within four standard deviations of 2.2 % of the square. Of 25 elements, two may share a
    place: then the sum of their squares changes by 2 of 25."""
    first, second = np.arange(20_000.0), np.arange(20_000.0)[::-1]
    difference = sketch("gradients/a", first) - sketch("gradients/a", second)
    np.testing.assert_allclose(difference, sketch("gradients/a", first - second), rtol=0, atol=1e-6)
    draw = np.random.RandomState(zlib.crc32(b"gradients/a"))
    place = draw.randint(0, 4096, 20_000, dtype=np.uint16)[0]
    sign = draw.randint(0, 2, 20_000, dtype=np.int8)[0] * 2 - 1
    np.testing.assert_array_equal(np.flatnonzero(sketch("gradients/a", 7.0 * (first == 0))), [place])
    assert sketch("gradients/a", 7.0 * (first == 0))[place] == 7.0 * sign
    for tensor, within in ((1.0 * (np.arange(100_000) % 4096 == 0), 0.08), (np.linspace(-1, 1, 100_000), 0.088)):
        assert np.sum(sketch("gradients/a", tensor) ** 2) / np.sum(tensor**2) == pytest.approx(1.0, abs=within)


# Comparison.


def errors(ours: Mapping[str, Any], theirs: Mapping[str, Any] = GOOD) -> dict[str, float]:
    return {check.name: check.error for check in compare(numbers("jax", ours), numbers("torch", theirs))}


def test_error_is_that_of_the_tensor_over_the_larger_norm() -> None:
    """Of a tensor that is next to nothing on the scale of its quantity: the gradient's norm is 5, so the floor is 5e-3,
    and 1e-6 against 2e-6 is 2e-4 of it. What is not finite never agrees."""
    assert set(errors(GOOD).values()) == {0.0}
    found = errors(GOOD | {"outputs": np.array([[3.0, 4.5]])})
    assert found["outputs"] == pytest.approx(0.5 / np.sqrt(9 + 20.25))
    assert [name for name, error in found.items() if error] == ["outputs"]
    assert errors(GOOD | {"gradients/conv.bias": np.array([2e-6])})["gradients/conv.bias"] == pytest.approx(2e-4)
    for value in (np.nan, np.inf):
        broken = GOOD | {"loss": np.array(value)}
        assert errors(broken)["loss"] == errors(broken, broken)["loss"] == np.inf


def test_checks_are_in_the_order_of_cause_and_then_of_the_model() -> None:
    shuffled = {name: GOOD[name] for name in reversed(GOOD)}
    checks = compare(numbers("jax", shuffled), numbers("torch"))
    assert [(check.name, check.tolerance) for check in checks] == [
        ("outputs", FORWARD),
        ("loss", FORWARD),
        ("gradients/conv.weight", WORST_TENSOR),
        ("gradients/conv.bias", WORST_TENSOR),
        ("gradients/all tensors together", GRADIENT),
        ("gradients/median tensor", GRADIENT),
        ("updates/conv.weight", WORST_TENSOR),
        ("updates/all tensors together", UPDATES),
        ("updates/median tensor", UPDATES),
    ]


# Judgements.


def judged(ours: Mapping[str, Any], theirs: Mapping[str, Any] = GOOD) -> str:
    judgement = judge(numbers("jax", ours), numbers("torch", theirs))
    return f"{judgement.state}: {judgement.sentence}"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"loss": np.array(2.00002)},
            "passed: 5 tensors agree in fp32; nearest to its tolerance: loss, relative error 1.0e-05 of 5e-05",
        ),
        (  # the first tensor that differs: sqrt(32) / 5
            {"gradients/conv.weight": np.array([3.0, 4.0, 0.0]), "updates/conv.weight": np.array([0.0, 1.0])},
            "failed: gradient of conv.weight: relative error 1.1e+0, allowed 1.0e-1; 1 of the 4 other tensors "
            "differ too",
        ),
        (
            {"outputs": np.array([[3.0], [4.0]])},
            "failed: outputs: shape [2, 1] in jax, [1, 2] in torch; all 4 other tensors agree",
        ),
    ],
)
def test_a_judgement_names_the_first_cause(changed: dict[str, Any], expected: str) -> None:
    assert judged(GOOD | changed) == expected
    assert judged({}, {}) == "unchecked: neither framework left any parity numbers"


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        # One tensor may be further off than most: 0.05 / sqrt(7 + 0.05**2)
        (
            [0.0, 0.05, *[0.0] * 5],
            "passed: .*: gradient, all tensors together, relative error 1.9e-02 of 2e-02",
        ),
        (
            [0.03] * 4,
            "failed: gradient, all tensors together: relative error 3.0e-2, allowed 2.0e-2; no single one",
        ),
        (
            [0.0, *[0.021] * 3, 1e-4],
            "failed: gradient, median tensor: relative error 2.1e-2, allowed 2.0e-2; no",
        ),
    ],
)
def test_the_typical_error_has_a_tolerance_of_its_own(errors: list[float], expected: str) -> None:
    """Of gradients of norm 1 but for these errors."""
    ours, theirs = ({f"gradients/{n}": np.array([1.0, one * x]) for n, one in enumerate(errors)} for x in (1, 0))
    assert re.match(expected, judged(ours, theirs))


def test_another_name_shape_or_count_of_parameters_comes_before_any_number() -> None:
    """A dense layer of 4 x 3 has 12 weights."""
    without_bias = {name: value for name, value in GOOD.items() if name != "gradients/conv.bias"}
    other = "failed: the models have other parameters: only"
    assert judged(without_bias) == f"{other} PyTorch has conv.bias (JAX has 3 parameters, PyTorch 4)"
    ours, theirs = ({f"gradients/{name}": np.ones((4, 3))} for name in ("block.token1", "block.tokens1"))
    assert judged(ours, theirs) == (
        f"{other} JAX has block.token1; only PyTorch has block.tokens1: did you mean block.tokens1?"
    )
    assert judged({"gradients/fc": np.ones((4, 3))}, {"gradients/fc": np.ones((5, 3))}) == (
        "failed: the parameters have other shapes: fc is [4, 3] in JAX and [5, 3] in PyTorch (JAX has 12 parameters, "
        "PyTorch 15)"
    )


def test_numbers_of_a_program_that_broke_or_of_different_work_are_not_compared() -> None:
    broken = numbers("torch", {}, outcome="failed", reason="KeyError: 'conv9'")
    sentence = "torch has no parity numbers: failed: KeyError: 'conv9'"
    assert judge(numbers("jax"), broken) == Judgement(state="failed", sentence=sentence)
    other = numbers("torch", key=key_of(measurement("torch", protocol=MeasurementSettings(seed=8))))
    sentence = "the parity numbers of jax and torch are of different work: seed: 7 and 8"
    assert judge(numbers("jax"), other) == Judgement(state="unchecked", sentence=sentence)
    compiled = numbers("torch", key=key_of(measurement("torch", execution_mode="step.compiled")))
    assert judge(numbers("jax"), compiled).state == "passed"


# Files, and the gate of the report.


def test_file_gives_back_what_was_written(tmp_path: Path) -> None:
    values = GOOD | {"updates/fc.weight": np.linspace(0, 1, 20_000)}
    written = numbers("jax", values, environment={"git": {"commit": "abc"}})
    path = tmp_path / "a" / "parity-x.npz"
    write_parity(written, path)
    read = read_parity(path)
    assert read.metadata == written.metadata
    assert list(read.kept) == list(values)
    for name, value in written.kept.items():
        np.testing.assert_array_equal(read.kept[name], value, err_msg=name)
    with pytest.raises(RecordError, match="never overwritten|exists"):
        write_parity(written, path)
    path.write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(RecordError, match=r"parity-x\.npz: not a file of parity numbers"):
        read_parity(path)


def record(framework: Framework, parity: str | None = "good.npz", **changes: Any) -> Record:
    return bare_record(measurement(framework), parity=parity, **changes)


def of_torch(results: Results, name: str) -> Path:
    return results.records(measurement().cell, "torch") / name


@pytest.fixture
def results(tmp_path: Path) -> Results:
    results = Results(root=tmp_path)
    write_parity(numbers("jax"), results.records(measurement().cell, "jax") / "good.npz")
    write_parity(numbers("torch"), of_torch(results, "good.npz"))
    return results


def test_gate_judges_the_files_that_the_records_name_and_reads_each_once(results: Results) -> None:
    write_parity(numbers("torch", GOOD | {"loss": np.array(3.0)}), of_torch(results, "bad.npz"))
    gate = ParityGate(results)
    assert gate.judge(record("jax"), record("torch")).state == "passed"
    judgement = gate.judge(record("jax"), record("torch", "bad.npz"))
    assert judgement.state == "failed" and judgement.sentence.startswith("loss: relative error 3.3e-1")
    of_torch(results, "good.npz").unlink()
    assert gate.judge(record("jax"), record("torch")).state == "passed"
    for jax, torch, why in (
        ("good.npz", "good.npz", "good.npz"),
        (None, "bad.npz", "the record of jax has no parity numbers. Measure again"),
    ):
        judgement = ParityGate(results).judge(record("jax", jax), record("torch", torch))
        assert judgement.state == "unchecked" and why in judgement.sentence


def test_gate_takes_no_numbers_of_other_code(results: Results) -> None:
    code = {"harness": "aa", "runner": "bb"}
    write_parity(numbers("torch", environment={"code": code}), of_torch(results, "of_code.npz"))

    def judged(**environment: Any) -> Judgement:
        return ParityGate(results).judge(record("jax"), record("torch", "of_code.npz", environment=environment))

    assert judged(code=code).state == judged().state == "passed"  # a record from before does not say
    other = judged(code=code | {"runner": "cc"})
    assert other.state == "unchecked"
    assert other.sentence.startswith("the parity numbers of torch were made by other code than its record")
