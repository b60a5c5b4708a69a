"""The types of those entries of a record's environment that a report relies on. All others are left as they are."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

Number = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)] | None
Count = Annotated[int, Field(ge=0, le=10**6)]

TYPES: dict[Any, str] = {
    dict[str, Any] | None: "gpu framework cpu process git slurm lock pairing",
    dict[str, str] | None: "packages variables variables_unset code",
    str | None: (
        "python platform node scheduler installed_sha256 gpu.name gpu.uuid gpu.driver_version gpu.cuda_driver_version "
        "framework.name framework.version framework.platform framework.device framework.device_uuid cpu.model "
        "git.commit slurm.job_id lock.name lock.file lock.sha256 "
        "pairing.kind pairing.pair pairing.partner pairing.turns"
    ),
    bool | None: "git.clean",
    Number: ("gpu.memory_total_bytes gpu.max_sm_clock_mhz cpu.quota process.threads process.quota pairing.active_s"),
    list[Number]: "load_average",
    list[int] | None: "cpu.affinity process.affinity",
    list[str] | None: "gpu.names",
    list[str | None] | None: "gpu.uuids",
    list[str]: "lock.others",
    Count | None: "slurm.restart_count",
    Count: "lock.packages lock.matching",
}
"""Entries by their type, as `section.entry`. A lock has both of its counts."""
REQUIRED = ("lock.packages", "lock.matching")
"""Entries that their section must have."""
CHECKS = {place: TypeAdapter[Any](kind) for kind, places in TYPES.items() for place in places.split()}


def why_odd(environment: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the first entry of another type, or None."""
    for place, adapter in CHECKS.items():
        section, _, name = place.rpartition(".")
        entries = environment.get(section) if section else environment
        if entries is None or (name not in entries and place not in REQUIRED):
            continue
        try:
            adapter.validate_python(entries.get(name), strict=True)
        except ValidationError as error:
            return f"environment.{place}: {error.errors()[0]['msg']}"
    return None
