"""A list of dicts with mostly the same keys, such as a GPU's readings, a tenth as large in memory."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, overload

MISSING = object()


class Columns(Sequence[Mapping[str, Any]]):
    """A list of dicts with mostly the same keys, kept by key. Numbers come back as floats."""

    __slots__ = ("_columns", "_count")

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._count = len(rows)
        keys = dict.fromkeys(key for row in rows for key in row)
        self._columns = {key: _column([row.get(key, MISSING) for row in rows]) for key in keys}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        place = range(self._count)[index]
        found = ((key, column[place]) for key, column in self._columns.items())
        return {key: value for key, value in found if value is not MISSING}

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self[place] for place in range(self._count))

    def column(self, key: str) -> Sequence[Any]:
        """The values of the rows that have it."""
        column = self._columns.get(key, ())
        return [value for value in column if value is not MISSING] if isinstance(column, tuple) else column

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]


def column_of(rows: Sequence[Mapping[str, Any]], key: str) -> Sequence[Any]:
    """The values of the rows that have it."""
    return rows.column(key) if isinstance(rows, Columns) else [row[key] for row in rows if key in row]


def _column(values: list[Any]) -> Sequence[Any]:
    if not all(type(value) in (int, float) for value in values):
        return tuple(values)
    return _constant(values[0], len(values)) if min(values) == max(values) else array("d", values)


@lru_cache(maxsize=4096)
def _constant(value: float, count: int) -> Sequence[float]:
    return array("d", [value] * count)
