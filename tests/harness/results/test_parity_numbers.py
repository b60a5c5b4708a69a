"""What the parity gate keeps, compares and says; numbers by hand, no framework. And harness/results/parity_gate.py."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import RecordError
from harness.paths import Results
from harness.plan import Cell, Framework, Measurement, MeasurementSettings, Variant
from harness.results.parity import (
    FORWARD,
    GRADIENT,
    LARGE,
    UPDATES,
    WORST_TENSOR,
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
from harness.results.record import Check, Record
from tests.made.records import bare_record

SETTINGS = {"learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0.0, "epochs": 3}
GOOD: dict[str, Any] = {
    "outputs": np.array([[3.0, 4.0]]),  # norm 5
    "loss": np.array(2.0),
    "gradients/conv.weight": np.array([3.0, 0.0, 4.0]),
    "gradients/conv.bias": np.array([1e-6]),
    "updates/conv.weight": np.array([0.6, 0.8]),
}


def measurement(framework: Framework = "jax", **changes: Any) -> Measurement:
    variant = {"model": "cnn", "batch_size": 256, "precision": "tf32", "execution_mode": "step.jit"}
    of_variant = {name: changes.pop(name) for name in list(changes) if name in Variant.model_fields}
    devices = changes.pop("devices", 1)
    return Measurement(
        **{
            "framework": framework,
            "cell": Cell(gpu="any", benchmark="mnist", use_case=1, use_case_name="train", devices=devices),
            "variant": Variant.model_validate(variant | of_variant),
            "replicate": 2,
            "settings": SETTINGS,
            "protocol": MeasurementSettings(seed=7),
            "data": "sample",
            "quick": False,
        }
        | changes
    )


def numbers(framework: Framework, values: Mapping[str, Any] = GOOD, **metadata: Any) -> ParityNumbers:
    kept, shapes = condense(values)
    fields = {"key": key_of(measurement(framework)), "outcome": "ok", "shapes": shapes, "created_at": "now"}
    return ParityNumbers(metadata=ParityMetadata.model_validate(fields | metadata), kept=kept)


def changed(**values: Any) -> dict[str, Any]:
    return GOOD | {name.replace("__", "/").replace("_dot_", "."): value for name, value in values.items()}


# Keys.


@pytest.mark.parametrize(
    "change", [{"batch_size": 64}, {"precision": "bf16"}, {"replicate": 0}, {"quick": True}, {"cell": None}], ids=str
)
def test_key_is_the_program_and_not_its_size(change: dict[str, Any]) -> None:
    if change == {"cell": None}:  # another GPU and use case 1 for 2, of the same devices
        change = {"cell": Cell(gpu="a100", benchmark="mnist", use_case=9, use_case_name="train")}
    assert key_of(measurement(**change)) == key_of(measurement())
    assert key_of(measurement(**change)).digest == key_of(measurement()).digest
    assert key_of(measurement(**change)).seed == 7  # that of replicate 0, whose numbers serve all replicates


@pytest.mark.parametrize(
    "change",
    [
        {"model": "resnet18"},
        {"execution_mode": "scan.jit"},
        {"options": {"output": "full"}},
        {"protocol": MeasurementSettings(seed=8)},
        {"settings": SETTINGS | {"momentum": 0.8}},
        {"data": "real"},
        {"devices": 2},
        {"framework": "torch"},
    ],
    ids=str,
)
def test_key_has_everything_that_the_numbers_depend_on(change: dict[str, Any]) -> None:
    assert key_of(measurement(**change)).digest != key_of(measurement()).digest


def test_gate_has_a_batch_a_precision_and_rates_of_its_own() -> None:
    settings = SETTINGS | {"chunk_size": 32, "clip_norm": 60.0}
    gated = gate_measurement(measurement(settings=settings, devices=3))
    assert (gated.variant.batch_size, gated.variant.precision, gated.replicate) == (18, "fp32", 0)
    assert gated.settings == {
        "learning_rate": 1e-4,
        "momentum": 0.9,
        "weight_decay": 0.0,  # it stays off where it is off
        "epochs": 3,
        "chunk_size": 5,
        "clip_norm": 60.0,
    }
    assert gate_measurement(measurement()).variant.batch_size == 16
    of_training = {
        "weights": "pretrained",
        "schedule": "cosine",
        "label_smoothing": 0.1,
        "augmentation": "crop_and_flip",
    }
    assert key_of(gated) == key_of(measurement(settings=settings, devices=3))
    gated = gate_measurement(measurement(settings=SETTINGS | of_training))
    assert {name: gated.settings[name] for name in of_training} == of_training | {"weights": "drawn"}


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


def test_number_of_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="number 'grads/a': no such quantity; known: outputs, loss"):
        condense({"grads/a": np.ones(2)})


@pytest.mark.parametrize("where", ["one element", "one stride", "everywhere"])
def test_nothing_hides_in_a_sketch(where: str) -> None:
    """Its L2 norm is the tensor's, within four standard deviations of 2.2 % of the square."""
    tensor = np.zeros(100_000)
    if where == "one element":
        tensor[31_415] = 2.0
    elif where == "one stride":
        tensor[::4096] = 1.0
    else:
        tensor += np.linspace(-1, 1, tensor.size)
    ratio = np.sum(sketch("gradients/a", tensor) ** 2) / np.sum(tensor**2)
    # Of 25 elements, two may share a place: then the sum of their squares changes by 2 of 25.
    assert ratio == pytest.approx(1.0, abs={"one element": 1e-12, "one stride": 0.08, "everywhere": 0.088}[where])


