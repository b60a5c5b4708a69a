"""A share of the campaign, always the same; `make test-inputs` runs all of it."""

import pytest

from tests.bad_inputs.__main__ import KINDS, SEED
from tests.bad_inputs.campaign import run

SHARES = {"yaml": 0.1, "command lines": 0.1, "scripts": 0.1, "records": 0.08, "jobs": 0.1, "data and parity": 0.3}


@pytest.mark.parametrize("kind", KINDS)
def test_every_odd_input_is_taken_or_refused_in_words(kind: str) -> None:
    counts, wrong = run({kind: KINDS[kind]}, seed=SEED, share=SHARES[kind])
    assert counts[kind] > 10
    assert not wrong, "\n".join(wrong)
