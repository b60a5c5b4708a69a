"""From chart specifications to files, in several processes. Imports little, as each process imports it anew."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_PROCESSES = 8
FIGURES_PER_PROCESS = 10
"""Fewer are drawn sooner than another process has started."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    path: Path
    """Without its ending."""
    specification: dict[str, Any]


def draw(figure: Figure) -> str | None:
    """Why it could not be drawn or written; None where it was."""
    import vl_convert

    path = figure.path
    try:
        svg = svg_of(figure.specification)
        path.with_name(path.name + ".svg").write_text(svg, encoding="utf-8")
        path.with_name(path.name + ".pdf").write_bytes(vl_convert.svg_to_pdf(svg))
    except (ValueError, OSError) as error:
        return f"{path}: not drawn: {error}"
    return None


def svg_of(specification: dict[str, Any]) -> str:
    """Raises ValueError for a specification that Vega-Lite does not take."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(specification)
    return svg


@contextmanager
def drawn(figures: Sequence[Figure]) -> Iterator[Iterable[str | None]]:
    """Draws them in other processes, while the caller does something else. What it gives goes on with each figure that
    is done, and says why one was not drawn."""
    cores = len(os.sched_getaffinity(0))
    processes = min(cores, MOST_PROCESSES, -(-len(figures) // FIGURES_PER_PROCESS))
    if processes <= 1:
        yield map(draw, figures)
        return
    # Spawned: V8 and its threads do not survive a fork.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield _until_one_ends_its_process(pool.map(draw, figures, chunksize=4))


def _until_one_ends_its_process(problems: Iterator[str | None]) -> Iterator[str | None]:
    """A panic in the library that draws ends its process, and with it the pool."""
    try:
        yield from problems
    except BrokenProcessPool:
        yield "drawing a figure ended its process; the figures after it are not drawn"
