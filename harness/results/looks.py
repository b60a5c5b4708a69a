"""Which measurements a cell still needs: its screening, and the replicates of each row until its ratio is decided.

A row is what both frameworks do in the same way; a look at its ratio is taken when all replicates up to it have a
record. Decided, it needs no more; else the modes in its ratio, and in that of the declared pair, go on to the next look
(harness/results/sequential.py). The same records give the same answer, also after a requeue.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.paths import Results
from harness.plan import FRAMEWORKS, Framework, JobPlan, Measurement, Variant
from harness.results.flags import comparable_throughput
from harness.results.parity_gate import ParityGate
from harness.results.ratios import RecordPair, estimate_of
from harness.results.record import Record, find_settled
from harness.results.screening import chosen_mode, going_on, screened, screening_records
from harness.results.sequential import looks_of
from harness.work.declared import headline_of

Find = Callable[[Measurement], Record | None]
"""The settled record of a measurement."""


class Part(NamedTuple):
    """One framework's part of a cell."""

    plan: JobPlan
    screening: Mapping[str, Record]
    """By the key of the variant."""
    variants: tuple[Variant, ...]
    """Those that have replicates."""


def needed(
    plans: Sequence[JobPlan], results: Results, scheduler: str | None, *, job: str | None = None
) -> Iterator[Measurement]:
    """What has to be measured, by the records so far.

    Args:
        plans: of one cell. One without its partner has all replicates, as no ratio is there to be looked at.

    The other arguments are those of find_settled_record.
    """

    read: dict[str, Record | None] = {}

    def find(measurement: Measurement) -> Record | None:
        if measurement.id not in read:
            found = find_settled(measurement, results, scheduler, job=job)
            read[measurement.id] = found[1] if found else None
        return read[measurement.id]

    parts = []
    for plan in plans:
        yield from plan.screenings()
        screening = screening_records(plan, results, scheduler, job=job) if plan.screening else {}
        parts.append(Part(plan, screening, going_on(plan, screening)))
    for replicates in rounds(parts, find, ParityGate(results)):
        yield from replicates
        if any(find(each) is None for each in replicates):
            return


def rounds(parts: Sequence[Part], find: Find, gate: ParityGate) -> Iterator[list[Measurement]]:
    """The replicates up to each look, for as long as a row goes on. Whoever measures takes one round after the other:
    each is asked for when the one before has its records."""
    going = {(part.plan.framework, variant.key) for part in parts for variant in part.variants}
    most = max(part.plan.protocol.replicates for part in parts)
    looks = looks_of(most) if len(parts) == len(FRAMEWORKS) and not parts[0].plan.cell.is_calibration else ()
    before = 0
    for stop in looks or (most,):
        yield [
            each
            for part in parts
            for each in part.plan.replicates(part.variants)
            if before <= each.replicate < stop and (part.plan.framework, each.variant.key) in going
        ]
        if stop == most or not (going := _undecided(parts, find, gate, going, stop)):
            return
        before = stop


Key = tuple[Framework, str]
"""Of a variant."""


def _undecided(parts: Sequence[Part], find: Find, gate: ParityGate, going: Collection[Key], stop: int) -> set[Key]:
    """The variants in ratios that have no verdict after `stop` replicates."""
    records: dict[Key, dict[int, Record]] = defaultdict(dict)
    rows: dict[tuple[str, bool], dict[Framework, list[Variant]]] = defaultdict(dict)
    for part in parts:
        framework = part.plan.framework
        kept = {variant.key for variant in part.variants}
        many_steps = part.plan.screening.many_steps if part.plan.screening else ()
        for contest in part.plan.contests():
            key = contest[0].comparison_key, contest[0].execution_mode in many_steps
            rows[key][framework] = [one for one in contest if one.key in kept]
        for each in part.plan.replicates(part.variants):
            if each.replicate < stop and (record := find(each)) and comparable_throughput(record):
                records[framework, each.variant.key][each.replicate] = record
    undecided: set[Key] = set()
    for row in rows.values():
        for pair in _pairs_of(row, parts, records):
            if set(pair) & set(going) and _goes_on([records[key] for key in pair], gate):
                undecided |= set(pair)
    return undecided


def _pairs_of(
    row: Mapping[Framework, Sequence[Variant]], parts: Sequence[Part], records: Mapping[Key, Mapping[int, Record]]
) -> Iterator[tuple[Key, Key]]:
    """The modes that a report compares: those that the screening chose, and the declared ones."""
    chosen: list[Key] = []
    declared: list[Key] = []
    for part in parts:
        framework = part.plan.framework
        by_mode = {one.execution_mode: one for one in row.get(framework, ()) if records.get((framework, one.key))}
        if not by_mode:
            return
        speeds = {
            mode: {number: comparable_throughput(of) or 0.0 for number, of in records[framework, one.key].items()}
            for mode, one in by_mode.items()
        }
        of_screening = {
            mode: found.throughput_samples_per_s
            for mode, one in by_mode.items()
            if one.key in part.screening and (found := screened(part.screening[one.key].result))
        }
        chosen.append((framework, by_mode[chosen_mode(speeds, of_screening)].key))
        headline = headline_of(part.plan.cell.use_case_name).get(framework)
        if headline in by_mode:
            declared.append((framework, by_mode[headline].key))
    for pair in dict.fromkeys([tuple(chosen), tuple(declared)]):
        if len(pair) == len(FRAMEWORKS):
            yield pair[0], pair[1]


def _goes_on(of_pair: Sequence[Mapping[int, Record]], gate: ParityGate) -> bool:
    """Whether more replicates may decide: not where the gate refuses the pair, or its number means nothing."""
    jax, torch = sorted(of_pair, key=lambda one: FRAMEWORKS.index(next(iter(one.values())).measurement.framework))
    pairs: list[RecordPair] = [(jax[one], torch[one]) for one in sorted(jax.keys() & torch.keys())]
    passed = [pair for pair in pairs if gate.judge(*pair).state == "passed"]
    if not passed:
        return False
    found = estimate_of(passed).ratio
    return found.verdict == "undecided" and found.doubt is None
