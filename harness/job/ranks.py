"""From what the ranks of one measurement tell to its outcome, and from their results to the record's. Pure.

One rank is the ordinary case and follows the same rules.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.files import in_words
from harness.results.record import (
    Blocks,
    Check,
    Energy,
    EpochPoint,
    HeldBack,
    Latency,
    Memory,
    Outcome,
    RankResult,
    Result,
)
from harness.results.statistics import sum_of_all

EXIT_GRACE_S = 20.0
"""How long a measurement's process may take to end once its result is here; then it is killed and the result stands."""
SETTLE_S = 2.0
"""When a rank dies, the others fail too, at the next step that they would do with it. The order of
their reports is random; the original error is waited for this long."""
EXPLANATION_TIMEOUT_S = 180.0
"""From the last number that is measured to the end: a tracer that hangs costs no more."""


@dataclass(frozen=True, kw_only=True)
class RanksReport:
    """What became of a measurement."""

    outcome: Outcome
    reason: str | None = None
    result: Result | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    """Rank 0's."""
    ranks: list[RankResult] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Failure:
    outcome: Outcome
    reason: str
    is_cause: bool
    """Killed from outside or by the hardware: never an effect of what another rank did, as an error or an abort may
    be."""


@dataclass(kw_only=True)
class _Rank:
    rank: int
    node: str
    result: Result | None = None
    result_so_far: Result | None = None
    failure: _Failure | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    has_ended: bool = False
    must_end_at: float | None = None