def test_sketch_is_linear_and_the_same_for_ever() -> None:
    first, second = np.arange(20_000.0), np.arange(20_000.0)[::-1]
    difference = sketch("gradients/a", first) - sketch("gradients/a", second)
    np.testing.assert_allclose(difference, sketch("gradients/a", first - second), rtol=0, atol=1e-6)
    # Hand-made from RandomState(crc32(b"gradients/a")): element 0 goes to the first place drawn, with the first sign.
    import zlib

    draw = np.random.RandomState(zlib.crc32(b"gradients/a"))
    place = draw.randint(0, 4096, 20_000, dtype=np.uint16)[0]
    sign = draw.randint(0, 2, 20_000, dtype=np.int8)[0] * 2 - 1
    only_first = np.zeros(20_000)
    only_first[0] = 7.0
    assert sketch("gradients/a", only_first)[place] == 7.0 * sign


# Comparison.

OF_ALL_TENSORS = ["all tensors together", "median tensor"]


def of_single_tensors(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.name.partition("/")[2] not in OF_ALL_TENSORS]


def errors(ours: Mapping[str, Any], theirs: Mapping[str, Any] = GOOD) -> dict[str, float]:
    checks = of_single_tensors(compare(numbers("jax", ours), numbers("torch", theirs)))
    return {check.name: check.error for check in checks}


def test_error_is_that_of_the_tensor_over_the_larger_norm() -> None:
    assert errors(GOOD) == dict.fromkeys(GOOD, 0.0)
    found = errors(changed(outputs=np.array([[3.0, 4.5]])))
    assert found["outputs"] == pytest.approx(0.5 / np.sqrt(9 + 20.25))
    assert [name for name, error in found.items() if error] == ["outputs"]


