"""Use case 2 as a user runs it where there is no Slurm, and what it reports of its scaling."""

import re
from pathlib import Path

import pytest

from tests.made.two_devices import copy_for_two_devices, require_all_good, run_main


@pytest.mark.nightly  # on a real Slurm, with both frameworks: tests/slurm/test_several_nodes.py, in any run
@pytest.mark.parametrize(("framework", "title"), [("jax", "JAX"), ("torch", "PyTorch")])
def test_main_ends_with_the_scaling_efficiency(framework: str, title: str, tmp_path: Path) -> None:
    """One device with a batch of 64 is the base line of two with 64 each. (Of two with 64 in all: the tests of the
    report.)"""
    copy_for_two_devices(tmp_path, batch_sizes="[128]")
    done = run_main(tmp_path, "--use_case", "2", "--executor", "local", "--framework", framework)
    records = require_all_good(tmp_path, done)
    throughput = {}
    for record in records:
        blocks = record.result.blocks
        samples = blocks.calls_per_block * blocks.steps_per_call * blocks.samples_per_step
        rates = sorted(samples / time_s for time_s in blocks.block_times_s)
        median = (rates[(len(rates) - 1) // 2] + rates[len(rates) // 2]) / 2
        measurement = record.measurement
        throughput[measurement.cell.devices, measurement.variant.batch_size] = median
    assert sorted(throughput) == [(1, 64), (2, 128)]

    said = " ".join(done.stdout.split())
    shown = re.search(rf"Of 2 times one device: {title} ([\d.]+)% \(weak\)", said)
    assert shown, done.stdout
    assert 100 * throughput[2, 128] / (2 * throughput[1, 64]) == pytest.approx(float(shown[1]), abs=0.51)
