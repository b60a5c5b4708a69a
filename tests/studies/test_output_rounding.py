"""What rounding alone does to outputs: tf32 imitated operator by operator, the record, and its tolerances."""

import json

import pytest

from harness.paths import REPOSITORY
from harness.work.closeness import OUTPUTS

torch = pytest.importorskip("torch")

from studies import output_rounding  # noqa: E402  it imports torch

CASES = json.loads(output_rounding.RECORD.read_text())["cases"]


def test_the_operands_of_every_product_are_rounded() -> None:
    """1 + 2^-12 is 1 in tf32, so each of these gives the product of ones."""
    value, one = torch.full((1, 1), 1 + 2.0**-12), torch.ones(1, 1)
    image, kernel = value[None, None], one[None, None]
    products = [
        lambda: value @ one,
        lambda: torch.nn.functional.linear(one, value),
        lambda: torch.addmm(torch.zeros(1, 1), value, one),
        lambda: torch.bmm(one[None], value[None]),
        lambda: torch.nn.functional.conv2d(image, kernel),
        lambda: torch.nn.functional.scaled_dot_product_attention(kernel, kernel, image),
    ]
    for product in products:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert product().item() == 1 + 2.0**-12
                with output_rounding.Tf32Operators():
                    assert product().item() == 1.0


def test_a_sum_is_not_rounded() -> None:
    value = torch.full((1, 1), 1 + 2.0**-12)
    with torch.no_grad(), output_rounding.Tf32Operators():
        assert torch.addmm(value, torch.zeros(1, 1), value).item() == 1 + 2.0**-12


def test_an_unknown_product_is_refused() -> None:
    values = torch.ones(2, 2)
    with torch.no_grad(), output_rounding.Tf32Operators(), pytest.raises(NotImplementedError, match="mv"):
        torch.addmv(values[0], values, values[0])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['benchmark']}-{case['model']}-{case['precision']}")
def test_tolerances_are_twice_what_rounding_does(case: dict[str, float]) -> None:
    tolerance = OUTPUTS[case["precision"]]  # type: ignore[index]
    assert 2 * case["all"] < tolerance.typical
    assert 2 * case["worst_sample"] < tolerance.worst


def test_the_docs_show_the_published_table() -> None:
    text = (REPOSITORY / "docs" / "studies" / "output_rounding.md").read_text()
    assert output_rounding.table(json.loads(output_rounding.RECORD.read_text())) in text


def test_a_short_run_agrees_with_the_published_one() -> None:
    published = {case["precision"]: case for case in CASES if case["benchmark"] == "mnist"}
    for precision in output_rounding.PRECISIONS:
        whole, worst = output_rounding.errors("mnist", "cnn", {}, precision)
        assert whole == pytest.approx(published[precision]["all"], rel=0.3)
        assert worst == pytest.approx(published[precision]["worst_sample"], rel=0.5)
