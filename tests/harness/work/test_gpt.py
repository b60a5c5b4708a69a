"""A GPT's counts and initial weights, by hand."""

import numpy as np
import pytest

from harness.work.benchmarks.enwik8 import BENCHMARK, SIZES
from harness.work.gpt import GptSize

TINY = GptSize(layers=1, width=2, heads=1, positions=3, vocabulary=5)


def test_counts_of_a_tiny_one_by_hand() -> None:
    """Tables 5 x 2 and 3 x 2; 2 x 6, 2 x 2, 2 x 8 and 8 x 2 in the layer; three LayerNorms of 2."""
    assert TINY.parameter_count == 10 + 6 + (12 + 4 + 16 + 16) + 3 * 2
    # Of each of 3 tokens 48 in the layer and 10 in the head; 3 x 3 scores of 2 products, and as many with the values.
    assert TINY.multiply_adds == 3 * (48 + 10) + 2 * 9 * 2


@pytest.mark.parametrize(("name", "parameters", "gflop"), [("gpt_nano", 828_544, 0.34), ("gpt_mini", 10_818_432, 18.3)])
def test_counts_of_nanogpts_sizes(name: str, parameters: int, gflop: float) -> None:
    declared = BENCHMARK.model(name)
    assert declared.parameter_count == parameters
    assert declared.multiply_adds is not None and 6 * declared.multiply_adds / 1e9 == pytest.approx(gflop, rel=0.01)


def test_weights_are_normal_and_smaller_into_the_residual_stream() -> None:
    size = SIZES["gpt_nano"]
    std = {
        name: float(size.initial_weight(0, name, (256, 256)).std())
        for name in ("wte.weight", "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight", "h.3.mlp.c_proj.weight")
    }
    into_residual = 0.02 / np.sqrt(8)
    expected = [0.02, 0.02, into_residual, into_residual]
    assert list(std.values()) == pytest.approx(expected, rel=0.02)
    np.testing.assert_array_equal(size.initial_weight(0, "h.0.ln_1.weight", (3,)), np.ones(3, np.float32))
    wide = {"h.0.attn.c_attn.weight": (384, 128), "h.3.mlp.c_proj.weight": (128, 512), "wte.weight": (256, 128)}
    of_gate = [float(size.gate_weight(0, name, shape).std()) for name, shape in wide.items()]
    assert of_gate == pytest.approx([128**-0.5, 512**-0.5, 0.02], rel=0.02)
    np.testing.assert_array_equal(size.gate_weight(0, "ln_f.weight", (3,)), np.ones(3, np.float32))
    drawn = [
        size.initial_weight(seed, name, (4, 4))
        for seed, name in ((3, "wte.weight"), (4, "wte.weight"), (3, "wpe.weight"))
    ]
    assert len({one.tobytes() for one in drawn}) == 3
