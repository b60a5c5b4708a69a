"""GPT-2 with its padded vocabulary in both frameworks, in small."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from harness.plan import Framework
from jax_runner.task import NextToken as JaxNextToken
from tests.made.numbers import TOLERANCE, require_same
from tests.made.sessions import build, make_session
from torch_runner.task import NextToken, to_device

SAMPLES = 2
ADAMW = {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1, "max_gradient_norm": 0.1}


def session_of(framework: Framework, use_case: str, **arguments: Any) -> Any:
    return make_session(framework, use_case, benchmark="fineweb", model="gpt2", batch_size=SAMPLES, **arguments)


@pytest.mark.nightly  # of a smaller vocabulary: test_gpt.py
def test_training_is_the_same_in_float64() -> None:
    """Logits, loss, gradients, moments and five steps of AdamW with clipping."""
    ours = build(session_of("jax", "train", precision="fp64", **ADAMW)).parity()
    theirs = build(session_of("torch", "train", precision="fp64", **ADAMW)).parity()
    assert theirs["outputs"].shape == (SAMPLES, 64, 50_304)
    require_same(ours, theirs)
    losses = theirs["losses_of_steps"]
    assert losses[0] == pytest.approx(np.log(50_304), rel=0.01) and losses[-1] < losses[0]


@pytest.mark.parametrize(("framework", "mode"), [("jax", "ghost.jit"), ("torch", "ghost.eager")])
def test_sums_that_ghost_norms_clip_are_those_of_a_loop(framework: Framework, mode: str) -> None:
    session = session_of(
        framework,
        "per_sample_gradients",
        execution_mode=mode,
        options={"output": "clipped_sum"},
        precision="fp64",
        clip_norm=0.5,
    )
    program = build(session)
    assert "wte: equal_tokens" in program.details["choices"]
    assert [check.error < TOLERANCE for check in program.check()] == [True] * 3


@pytest.mark.nightly
def test_evaluation_takes_as_many_samples_at_once_as_their_logits_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same means in batches of 3 as in one."""
    from harness.work.use_cases import train

    session = session_of("torch", "train")
    assert session.outputs_of_sample == 64 * 50_304
    whole = build(session).evaluate()  # type: ignore[attr-defined]
    monkeypatch.setattr(train, "EVALUATION_OUTPUTS", 3 * 64 * 50_304 + 1)
    assert train.evaluation_batch(session.dataset.test, session.outputs_of_sample) == 3
    assert build(session).evaluate()[:2] == pytest.approx(whole[:2], rel=1e-6)  # type: ignore[attr-defined]


def test_tokens_of_16_bits_have_no_sign() -> None:
    tokens = np.array([[0, 32_767, 32_768, 50_303, 65_535]], np.uint16)
    placed = to_device({"tokens": tokens}, torch.device("cpu"))
    assert placed["tokens"].element_size() == 2
    task, of_jax = NextToken(), JaxNextToken()
    assert task.inputs(placed).tolist() == of_jax.inputs({"tokens": jax.numpy.asarray(tokens)}).tolist()
    assert task.targets(placed).tolist() == [[32_767, 32_768, 50_303, 65_535]]
    assert of_jax.targets({"tokens": jax.numpy.asarray(tokens)}).tolist() == task.targets(placed).tolist()