class Ranks:
    """Takes the events of all ranks as they come. Times are the caller's, of one monotonic clock."""

    def __init__(self, nodes: Sequence[str], log: Path, *, timeout_s: float, now: float) -> None:
        """
        Args:
            nodes: of each rank.
            timeout_s: how long they may keep the device, which they do from `now` on.
        """
        self._ranks = [_Rank(rank=rank, node=node) for rank, node in enumerate(nodes)]
        self._log = log
        self._failed_at: float | None = None
        self._failures: list[tuple[_Rank, _Failure]] = []
        self._timeout_s = timeout_s
        self._active_s = 0.0
        self._active_since: float | None = now
        self._is_late = False
        self._allow(timeout_s, now)

    def pause(self, now: float) -> None:
        """They wait for their turn, which is none of their time."""
        self._active_s, self._active_since = self.active_s(now), None

    def go_on(self, now: float) -> None:
        self._active_since = now

    def active_s(self, now: float) -> float:
        """How long they have kept the device."""
        return self._active_s + (0.0 if self._active_since is None else now - self._active_since)

    def _allow(self, seconds: float, now: float) -> None:
        """From now on."""
        self._allowed_s, self._limit_s = seconds, self.active_s(now) + seconds

    @property
    def have_failed(self) -> bool:
        return bool(self._failures)

    def take(self, rank_number: int, event: Mapping[str, Any], now: float) -> None:
        rank = self._ranks[rank_number]
        kind, content = event["kind"], event["content"]
        if kind == "environment":
            rank.environment = content
        elif kind == "result_so_far":
            with suppress(ValidationError):  # `result` has the same numbers, and says what is wrong with them
                rank.result_so_far = Result.model_validate(content)
            if rank_number == 0 and content.get("explanation_absent"):
                self._allow(min(self._timeout_s, EXPLANATION_TIMEOUT_S), now)
        elif kind == "parity" and rank_number == 0:  # each key has as long as a measurement
            self._allow(self._timeout_s, now)
        elif kind == "result":
            rank.must_end_at = now + EXIT_GRACE_S
            try:
                rank.result = Result.model_validate(content)
            except ValidationError as error:
                reason = f"its result cannot be recorded: {in_words(error)}"
                self._fail(rank, _Failure(outcome="failed", reason=reason, is_cause=False), now)
        elif kind == "error":
            self._fail(rank, _Failure(outcome=content["outcome"], reason=content["reason"], is_cause=False), now)
        elif kind == "silent":
            rank.must_end_at = rank.must_end_at or now + EXIT_GRACE_S
        elif kind == "exit":
            rank.has_ended = True
            if rank.result is None or content["code"] != 0:
                code = content["code"]
                reason = f"{_explain_exit(code)}; log: {self._log_of(rank)}\n{content['tail']}".rstrip()
                is_cause = code < 0 and code != -signal.SIGABRT
                self._fail(rank, _Failure(outcome="failed", reason=reason, is_cause=is_cause), now)
        elif kind == "lost":
            reason = f"its node is gone: {content['reason']}"
            self._fail(rank, _Failure(outcome="failed", reason=reason, is_cause=True), now)

    def are_over(self, now: float) -> bool:
        """With a result, a failure, or no time left."""
        if not self._have_ended(now):
            self._is_late = self.active_s(now) > self._limit_s
            return self._is_late
        return True

    def _have_ended(self, now: float) -> bool:
        for rank in self._ranks:
            if not rank.has_ended and rank.must_end_at is not None and now > rank.must_end_at:
                rank.has_ended = True
                if rank.result is None:
                    reason = f"the measurement's process went silent and did not end; log: {self._log_of(rank)}"
                    self._fail(rank, _Failure(outcome="failed", reason=reason, is_cause=False), now)
        if self._failed_at is None:
            return all(rank.has_ended for rank in self._ranks)
        all_failed = len(self._ranks) == len(self._failures)
        return all_failed or any(f.is_cause for _, f in self._failures) or now > self._failed_at + SETTLE_S

    def report(self) -> RanksReport:
        """Of what is over.

        What breaks off when every rank has told its result so far breaks nothing off but what comes after it: the
        explanation, where the result says that it misses it, or the control.
        """
        broken_off = self._broken_off()
        if broken_off is None:
            return self._measured([rank.result for rank in self._ranks if rank.result is not None])
        so_far = [rank.result_so_far for rank in self._ranks if rank.result_so_far is not None]
        if len(so_far) < len(self._ranks):
            return broken_off
        absent = f"{broken_off.outcome}: {str(broken_off.reason).splitlines()[0]}"
        missing = "blocks_alone_absent" if so_far[0].explanation_absent is None else "explanation_absent"
        return self._measured([result.model_copy(update={missing: absent}) for result in so_far])

    def _broken_off(self) -> RanksReport | None:
        environment = self._ranks[0].environment
        if self._failures:
            (rank, failure), *others = sorted(self._failures, key=lambda pair: _order(pair[1]))
            reason = self._name(rank, failure) + failure.reason
            if failure.outcome != "refused":
                also = (f"\nand then rank {r.rank} on {r.node}: {f.reason.splitlines()[0]}" for r, f in others)
                reason += "".join(also)
            return RanksReport(outcome=failure.outcome, reason=reason, environment=environment)
        if self._is_late:
            reason = f"not done after {self._allowed_s:g} s; log: {self._log_of(self._ranks[0])}"
            waited_for = ", ".join(f"{rank.rank} on {rank.node}" for rank in self._ranks if rank.result is None)
            which = f" (no result from rank {waited_for})" if len(self._ranks) > 1 else ""
            return RanksReport(outcome="timeout", reason=reason + which, environment=environment)
        return None

    def _measured(self, results: Sequence[Result]) -> RanksReport:
        """Of all ranks, in their order."""
        environment = self._ranks[0].environment
        try:
            combined = combine(results)
        except ValueError as error:
            return RanksReport(outcome="failed", reason=str(error), environment=environment)
        return RanksReport(outcome="ok", result=combined, environment=environment, ranks=self._rank_results(results))

    def _fail(self, rank: _Rank, failure: _Failure, now: float) -> None:
        if rank.failure is None:
            rank.failure = failure
            self._failures.append((rank, failure))
            self._failed_at = self._failed_at or now

    def _name(self, rank: _Rank, failure: _Failure) -> str:
        """What one machine cannot do, none of them can: a refusal needs no name."""
        return "" if len(self._ranks) == 1 or failure.outcome == "refused" else f"rank {rank.rank} on {rank.node}: "

    def _log_of(self, rank: _Rank) -> Path:
        return log_of_rank(self._log, rank.rank, len(self._ranks))

    def _rank_results(self, results: Sequence[Result]) -> list[RankResult]:
        if len(self._ranks) == 1:
            return []
        return [
            RankResult(
                rank=rank.rank,
                node=rank.node,
                gpu_uuids=_of_each_gpu(rank.environment, "uuid"),
                gpu_names=_of_each_gpu(rank.environment, "name"),
                block_times_s=result.blocks.block_times_s if result.blocks else [],
                call_times_s=result.latency.call_times_s if result.latency else [],
                memory=result.memory,
                energy=result.energy,
            )
            for rank, result in zip(self._ranks, results, strict=True)
        ]


