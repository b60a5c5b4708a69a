"""Text as windows: no token is lost, none is predicted twice."""

import numpy as np
import pytest

from harness.work.datasets import Dataset
from harness.work.windows import cut_to, tokens_of, windows

TEXT = np.arange(14, dtype=np.uint8)


def test_the_last_token_of_a_window_is_the_first_of_the_next_and_shorter_windows_are_those_of_the_text() -> None:
    assert windows(TEXT, 4).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [8, 9, 10, 11, 12]]
    assert windows(TEXT, 4, stride=6).tolist() == [[0, 1, 2, 3, 4], [6, 7, 8, 9, 10]]
    stored = Dataset(train={"tokens": windows(TEXT, 4)}, test={"tokens": windows(TEXT[:5], 4)}, constants={})
    cut = cut_to(stored, 2)
    np.testing.assert_array_equal(cut.train["tokens"], windows(TEXT[:13], 2))
    assert cut.test["tokens"].tolist() == [[0, 1, 2], [2, 3, 4]]
    assert (tokens_of(stored), tokens_of(cut)) == ({"tokens": 4.0}, {"tokens": 2.0})
    assert cut_to(stored, 4).train["tokens"] is stored.train["tokens"]
    with pytest.raises(ValueError, match="windows of 4 tokens cannot be cut into windows of 3"):
        cut_to(stored, 3)
