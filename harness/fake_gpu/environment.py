"""The variables by which a process finds the fake CUDA, and on it a card of harness/work/cards.py."""

import os
from dataclasses import fields
from pathlib import Path

from harness.fake_gpu.build import CUDA
from harness.work.cards import Card

CARD = "FAKE_CUDA_CARD"
"""Set where a fake is: no record is made there."""
DEVICES = "FAKE_CUDA_DEVICES"


def environment(folder: Path, card: Card, devices: int = 1) -> dict[str, str]:
    """To be put over the variables of a process that is started.

    Args:
        folder: what `build` returned.
        devices: how many of this card the machine has.
    """
    library, before = str(folder / CUDA), os.environ.get("LD_PRELOAD", "")
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    caches = folder / "caches" / card.name
    return {
        CARD: card_words(card),
        DEVICES: str(devices),
        "LD_PRELOAD": f"{library}:{before}" if before and library not in before else library,
        "LD_LIBRARY_PATH": f"{folder}:{libraries}" if libraries else str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        # What is compiled depends on the card, and stays from run to run.
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }


def card_words(card: Card) -> str:
    """All its numbers: card.cpp reads them."""
    numbers = {field.name: getattr(card.generation, field.name) for field in fields(card.generation)}
    numbers |= {field.name: getattr(card, field.name) for field in fields(card)}
    numbers |= {"major": card.capability[0], "minor": card.capability[1]}
    return ";".join(f"{name}={value}" for name, value in numbers.items())
