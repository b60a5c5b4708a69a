"""A card's memory is as large as the table of cards says, and PyTorch itself says what does not fit."""

from collections.abc import Mapping
from typing import Any

import pytest

from harness.plan import Precision
from harness.work.cards import CARDS
from tests.fake_gpu.ahead import facts, measurement
from tests.fake_gpu.conftest import Started


def test_a_card_has_the_memory_of_the_table(ask: Started) -> None:
    card = "rtx3080"
    assert ask("tests.fake_gpu.memory", name=card) == {
        "total": CARDS[card].memory_bytes,
        "all but 64 MiB": True,
        "64 MiB too much": False,
        "64 MiB too much in a capture": False,
        "a little in a capture": True,
        "free at the end": True,
    }


ADAMW: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 1e-3, "beta2": 0.99, "weight_decay": 0.1}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "precision", "batch_size", "settings", "too_small", "large_enough"),
    [
        # 16 x 1,024 positions x 50,257 words of logits are 3.3 GB in float32, and their gradient as much, over 7.4 GB.
        ("fineweb/gpt2", "bf16", 16, ADAMW, "rtx3080", "a5000"),
        # Activations of a ResNet-50 are 75 MB an image of 224 pixels in float32.
        ("imagenet100/resnet50", "fp32", 128, {}, "rtx3080", "a5000"),
    ],
)
def test_what_does_not_fit_says_so(
    model: str,
    precision: Precision,
    batch_size: int,
    settings: dict[str, Any],
    too_small: str,
    large_enough: str,
    own_variables: Mapping[str, str],
) -> None:
    asked = [measurement("train", model, "step.eager", precision, batch_size=batch_size, **settings)]
    (small,), (large,) = (facts(card, asked, own_variables) for card in (too_small, large_enough))
    assert small.outcome == "out_of_memory"
    assert small.reason and small.reason.startswith("CUDA out of memory. Tried to allocate")
    assert large.outcome == "ok"
    assert large.peak_bytes and CARDS[too_small].memory_bytes < large.peak_bytes < CARDS[large_enough].memory_bytes
