"""Records as small in memory as a report of 100,000 needs them: what many have in common is there once, and samples are
arrays. What a record says stays the same."""

import pickle
from array import array
from typing import Any

from pydantic import BaseModel

from harness.results.columns import Columns
from harness.results.record import Record

SHARED_OF_MEASUREMENT = ("cell", "settings", "sizes", "protocol", "variant")


class Compactor:
    """Of the records of one reading."""

    def __init__(self) -> None:
        self._shared: dict[bytes, Any] = {}
        self._sets: dict[frozenset[str], set[str]] = {}

    def compact(self, record: Record) -> Record:
        """The same record, changed in place."""
        measurement, result = vars(record.measurement), record.result
        for name in SHARED_OF_MEASUREMENT:
            measurement[name] = self._one(measurement[name])
        for name, value in record.environment.items():
            record.environment[name] = self._one(value)
        vars(record)["data"] = self._one(record.data)
        for part in (result, *record.ranks) if result else ():
            for owner in (part, getattr(part, "blocks", None), getattr(part, "latency", None)):
                for name, value in vars(owner).items() if owner else ():
                    if isinstance(value, list) and value and all(type(one) is float for one in value):
                        vars(owner)[name] = array("d", value)
        if result:
            vars(result)["gpu_states"] = Columns(result.gpu_states)
        self._share_sets(record)
        return record

    def _one(self, value: Any) -> Any:
        """What equals it, of all that were given."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return self._shared.setdefault(pickle.dumps(value), value)

    def _share_sets(self, model: BaseModel) -> None:
        """pydantic notes of each model the names of its fields that were given."""
        names = model.model_fields_set
        object.__setattr__(model, "__pydantic_fields_set__", self._sets.setdefault(frozenset(names), names))
        for value in vars(model).values():
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, BaseModel):
                    self._share_sets(one)
