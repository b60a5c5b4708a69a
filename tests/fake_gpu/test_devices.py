"""The fake's devices are those of the table of cards, as many as are asked for, and shown as CUDA shows them."""

import pytest

from harness.work.cards import CARDS
from tests.fake_gpu.conftest import Started

UUIDS = [f"face0000-0000-0000-0000-00000000000{place}" for place in (1, 2, 3)]
BY_DAY = ("h100",)


@pytest.mark.parametrize(
    "card", [pytest.param(card, marks=() if card in BY_DAY else pytest.mark.nightly) for card in CARDS]
)
def test_a_device_is_the_card_of_the_table(card: str, ask: Started) -> None:
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
        pytest.param(None, [0, 1, 2], marks=pytest.mark.nightly),
        pytest.param("2,0", [2, 0], marks=pytest.mark.nightly),
        (f"GPU-{UUIDS[1]},GPU-{UUIDS[0]}", [1, 0]),
        pytest.param(f"GPU-{UUIDS[1]},0", [1], marks=pytest.mark.nightly),  # one kind of name, not both
        pytest.param("1,7,0", [1], marks=pytest.mark.nightly),  # what stands behind an unknown one is not shown
        pytest.param("", [], marks=pytest.mark.nightly),
    ],
)
def test_devices_are_shown_by_index_and_by_uuid(shown: str | None, places: list[int], ask: Started) -> None:
    variables = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    found = ask("tests.fake_gpu.devices", devices=3, **variables)
    assert [(one["uuid"], one["bus"]) for one in found] == [(UUIDS[place], place + 1) for place in places]
    assert all(one["is_there"] for one in found)