def test_tensor_that_is_next_to_nothing_is_compared_on_the_scale_of_its_quantity() -> None:
    """The gradient's norm is 5, so the floor is 5e-3: 1e-6 against 2e-6 is 2e-4 of it, and no error of 100 %."""
    assert errors(changed(gradients__conv_dot_bias=np.array([2e-6])))["gradients/conv.bias"] == pytest.approx(2e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_never_agrees(value: float) -> None:
    broken = changed(loss=np.array(value))
    assert errors(broken)["loss"] == np.inf
    assert errors(broken, broken)["loss"] == np.inf


def test_checks_are_in_the_order_of_cause_and_then_of_the_model() -> None:
    shuffled = {name: GOOD[name] for name in reversed(GOOD)}
    checks = compare(numbers("jax", shuffled), numbers("torch"))
    assert [check.name for check in of_single_tensors(checks)] == list(GOOD)
    assert {check.name: check.tolerance for check in checks} == {
        "outputs": FORWARD,
        "loss": FORWARD,
        "gradients/conv.weight": WORST_TENSOR,
        "gradients/conv.bias": WORST_TENSOR,
        "gradients/all tensors together": GRADIENT,
        "gradients/median tensor": GRADIENT,
        "updates/conv.weight": WORST_TENSOR,
        "updates/all tensors together": UPDATES,
        "updates/median tensor": UPDATES,
    }


def test_gradients_have_a_whole_and_a_median_error() -> None:
    """Norms 5, 1 and 1; one of five is off by 0.3 in the first, 0.05 in the second, 0.01 in the third."""
    theirs = {"gradients/a": np.array([3.0, 4.0]), "gradients/b": np.array([1.0]), "gradients/c": np.array([1.0])}
    ours = {"gradients/a": np.array([3.0, 3.7]), "gradients/b": np.array([0.95]), "gradients/c": np.array([0.99])}
    found = {check.name: check.error for check in compare(numbers("jax", ours), numbers("torch", theirs))}
    assert found == pytest.approx(
        {
            "gradients/a": 0.3 / 5,
            "gradients/b": 0.05,
            "gradients/c": 0.01,
            "gradients/all tensors together": np.sqrt(0.3**2 + 0.05**2 + 0.01**2) / np.sqrt(27),
            "gradients/median tensor": 0.05,
        }
    )


def of_tensors(*errors: float) -> dict[str, np.ndarray]:
    """Gradients of norm 1 but for an error."""
    return {f"gradients/{number}": np.array([1.0, error]) for number, error in enumerate(errors)}


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        ((0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0), None),
        (
            (0.0, 0.12, 0.0, 0.0, 0.0, 0.0, 0.0),
            "gradient of 1: relative error 1.2e-1, allowed 1.0e-1; all 6 other tensors agree",
        ),
        (
            (0.03, 0.03, 0.03, 0.03),
            "gradient, all tensors together: relative error 3.0e-2, allowed 2.0e-2; "
            "no single one of 4 tensors differs by more than it may",
        ),
        (
            (0.0, 0.021, 0.021, 0.021, 0.0001),
            "gradient, median tensor: relative error 2.1e-2, allowed 2.0e-2; "
            "no single one of 5 tensors differs by more than it may",
        ),
    ],
)
def test_one_tensor_may_be_further_off_than_most(errors: tuple[float, ...], sentence: str | None) -> None:
    judgement = judge(numbers("jax", of_tensors(*errors)), numbers("torch", of_tensors(*(0.0 for _ in errors))))
    assert judgement.state == ("passed" if sentence is None else "failed")
    assert sentence is None or judgement.sentence == sentence


# Judgements.


def test_pair_that_agrees_passes_and_says_how_closely() -> None:
    judgement = judge(numbers("jax", changed(loss=np.array(2.00002))), numbers("torch"))
    assert judgement.state == "passed"
    assert (
        judgement.sentence == "5 tensors agree in fp32; nearest to its tolerance: loss, relative error 1.0e-05 of 5e-05"
    )


def test_sentence_names_the_first_tensor_that_differs_and_by_how_much() -> None:
    ours = changed(gradients__conv_dot_weight=np.array([3.0, 4.0, 0.0]), updates__conv_dot_weight=np.array([0.0, 1.0]))
    judgement = judge(numbers("jax", ours), numbers("torch"))
    assert judgement.state == "failed"
    assert judgement.sentence == (  # sqrt(32) / 5
        "gradient of conv.weight: relative error 1.1e+0, allowed 1.0e-1; 1 of the 4 other tensors differ too"
    )


