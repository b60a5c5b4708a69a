"""`main.py data`: brings the data sets to the folder that jobs read, on a machine that has a network."""

import time
from pathlib import Path

from harness.errors import DataError
from harness.experiments.model import Config
from harness.work.datasets import DataFiles, DataSource, fetch, read_manifest
from harness.work.declared import benchmark
from harness.work.tasks import Task


def fetch_command(config: Config, benchmarks: tuple[str, ...]) -> int:
    """Fetches those that are named, or all that experiments.yaml defines. 1 if one could not be had, else 0.

    One that fails does not keep the others from being fetched.
    """
    data_dir = Path(config.data_dir)
    failed = 0
    for name in benchmarks or tuple(config.benchmarks):
        declared = benchmark(name)
        if declared.data is None:
            if benchmarks:
                print(f"{name}: nothing to fetch: {declared.drawn.words if declared.drawn else 'no data'}", flush=True)
            continue
        print(f"{name}: fetching and verifying ...", flush=True)
        start = time.monotonic()
        try:
            line = _result_line(declared.data, declared.task, data_dir)
            print(line, f"({time.monotonic() - start:.1f} s)", flush=True)
        except DataError as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
    return 1 if failed else 0


def _result_line(source: DataSource, task: Task, data_dir: Path) -> str:
    """What, where, how large, which checksum."""
    dataset = fetch(source, data_dir)
    files = DataFiles(data_dir=data_dir, benchmark=source.benchmark)
    size = sum(path.stat().st_size for path in files.folder.glob("*.npy"))
    shape = " x ".join(map(str, dataset.train[task.arrays[0]].shape[1:]))
    return (
        f"{source.benchmark}: {dataset.train_count:,} {task.samples} to train, {dataset.test_count:,} to test, "
        f"{shape}; {size / 1e6:.1f} MB in {files.folder}; SHA-256 of the content {read_manifest(files)['sha256']}"
    )
