"""The fake's devices are those of the table of cards, as many as are asked for, and shown as CUDA shows them."""

import pytest

from harness.work.cards import CARDS
from tests.fake_gpu.conftest import Started

UUIDS = [f"face0000-0000-0000-0000-00000000000{place}" for place in (1, 2, 3)]


def test_a_device_is_the_card_of_the_table(ask: Started) -> None:
    card = "h100"
    one = CARDS[card]
    assert ask("tests.fake_gpu.devices", name=card) == [
        {
            "name": one.device_name,
            "capability": list(one.capability),
            "multiprocessors": one.multiprocessors,
            "shared_bytes": one.generation.shared_bytes_per_block,
            "uuid": UUIDS[0],
            "bus": 1,
            "is_there": True,
        }
    ]


@pytest.mark.parametrize(
    ("shown", "places"),
    [
        (f"GPU-{UUIDS[1]},GPU-{UUIDS[0]}", [1, 0]),
        pytest.param("2,7,0", [2], marks=pytest.mark.nightly),  # what stands behind an unknown one is not shown
    ],
)
def test_devices_are_shown_by_index_and_by_uuid(shown: str, places: list[int], ask: Started) -> None:
    found = ask("tests.fake_gpu.devices", devices=3, CUDA_VISIBLE_DEVICES=shown)
    assert [(one["uuid"], one["bus"]) for one in found] == [(UUIDS[place], place + 1) for place in places]
    assert all(one["is_there"] for one in found)