def test_tensor_that_one_side_lacks_or_shapes_otherwise_is_named() -> None:
    without = {name: value for name, value in GOOD.items() if name != "gradients/conv.bias"}
    one_side = "the models have other parameters: only {} has conv.bias"
    assert judge(numbers("jax", without), numbers("torch")).sentence.startswith(one_side.format("PyTorch"))
    assert judge(numbers("jax"), numbers("torch", without)).sentence.startswith(one_side.format("JAX"))
    turned = judge(numbers("jax", changed(outputs=np.array([[3.0], [4.0]]))), numbers("torch"))
    assert turned.sentence.startswith("outputs: shape [2, 1] in jax, [1, 2] in torch; all 4 other tensors agree")
    assert turned.state == "failed"


def of_gradients(framework: Framework, **shapes: tuple[int, ...]) -> ParityNumbers:
    return numbers(framework, {f"gradients/{name.replace('__', '.')}": np.ones(of) for name, of in shapes.items()})


def test_another_name_shape_or_count_of_parameters_comes_before_any_number() -> None:
    """A dense layer of 4 x 3 has 12 weights, one of 5 x 3 has 15."""
    wrong_name = judge(of_gradients("jax", block__token1=(4, 3)), of_gradients("torch", block__tokens1=(4, 3)))
    assert wrong_name.sentence == (
        "the models have other parameters: only JAX has block.token1; only PyTorch has block.tokens1: did you mean "
        "block.tokens1?"
    )
    no_bias = judge(of_gradients("jax", fc=(4, 3)), of_gradients("torch", fc=(4, 3), bias=(4,)))
    assert no_bias.sentence == (
        "the models have other parameters: only PyTorch has bias (JAX has 12 parameters, PyTorch 16)"
    )
    wider = judge(of_gradients("jax", fc=(4, 3)), of_gradients("torch", fc=(5, 3)))
    assert wider.sentence == (
        "the parameters have other shapes: fc is [4, 3] in JAX and [5, 3] in PyTorch (JAX has 12 parameters, "
        "PyTorch 15)"
    )
    assert {one.state for one in (wrong_name, no_bias, wider)} == {"failed"}


def test_program_that_broke_has_failed() -> None:
    broken = numbers("torch", {}, outcome="failed", reason="KeyError: 'conv9'")
    judgement = judge(numbers("jax"), broken)
    assert judgement.state == "failed"
    assert judgement.sentence == "torch has no parity numbers: failed: KeyError: 'conv9'"


def test_numbers_of_different_work_are_not_compared() -> None:
    other = numbers("torch", key=key_of(measurement("torch", protocol=MeasurementSettings(seed=8))))
    judgement = judge(numbers("jax"), other)
    assert judgement.state == "unchecked"
    assert judgement.sentence == "the parity numbers of jax and torch are of different work: seed: 7 and 8"
    compiled = numbers("torch", key=key_of(measurement("torch", execution_mode="step.compiled")))
    assert judge(numbers("jax"), compiled).state == "passed"


def test_no_numbers_at_all_are_no_proof() -> None:
    assert judge(numbers("jax", {}), numbers("torch", {})).state == "unchecked"


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


def test_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "parity-x.npz"
    path.write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(RecordError, match=r"parity-x\.npz: not a file of parity numbers"):
        read_parity(path)


KEPT = "number 'gradients/conv.weight' is kept as [2048]; expected [4096]"


