"""Python's collector of cycles, off while many objects are read that are all kept."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """The collector walks over all of them again and again and finds nothing. With thousands of records or plans that
    is most of the time of reading."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
