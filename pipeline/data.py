"""`main.py data`: brings data sets and pretrained weights to the folder that jobs read, where there is a network."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import DataError
from harness.experiments.model import Config
from harness.work.datasets import DataFiles, DataSource, fetch, load, read_manifest, verify
from harness.work.declared import Benchmark, benchmark
from harness.work.pretrained import WeightsFiles, fetch_weights, verified_content

if TYPE_CHECKING:
    from rich.progress import Progress


def fetch_command(config: Config, benchmarks: tuple[str, ...]) -> int:
    """Fetches those that are named, or all that experiments.yaml defines, except those that only the user can bring and
    has not. 1 if one could not be had, else 0.

    One that fails does not keep the others from being fetched; nor do weights that fail cost the data.
    """
    data_dir = Path(config.data_dir)
    failed = 0
    for declared, source in _with_data(config, benchmarks):
        name = declared.name
        if not benchmarks and source.by_hand and not _files(name, data_dir).originals.exists():
            print(f"{name}: has to be brought by hand; python main.py data --benchmark {name} says how", flush=True)
            continue
        print(f"{name}: fetching and verifying ...", flush=True)
        start = time.monotonic()
        try:
            with _progress() as shown:
                fetch(source, data_dir, tell=shown.begin_for(name), advance=shown.advance)
            print(_result_line(declared, data_dir), f"({time.monotonic() - start:.1f} s)", flush=True)
        except DataError as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
            continue
        failed += _fetch_weights(declared, data_dir)
    return 1 if failed else 0


def verify_command(config: Config, benchmarks: tuple[str, ...]) -> int:
    """Reads all of the data sets that are named, or of all that are here, and of their weights. 1 if something is
    damaged, or named and missing; else 0."""
    data_dir = Path(config.data_dir)
    failed = 0
    for declared, source in _with_data(config, benchmarks):
        name = declared.name
        if not benchmarks and not _files(name, data_dir).manifest.exists():
            print(f"{name}: is not here", flush=True)
            continue
        try:
            with _progress() as shown:
                nbytes = sum(array.nbytes for array in read_manifest(_files(name, data_dir)).arrays.values())
                shown.begin_for(name)(f"verifying {nbytes / 1e9:.3g} GB", nbytes)
                verify(source, "real", data_dir, everything=True, advance=shown.advance)
            print(f"{_result_line(declared, data_dir)}, all verified", flush=True)
        except DataError as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
        for files in _weights_of(declared, data_dir):
            if not files.manifest.exists():
                continue
            try:
                print(f"{name}: weights of {files.model}: {verified_content(files).weights}, all verified", flush=True)
            except DataError as error:
                failed += 1
                print(f"{name}: {error}", flush=True)
    return 1 if failed else 0


def _with_data(config: Config, benchmarks: tuple[str, ...]) -> Iterator[tuple[Benchmark, DataSource]]:
    """Says of those that are named and need no data that it is so."""
    for name in benchmarks or tuple(config.benchmarks):
        declared = benchmark(name)
        if declared.data is not None:
            yield declared, declared.data
        elif benchmarks:
            print(f"{name}: nothing to fetch: {declared.drawn.words if declared.drawn else 'no data'}", flush=True)


def _files(name: str, data_dir: Path) -> DataFiles:
    return DataFiles(data_dir=data_dir, benchmark=name)


def _weights_of(declared: Benchmark, data_dir: Path) -> list[WeightsFiles]:
    return [
        WeightsFiles(data_dir=data_dir, benchmark=declared.name, model=model.name)
        for model in declared.models
        if model.published
    ]


def _fetch_weights(declared: Benchmark, data_dir: Path) -> int:
    """How many models have none now."""
    failed = 0
    for files in _weights_of(declared, data_dir):
        try:
            found = fetch_weights(declared.name, files.model, data_dir)
        except DataError as error:
            failed += 1
            print(f"{declared.name}: weights of {files.model}: {error}", flush=True)
        else:
            print(
                f"{declared.name}: weights of {files.model}: {found.weights}, {found.top1_of_1000_percent:.2f} % top-1 "
                f"of 1,000 classes as published; {files.arrays.stat().st_size / 1e6:.1f} MB in {files.arrays}",
                flush=True,
            )
    if failed:
        print(f"{declared.name}: the data is there all the same; measure it with weights: drawn", flush=True)
    return failed


def _result_line(declared: Benchmark, data_dir: Path) -> str:
    """What, where, how large, which checksum."""
    files, task = _files(declared.name, data_dir), declared.task
    dataset, manifest = load(declared.data, "real", data_dir), read_manifest(files)
    size = sum(path.stat().st_size for path in files.folder.glob("*.npy"))
    shape = " x ".join(map(str, dataset.train[task.arrays[0]].shape[1:])) or "of different sizes"
    return (
        f"{declared.name}: {dataset.train_count:,} {task.samples} to train, {dataset.test_count:,} to test, "
        f"{shape}; {manifest.source}; {size / 1e6:.1f} MB in {files.folder}; SHA-256 of the content {manifest.sha256}"
    )


@dataclass(kw_only=True)
class _Shown:
    """A bar on a terminal; in a file or pipe only the sentences."""

    bar: "Progress | None"

    def begin_for(self, name: str) -> Callable[[str, int], None]:
        def begin(sentence: str, nbytes: int) -> None:
            print(f"{name}: {sentence}", flush=True)
            if self.bar is not None:
                for task in self.bar.task_ids:
                    self.bar.remove_task(task)
                self.bar.add_task(name, total=nbytes)

        return begin

    def advance(self, nbytes: int) -> None:
        if self.bar is not None:
            for task in self.bar.task_ids:
                self.bar.advance(task, nbytes)


@contextmanager
def _progress() -> Iterator[_Shown]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console()
    if not console.is_terminal:
        yield _Shown(bar=None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Shown(bar=bar)