@pytest.mark.parametrize(
    ("metadata", "shapes", "numbers", "complaint"),
    [
        ({"schema_version": 2, "what_this_code_does_not_know": 1}, {}, {}, "schema version 2; this code reads 1"),
        ({}, {"curvature/a": [1]}, {"curvature/a": 1}, "number 'curvature/a': no such quantity; known: outputs, loss"),
        ({}, {"gradients/conv.weight": [200, 200]}, {"gradients/conv.weight": 2048}, KEPT),
        ({}, {"loss": None}, {}, "number 'loss' has a shape and no values, or values and no shape"),
    ],
)
def test_file_of_other_numbers_leaves_the_pair_unchecked(
    results: Results, metadata: dict[str, Any], shapes: dict[str, Any], numbers: dict[str, int], complaint: str
) -> None:
    path = results.records(measurement().cell, "torch") / "good.npz"
    with np.load(path) as arrays:
        content = dict(arrays)
    metadata = json.loads(str(content["metadata"])) | metadata
    metadata["shapes"] = {name: shape for name, shape in (metadata["shapes"] | shapes).items() if shape is not None}
    content |= {f"number:{name}": np.zeros(size) for name, size in numbers.items()}
    np.savez(path, **content | {"metadata": np.array(json.dumps(metadata))})
    judgement = ParityGate(results).judge(record("jax", "good.npz"), record("torch", "good.npz"))
    assert judgement.state == "unchecked"
    assert judgement.sentence.startswith(f"{path}: not a file of parity numbers: {complaint}")


def record(framework: Framework, parity: str | None, use_case_name: str = "train") -> Record:
    measured = measurement(framework)
    measured = measured.model_copy(update={"cell": measured.cell.model_copy(update={"use_case_name": use_case_name})})
    return bare_record(measured, parity=parity)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    results = Results(root=tmp_path)
    write_parity(numbers("jax"), results.records(measurement().cell, "jax") / "good.npz")
    write_parity(numbers("torch"), results.records(measurement().cell, "torch") / "good.npz")
    write_parity(
        numbers("torch", changed(loss=np.array(3.0))), results.records(measurement().cell, "torch") / "bad.npz"
    )
    return results


def test_gate_judges_the_files_that_the_records_name(results: Results) -> None:
    gate = ParityGate(results)
    assert gate.judge(record("jax", "good.npz"), record("torch", "good.npz")).state == "passed"
    judgement = gate.judge(record("jax", "good.npz"), record("torch", "bad.npz"))
    assert judgement.state == "failed"
    assert judgement.sentence.startswith("loss: relative error 3.3e-1")


def test_gate_takes_no_numbers_of_other_code(results: Results) -> None:
    def of_code(one: Record, code: dict[str, str] | None) -> Record:
        return one.model_copy(update={"environment": {} if code is None else {"code": code}})

    path = results.records(measurement().cell, "torch") / "good.npz"
    path.unlink()
    code = {"harness": "aa", "runner": "bb"}
    write_parity(numbers("torch", environment={"code": code}), path)
    jax, torch = record("jax", "good.npz"), record("torch", "good.npz")
    for own in (code, None):  # a record from before does not say
        assert ParityGate(results).judge(jax, of_code(torch, own)).state == "passed"
    judgement = ParityGate(results).judge(jax, of_code(torch, code | {"runner": "cc"}))
    assert judgement.state == "unchecked"
    assert judgement.sentence.startswith("the parity numbers of torch were made by other code than its record")


def test_gate_reads_each_file_once(results: Results) -> None:
    gate = ParityGate(results)
    pair = record("jax", "good.npz"), record("torch", "good.npz")
    assert gate.judge(*pair).state == "passed"
    for path in results.records().rglob("good.npz"):
        path.unlink()
    assert gate.judge(*pair).state == "passed"
    assert ParityGate(results).judge(*pair).state == "unchecked"


def test_gate_says_why_a_pair_is_unchecked(results: Results) -> None:
    gate = ParityGate(results)
    old = gate.judge(record("jax", None), record("torch", "good.npz"))
    assert old.state == "unchecked"
    assert "the record of jax has no parity numbers. Measure again" in old.sentence
    missing = gate.judge(record("jax", "nowhere.npz"), record("torch", "good.npz"))
    assert missing.state == "unchecked"
    assert "nowhere.npz" in missing.sentence
