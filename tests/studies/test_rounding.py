"""What rounding alone does to gradients: tf32 imitated, the record, and the tolerances that it gives reasons for."""

import json

import numpy as np
import pytest

from harness.paths import REPOSITORY
from harness.work.closeness import TOLERANCES, WITH_BATCH_NORM

torch = pytest.importorskip("torch")

from studies import rounding  # noqa: E402  it imports torch

CASES = json.loads(rounding.RECORD.read_text())["cases"]


def test_tf32_keeps_ten_bits_of_mantissa_to_nearest_and_ties_to_even() -> None:
    step = 2.0**-10
    given = [1.0, 1 + 0.4 * step, 1 + 0.5 * step, 1 + 1.5 * step, 1 + 0.6 * step, -1 - 0.6 * step, 3.0, 0.0, 2.0**100]
    expected = [1.0, 1.0, 1.0, 1 + 2 * step, 1 + step, -1 - step, 3.0, 0.0, 2.0**100]
    assert rounding.to_tf32(torch.tensor(given)).tolist() == expected


def test_what_needs_no_rounding_is_the_ordinary_product() -> None:
    """Small whole numbers: the imitation must be exact, forward and backward, with and without padding."""
    draw = torch.Generator().manual_seed(0)

    def whole(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=draw).float().requires_grad_()

    linear = (whole(3, 5), whole(2, 5), whole(2))
    convolution = (whole(2, 3, 6, 6), whole(4, 3, 3, 3), whole(4))
    calls = [
        (torch.nn.functional.linear, linear, ()),
        (torch.nn.functional.conv2d, convolution, (1, 0)),
        (torch.nn.functional.conv2d, convolution, (2, 1)),
    ]
    for function, operands, how in calls:
        plain = function(*operands, *how)
        weights = torch.randint(-2, 3, plain.shape, generator=draw).float()
        expected = torch.autograd.grad((plain * weights).sum(), operands)
        with rounding.Tf32():
            rounded = function(*operands, *how)
        assert torch.equal(rounded, plain)
        for ours, theirs in zip(torch.autograd.grad((rounded * weights).sum(), operands), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_what_rounds_is_rounded() -> None:
    value = torch.tensor([[1 + 2.0**-12]])
    one, none = torch.ones(1, 1), torch.zeros(1)
    assert torch.nn.functional.linear(value, one, none).item() != 1.0
    with rounding.Tf32():
        assert torch.nn.functional.linear(value, one, none).item() == 1.0
        assert torch.nn.functional.conv2d(value[None, None], one[None, None], none, 1, 0).item() == 1.0


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in list(case.values())[:4]))
def test_tolerances_are_twice_what_rounding_does(case: dict[str, float]) -> None:
    """Of a batch of one only the largest: the samples of a batch have one median together."""
    tolerance = (WITH_BATCH_NORM if case["model"] == "resnet18" else TOLERANCES)[case["precision"]]  # type: ignore[index]
    assert 2 * case["median"] < tolerance.typical
    assert 2 * case["largest"] < tolerance.worst


def test_the_docs_show_the_published_table() -> None:
    text = (REPOSITORY / "docs" / "studies" / "rounding.md").read_text()
    assert rounding.table(json.loads(rounding.RECORD.read_text())) in text


def test_a_short_run_agrees_with_the_published_one() -> None:
    found = rounding.errors("synthetic", "linear", 32, 3)
    published = {case["precision"]: case["median"] for case in CASES if case["model"] == "linear"}
    for precision, errors in found.items():
        assert np.median(errors) == pytest.approx(published[precision], rel=0.3)
