"""What a record's environment holds, as far as a report relies on it. Whatever else stands there is left as it is."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Number = Annotated[float, Field(ge=0, le=1e18)]


class Known(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False, strict=True)


class Gpu(Known):
    name: str | None = None
    uuid: str | None = None
    uuids: list[str | None] = []
    names: list[str] | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    memory_total_bytes: Number | None = None
    max_sm_clock_mhz: Number | None = None


class Framework(Known):
    name: str | None = None
    version: str | None = None
    platform: str | None = None
    device: str | None = None
    device_uuid: str | None = None


class Cpu(Known):
    model: str | None = None
    affinity: list[int] | None = None
    quota: Number | None = None


class Process(Known):
    affinity: list[int] | None = None
    threads: Number | None = None
    quota: Number | None = None


class Git(Known):
    commit: str | None = None
    clean: bool | None = None


class Slurm(Known):
    job_id: str | None = None
    restart_count: Annotated[int, Field(ge=0, le=10**6)] | None = None


class Lock(Known):
    name: str | None = None
    file: str | None = None
    sha256: str | None = None
    packages: Annotated[int, Field(ge=0, le=10**6)]
    matching: Annotated[int, Field(ge=0, le=10**6)]
    others: list[str] = []


class Pairing(Known):
    kind: str | None = None
    pair: str | None = None
    partner: str | None = None
    turns: str | None = None
    active_s: Number | None = None


class KnownEnvironment(Known):
    """Of `Record.environment`; harness/results/environment.py, installed.py and the runners' device.py write it."""

    python: str | None = None
    platform: str | None = None
    node: str | None = None
    scheduler: str | None = None
    load_average: list[Number] = []
    packages: dict[str, str] | None = None
    installed_sha256: str | None = None
    lock: Lock | None = None
    variables: dict[str, str] | None = None
    code: dict[str, str] | None = None
    gpu: Gpu | None = None
    framework: Framework | None = None
    variables_unset: dict[str, str] | None = None
    cpu: Cpu | None = None
    process: Process | None = None
    git: Git | None = None
    slurm: Slurm | None = None
    pairing: Pairing | None = None


def require_known(environment: Mapping[str, Any]) -> None:
    """Raises pydantic's ValidationError."""
    KnownEnvironment.model_validate(environment)
