"""`main.py --dry-run`: what would be measured, as a table with a row for each job. No scheduler is asked or needed."""

import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.experiments.model import Config
from harness.paths import Results
from harness.plan import Framework, Pair
from harness.printable import WIDTH, wrapped
from pipeline.submission.estimate import Estimate, estimates_of
from pipeline.submission.queue_job import QueueJob, pairs_of
from pipeline.submission.submit import time_in_words

HOUR_S = 3600.0
MOST_IN_FULL = 3
"""Jobs whose variants are listed by name, where there are no more."""
MOST_NAMED = 3
HEADINGS = ("job", "GPUs", "variants", "measured", "time")
WITHOUT_EFFECT = ("--dry-run", "--dry_run")
"""Flags that the command which submits does not need."""


@dataclass(frozen=True)
class Axes:
    """The values of each axis in a plan of both frameworks, or of one, in the order of experiments.yaml."""

    values: Mapping[str, Sequence[str]]
    """Of models, batch sizes, precisions and each option, by the flag that names them."""
    modes: Mapping[Framework, Sequence[str]]

    @property
    def counts(self) -> str:
        """`1x2x3x4x9+14`: models, batch sizes, precisions, combinations of options, modes of JAX and of PyTorch."""
        options = 1
        for flag, found in self.values.items():
            options *= len(found) if flag.startswith("--option ") else 1
        first = [len(self.values[flag]) for flag in ("--model ", "--batch_size ", "--precision ")]
        return "x".join(map(str, [*first, options])) + f"x{'+'.join(str(len(one)) for one in self.modes.values())}"


def axes_of(pair: Pair) -> Axes:
    values: dict[str, dict[str, None]] = {"--model ": {}, "--batch_size ": {}, "--precision ": {}}
    modes: dict[Framework, dict[str, None]] = {}
    for plan in pair.jobs:
        for one in plan.variants:
            own = {"--model ": one.model, "--batch_size ": one.batch_size, "--precision ": one.precision}
            own |= {f"--option {name}=": value for name, value in one.options.items()}
            for flag, value in own.items():
                values.setdefault(flag, {})[str(value)] = None
            modes.setdefault(plan.framework, {})[one.execution_mode] = None
    return Axes({flag: [*found] for flag, found in values.items()}, {name: [*found] for name, found in modes.items()})


def print_dry_run(
    jobs: Sequence[QueueJob],
    results: Results,
    *,
    executor: str,
    config: Config,
    beside: Iterable[str] = (),
) -> int:
    """
    Args:
        executor: as on the command line; `auto` is Slurm also where there is no sbatch.
        beside: further lines, before the last one.
    """
    pairs = pairs_of(jobs)
    scheduler = "local" if executor == "local" else "slurm"
    estimates = estimates_of(pairs, results, scheduler)
    axes = [axes_of(pair) for pair in pairs]
    lines = [*_table(pairs, axes, estimates), "", *map(wrapped, _about_table(pairs))]
    if len(pairs) <= MOST_IN_FULL:
        lines += [line for pair, own in zip(pairs, axes, strict=True) for line in _in_full(pair, own)]
    has_sbatch = shutil.which("sbatch") is not None
    if any(one.measurements for one in estimates):
        lines += ["", *map(wrapped, time_in_words(jobs, estimates, config, scheduler))]
    if scheduler == "slurm":
        from pipeline.submission.slurm import variables_in_words

        lines += [wrapped(found)] if (found := variables_in_words()) else []
    lines += beside
    if executor == "auto" and not has_sbatch:
        lines.append("There is no sbatch here: jobs would run on this machine, one after the other.")
    lines.append(f"Nothing was submitted. To submit: {command_that_submits(sys.argv)}")
    sys.stdout.write("\n".join([*lines, ""]))
    return 0


def command_that_submits(words: Sequence[str]) -> str:
    """`words`: of the command line, with the program."""
    return shlex.join(["python", *(word for word in words if word not in WITHOUT_EFFECT)])


def _table(pairs: Sequence[Pair], axes: Sequence[Axes], estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield the table of the cells, a line for each."""
    rows = [HEADINGS]
    for pair, own, estimate in zip(pairs, axes, estimates, strict=True):
        cell = pair.cell
        # The GPUs have a column of their own.
        name = pair.model_copy(update={"cell": cell.model_copy(update={"gpu": "any", "devices": 1})}).words
        gpus = f"{cell.devices} x {cell.gpu}" if cell.devices > 1 else cell.gpu
        short = sum(len(plan.screened_variants()) for plan in pair.jobs)
        count = sum(len(plan.variants) * plan.protocol.replicates for plan in pair.jobs)
        rows.append((name, gpus, own.counts, f"{f'{short:,} + ' if short else ''}{count:,}", _span(estimate)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else 1
    for row in rows:
        yield (" " * gap).join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()


def _span(estimate: Estimate) -> str:
    """`12-40 min`; `-` where all has a record."""
    if not estimate.measurements:
        return "-"
    most = max(estimate.most_seconds, 1.0)
    unit, size = ("s", 1) if most < 60 else ("min", 60) if most < 2 * HOUR_S else ("h", HOUR_S)
    low, high = (f"{seconds / size:.{int(unit == 'h')}f}" for seconds in (estimate.seconds, most))
    return f"{high} {unit}" if low == high else f"{low}-{high} {unit}"


def _about_table(pairs: Sequence[Pair]) -> Iterator[str]:
    yield "variants: models x batch sizes x precisions x options x modes (JAX + PyTorch)."
    if any(plan.screening for pair in pairs for plan in pair.jobs):
        yield "measured a + b: a short screenings, which choose modes, then b at most."
    how: dict[str, list[str]] = defaultdict(list)
    for pair in pairs:
        if len(pair.jobs) > 1 and not pair.cell.is_calibration:
            words = "in turns, block by block" if pair.is_interleaved else "one after the other"
            how[words].append(pair.cell.words)
    for words, cells in how.items():
        of = f" ({_some(cells)})" if len(how) > 1 else ""
        yield f"The processes of JAX and PyTorch run {words}{of}."


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return "; ".join(names[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _in_full(pair: Pair, axes: Axes) -> Iterator[str]:
    """The variants by name."""
    yield from ("", pair.words)
    named = {flag.strip("- =").removeprefix("option ").replace("_", " "): found for flag, found in axes.values.items()}
    for title, found in [*named.items(), *axes.modes.items()]:
        yield wrapped(f"  {title:<12}{', '.join(found)}", indent=" " * 14)
