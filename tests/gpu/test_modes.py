"""Every declared mode on a real GPU, in each precision: it is built, right, what its name says, and stays finite."""

import pytest

from tests.gpu.cases import Case, all_cases, left_out
from tests.gpu.group import Answers


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_mode(case: Case, answers: Answers) -> None:
    if (why := left_out(case)) is not None:
        pytest.skip(why)
    answer = answers(case)
    print(f"{case.name}: {answer['outcome']} in {answer['seconds']} s: {answer['words']}")
    if answer["outcome"] == "refused" and "needs an NVIDIA GPU" not in answer["words"]:
        pytest.skip(f"refused here: {answer['words']}")  # an old card, one that is too small, or a single device
    assert answer["outcome"] == "ok", answer["words"]
