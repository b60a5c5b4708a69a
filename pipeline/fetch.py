"""`main.py data`: brings the data sets to the folder that jobs read, on a machine that has a network."""

import time
from pathlib import Path

from harness.config import Config
from harness.data import DATASETS, GENERATED, DataFiles, fetch
from harness.errors import DataError


def fetch_command(config: Config, benchmarks: tuple[str, ...]) -> int:
    """Fetches those that are named, or all that experiments.yaml defines. 1 if one could not be had, else 0.

    One that fails does not keep the others from being fetched.
    """
    data_dir = Path(config.data_dir)
    failed = 0
    for benchmark in benchmarks or tuple(name for name in config.benchmarks if name in DATASETS):
        if benchmark in GENERATED:
            print(f"{benchmark}: nothing to fetch: {GENERATED[benchmark]}", flush=True)
            continue
        print(f"{benchmark}: fetching and verifying ...", flush=True)
        start = time.monotonic()
        try:
            print(_result_line(benchmark, data_dir), f"({time.monotonic() - start:.1f} s)", flush=True)
        except DataError as error:
            failed += 1
            print(f"{benchmark}: {error}", flush=True)
    return 1 if failed else 0


def _result_line(benchmark: str, data_dir: Path) -> str:
    """What, where, how large, which checksum."""
    dataset = fetch(benchmark, data_dir)
    path = DataFiles(data_dir=data_dir, benchmark=benchmark).arrays
    shape = " x ".join(map(str, dataset.train_images.shape[1:]))
    return (
        f"{benchmark}: {len(dataset.train_images):,} images to train, {len(dataset.test_images):,} to test, "
        f"{shape}; {path.stat().st_size / 1e6:.1f} MB in {path}; SHA-256 of the content {dataset.sha256}"
    )
