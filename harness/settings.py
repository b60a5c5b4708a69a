"""How to measure and how to publish: the parts of experiments.yaml that travel into the job."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Framework = Literal["jax", "torch"]
Precision = Literal["fp32", "tf32", "bf16"]
DataKind = Literal["real", "sample"]
Pairing = Literal["together", "separate"]
"""Whether one allocation runs both frameworks in turn, or each has a job of its own."""

FRAMEWORKS: tuple[Framework, ...] = ("jax", "torch")
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")


class Frozen(BaseModel):
    """An immutable model that refuses unknown keys, so that a typo is never silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasurementSettings(Frozen):
    """The protocol of harness/measure.py. Every time is in seconds of wall clock."""

    replicates: int = Field(default=3, ge=1)
    """Fresh processes per variant; statistics run over these."""
    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights and of the order of the batches, the same for both frameworks."""
    warmup_s: float = Field(default=2.0, gt=0)
    warmup_min_calls: int = Field(default=5, ge=2)
    block_min_s: float = Field(default=0.1, gt=0)
    """A throughput block holds as many back-to-back calls as fill this time; one wait at its end."""
    min_blocks: int = Field(default=20, ge=3)
    max_blocks: int = Field(default=300, ge=3)
    target_noise: float = Field(default=0.005, gt=0, lt=1)
    """Stop when the 95 % interval of the median block time is narrower than this on either side, relatively."""
    max_time_s: float = Field(default=30.0, gt=0)
    """Stop the throughput blocks after this time whatever the noise; the record is then flagged if it is noisy."""
    latency_calls: int = Field(default=200, ge=1)
    latency_max_time_s: float = Field(default=20.0, gt=0)
    energy_window_s: float = Field(default=5.0, gt=0)
    """On a GPU the throughput blocks go on for at least this long: the energy counter ticks only every 0.1 s."""
    idle_s: float = Field(default=2.0, ge=0)
    """How long idle power is measured, with the framework's context loaded, before the warm-up."""
    timeout_s: float = Field(default=1800.0, gt=0)
    """A measurement that takes longer is ended and recorded as `timeout`."""


class WandbSettings(Frozen):
    """Where the results stream to. `auto` is online when an API key is configured, else offline."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str = "jax-vs-torch"
    entity: str | None = None
    tags: tuple[str, ...] = ()