def _of_each_gpu(environment: Mapping[str, Any], quantity: str) -> list[str]:
    """`uuid` or `name` of each GPU of one rank; empty where one is not known."""
    gpu = environment.get("gpu") or {}
    values = gpu.get(f"{quantity}s") or [gpu.get(quantity)]
    return [] if None in values else values


def log_of_rank(log: Path, rank: int | str, ranks: int) -> Path:
    """Of several ranks, each one's output lies in a file of its own."""
    return log if ranks == 1 else log.with_name(f"{log.stem}-rank{rank}{log.suffix}")


def _order(failure: _Failure) -> tuple[bool, bool]:
    """A cause before what may be its effect, memory before another error; else who came first."""
    return not failure.is_cause, failure.outcome != "out_of_memory"


def _explain_exit(code: int) -> str:
    if code >= 0:
        return f"the measurement's process ended with status {code} and no result"
    name = signal.Signals(-code).name
    hint = " (often the host's or Slurm's out-of-memory killer)" if code == -signal.SIGKILL else ""
    return f"the measurement's process was killed by {name}{hint}"


# From the results of all ranks to one.


def combine(results: Sequence[Result]) -> Result:
    """The step is over when its slowest rank is: times are the largest over ranks, block by block and call by call.
    Memory is that of the device that took most (`details["memory_all_devices"]` has the sums), energy that of all
    together. States and checks of all ranks are kept; the rest is rank 0's.

    Raises:
        ValueError: the ranks did not do the same.
    """
    first = results[0]
    memory, of_all_devices = _combine_memory([r.memory for r in results])
    if len(results) == 1:
        several = {"memory_all_devices": of_all_devices.model_dump(mode="json")} if memory.devices else {}
        return first.model_copy(update={"details": first.details | several}) if several else first
    return first.model_copy(
        update={
            "compile_time_s": max((r.compile_time_s for r in results if r.compile_time_s is not None), default=None),
            "cold_call_times_s": _slowest("cold calls", [r.cold_call_times_s for r in results]),
            "blocks": _combine_blocks([r.blocks for r in results if r.blocks]),
            "blocks_alone": _combine_blocks([r.blocks_alone for r in results if r.blocks_alone]),
            "latency": _combine_latency([r.latency for r in results if r.latency]),
            "recompiles": max(r.recompiles for r in results),
            "memory": memory,
            "energy": _combine_energy([r.energy for r in results]),
            "gpu_states": [state for r in results for state in r.gpu_states],
            "held_back": _combine_held_back([r.held_back for r in results if r.held_back]),
            "epochs": _combine_epochs([r.epochs for r in results]),
            "time_to_target_s": _largest_of_all([r.time_to_target_s for r in results]),
            "checks": [_named(check, rank) for rank, r in enumerate(results) for check in r.checks],
            "details": first.details | {"memory_all_devices": of_all_devices.model_dump(mode="json")},
        }
    )


def _slowest(what: str, times_s: Sequence[list[float]]) -> list[float]:
    counts = [len(of_rank) for of_rank in times_s]
    if len(set(counts)) > 1:
        raise ValueError(f"the ranks made different numbers of {what}: {', '.join(map(str, counts))}")
    return [max(of_all) for of_all in zip(*times_s, strict=True)]


