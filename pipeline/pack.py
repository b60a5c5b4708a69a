"""`main.py pack`: the record files of each finished cell become one file (harness/packs.py)."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path

from harness.errors import ProjectError, RecordError
from harness.packs import NAME, pack_up, record_paths
from harness.paths import Results
from harness.plan import Cell
from harness.printable import printable
from harness.results.record import read_record, readable_record
from pipeline.collector import without_collector
from pipeline.submission.submit import alone
from pipeline.watching.jobs import JobState, job_states


def pack(
    results: Results,
    *,
    gpus: Collection[str] = (),
    benchmarks: Collection[str] = (),
    use_cases: Collection[int | str] = (),
    dry_run: bool = False,
) -> int:
    """Prints a line for each cell that has record files; an empty collection means all cells. Returns 1 when a cell was
    left alone or could not be packed, or none is of that selection; else 0.

    Raises:
        ProjectError: whose records a running job writes cannot be known.
    """

    def is_wanted(cell: Cell | None) -> bool:
        if cell is None:  # nothing in its folder can be read
            return not (gpus or benchmarks or use_cases)
        return (
            (not gpus or cell.gpu in gpus)
            and (not benchmarks or cell.benchmark in benchmarks)
            and (not use_cases or not {cell.use_case, cell.use_case_name}.isdisjoint(use_cases))
        )

    counts: list[int] = []
    is_left = False
    with nullcontext() if dry_run else alone(results), without_collector():
        busy = _busy(results)
        cells = _cells(results)
        wanted = {folder: paths for folder, paths in cells.items() if is_wanted(_cell(paths))}
        for folder, paths in wanted.items():
            try:
                if count := _pack(folder, paths, busy.get(folder), dry_run=dry_run):
                    counts.append(count)
            except (RecordError, OSError) as error:
                print(f"{_name(folder)}: left alone: {printable(str(error))}", flush=True)
                is_left = True
    if cells and not wanted:
        print(f"No cell is of that GPU, benchmark and use case. There are: {', '.join(map(_name, cells))}.")
    files = f"{len(counts):,} cell{'' if len(counts) == 1 else 's'}, {sum(counts):,} files -> {len(counts):,}"
    print(files + (": nothing was changed (--dry-run)" if dry_run else ""))
    return 1 if is_left or (cells and not wanted) else 0


def _pack(folder: Path, paths: Sequence[Path], job: JobState | None, *, dry_run: bool) -> int:
    """How many files were packed, or would be. Raises RecordError for what is left alone, and OSError."""
    if folder / NAME in paths:
        read_record(folder / NAME)  # raises why it cannot be read
    files = [path for path in paths if path.is_file()]
    names = [str(path.relative_to(folder)) for path in files if str(path).isprintable() and readable_record(path)]
    if not names:
        return 0
    if job is not None:
        raise RecordError(f"its job {job.job_id or job.folder.name} is {job.state}")
    odd = len(files) - len(names)
    if not dry_run:
        pack_up(folder, names)
    what = f"{len(names):,} file{'' if len(names) == 1 else 's'} -> {NAME}"
    print(f"{_name(folder)}: {what}{f'; {odd} that are no records stay' if odd else ''}", flush=True)
    return len(names)


def _busy(results: Results) -> dict[Path, JobState]:
    """The active job of each cell's folder that has one."""
    active = [state for state in job_states(results) if state.is_active]
    if unknown := [state for state in active if state.pair is None]:
        raise ProjectError(
            f"{unknown[0].folder.root}: the plan of a job that is {unknown[0].state} cannot be read, so nobody knows "
            "whose records it writes. Nothing is packed until it is over (main.py cancel ends it)"
        )
    return {state.folder.results.records(plan.cell): state for state in active for plan in state.plans}


def _cells(results: Results) -> dict[Path, list[Path]]:
    """Records and packs by the folder of their cell, which holds a folder of each framework."""
    found: dict[Path, list[Path]] = defaultdict(list)
    for root in (results.records(), results.calibration):
        for path in record_paths(root):
            folder = path.parent if path.name == NAME else path.parent.parent
            if folder.parent.parent == root:
                found[folder].append(path)
    return dict(found)


def _cell(paths: Sequence[Path]) -> Cell | None:
    """By the first of its records that can be read."""
    return next((record.measurement.cell for path in paths if (record := readable_record(path))), None)


def _name(folder: Path) -> str:
    """`any/mnist_1`"""
    return "/".join(folder.parts[-2:])
