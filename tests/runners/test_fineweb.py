"""GPT-2 with its padded vocabulary in both frameworks, in small."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from harness.plan import Framework
from jax_runner.task import NextToken as JaxNextToken
from tests.made.numbers import TOLERANCE
from tests.made.sessions import build, make_session
from torch_runner.task import NextToken, to_device


@pytest.mark.parametrize(("framework", "mode"), [("jax", "ghost.jit"), ("torch", "ghost.eager")])
def test_sums_that_ghost_norms_clip_are_those_of_a_loop(framework: Framework, mode: str) -> None:
    names: dict[str, Any] = {"benchmark": "fineweb", "model": "gpt2", "execution_mode": mode, "precision": "fp64"}
    asked = {"options": {"output": "clipped_sum"}, "clip_norm": 0.5, "batch_size": 2}
    program = build(make_session(framework, "per_sample_gradients", **names, **asked))
    assert "wte: equal_tokens" in program.details["choices"]
    assert [check.error < TOLERANCE for check in program.check()] == [True] * 3


def test_tokens_of_16_bits_have_no_sign() -> None:
    tokens = np.array([[0, 32_767, 32_768, 50_303, 65_535]], np.uint16)
    placed = to_device({"tokens": tokens}, torch.device("cpu"))
    assert placed["tokens"].element_size() == 2
    task, of_jax = NextToken(), JaxNextToken()
    assert task.inputs(placed).tolist() == of_jax.inputs({"tokens": jax.numpy.asarray(tokens)}).tolist()
    assert task.targets(placed).tolist() == [[32_767, 32_768, 50_303, 65_535]]
    assert of_jax.targets({"tokens": jax.numpy.asarray(tokens)}).tolist() == task.targets(placed).tolist()