def _combine_blocks(blocks: Sequence[Blocks]) -> Blocks | None:
    if not blocks:
        return None
    shapes = {(b.calls_per_block, b.steps_per_call, b.samples_per_step) for b in blocks}
    if len(shapes) > 1:
        raise ValueError(f"the ranks timed different blocks (calls, steps, samples): {sorted(shapes)}")
    return blocks[0].model_copy(
        update={
            "block_times_s": _slowest("blocks", [b.block_times_s for b in blocks]),
            "warmup_times_s": _slowest("warm-up calls", [b.warmup_times_s for b in blocks]),
        }
    )


def _combine_latency(latencies: Sequence[Latency]) -> Latency | None:
    if not latencies:
        return None
    times_s = _slowest("latency calls", [latency.call_times_s for latency in latencies])
    return latencies[0].model_copy(update={"call_times_s": times_s})


def _combine_memory(memories: Sequence[Memory]) -> tuple[Memory, Memory]:
    """Of the device that took most, with each one's own; and the sums over devices, or over processes on the host."""
    devices = [
        device
        for memory in memories
        for device in memory.devices or [memory.model_copy(update={"host_peak_bytes": None})]
    ]
    on_hosts = sum_of_all([memory.host_peak_bytes for memory in memories])
    largest = _field_by_field(max, memories)
    sums = _field_by_field(sum, devices).model_copy(update={"host_peak_bytes": on_hosts})
    return largest.model_copy(update={"devices": devices if len(devices) > 1 else []}), sums


def _field_by_field(function: Callable[[list[int]], int], memories: Sequence[Memory]) -> Memory:
    """None where one has no number, as the largest or the sum of some would be neither."""
    combined: dict[str, Any] = {"absent": next((memory.absent for memory in memories if memory.absent), None)}
    for name in Memory.model_fields.keys() - {"absent", "devices"}:
        values = [getattr(memory, name) for memory in memories]
        combined[name] = None if None in values else function(values)
    return Memory(**combined)


def _combine_energy(energies: Sequence[Energy]) -> Energy:
    """Of all devices; each counted over its own window, and the samples are those of all ranks together."""
    missing = next((energy for energy in energies if energy.gross_joules is None), None)
    if missing is not None:
        return missing
    idle_watts = [energy.idle_watts for energy in energies]
    busy_s = [energy.busy_s for energy in energies if energy.busy_s is not None]
    return Energy(
        gross_joules=sum(energy.gross_joules or 0.0 for energy in energies),
        window_s=max(energy.window_s or 0.0 for energy in energies),
        busy_s=min(busy_s, default=None),
        samples=energies[0].samples,
        devices_gross_joules=[
            joules for energy in energies for joules in energy.devices_gross_joules or [energy.gross_joules or 0.0]
        ],
        idle_watts=None if None in idle_watts else sum(watts or 0.0 for watts in idle_watts),
    )


def _combine_held_back(of_ranks: Sequence[HeldBack]) -> HeldBack | None:
    """Of the rank that was held back most, reason by reason, among the reasons that all of them count."""
    if not of_ranks:
        return None
    reasons = [reason for reason in of_ranks[0].seconds if all(reason in one.seconds for one in of_ranks)]
    return HeldBack(
        window_s=max(one.window_s for one in of_ranks),
        seconds={reason: max(one.seconds[reason] for one in of_ranks) for reason in reasons},
    )


def _combine_epochs(epochs: Sequence[list[EpochPoint]]) -> list[EpochPoint]:
    """Rank 0's, which evaluates for all, with the slowest rank's time."""
    times_s = _slowest("epochs", [[point.train_time_s for point in of_rank] for of_rank in epochs])
    return [point.model_copy(update={"train_time_s": time_s}) for point, time_s in zip(epochs[0], times_s, strict=True)]


def _largest_of_all(values: Sequence[float | None]) -> float | None:
    return None if None in values else max(value for value in values if value is not None)


def _named(check: Check, rank: int) -> Check:
    return check if rank == 0 else check.model_copy(update={"name": f"rank {rank}: {check.name}"})
