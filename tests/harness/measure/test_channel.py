"""Events of any length over lines that srun mixes and would cut."""

import os
import random
from pathlib import Path
from typing import Any

from harness.measure.channel import Channel, Event, Listener

LONGEST_LINE = 1024
"""Bytes, of which srun cuts a line."""


def lines_of(rank: int, contents: list[dict[str, Any]], folder: Path) -> list[str]:
    """As the rank writes them."""
    path = folder / f"rank{rank}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    channel = Channel(descriptor, rank)
    for content in contents:
        channel.environment(content)
    os.close(descriptor)
    return path.read_text().splitlines(keepends=True)


def heard(lines: list[str]) -> list[tuple[int, Event]]:
    listener = Listener()
    return [told for line in lines if (told := listener.take(line)) is not None]


def test_a_result_of_500_kb_among_the_events_of_other_ranks(tmp_path: Path) -> None:
    """Each rank's lines stay in their order; how they are mixed is chance."""
    draw = random.Random(0)
    big = [{"times_s": [draw.random() for _ in range(25_000)], "note": "µs\n"} for _ in range(3)]
    contents = [[{"rank": rank}, big[rank], {}] for rank in range(3)]
    of_ranks = [lines_of(rank, contents[rank], tmp_path) for rank in range(3)]
    assert sum(map(len, of_ranks[0])) > 500_000
    assert max(len(line) for lines in of_ranks for line in lines) <= LONGEST_LINE
    order = [rank for rank, lines in enumerate(of_ranks) for _ in lines]
    draw.shuffle(order)
    waiting = [iter(lines) for lines in of_ranks]
    told = heard([next(waiting[rank]) for rank in order])
    for rank in range(3):
        events = [event for of, event in told if of == rank]
        assert [event["content"] for event in events] == contents[rank]


def test_what_is_no_event_is_passed_over_and_so_is_an_event_without_one_of_its_pieces(tmp_path: Path) -> None:
    contents = [{"text": "x" * 3000}, {"n": 2}]
    lines = lines_of(0, contents, tmp_path)
    assert len(lines) == 5
    noise = ["", "\n", "slurm prolog: hello\n", "@event\n", "@event 0\n", "@event x 1/1 {}\n"]
    broken = ["@event 0 1/1 {half\n", "@event 0 2/2 {}\n"]
    told = heard([*broken, *(word for line in lines for word in (line, *noise)), *broken])
    assert [event["content"] for _, event in told] == contents
    for missing in range(4):
        told = heard(lines[:missing] + lines[missing + 1 :])
        assert [event["content"] for _, event in told] == contents[1:]
