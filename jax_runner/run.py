"""JAX's side of a cell: `python jax_runner/run.py --benchmark cifar10 --use_case 3`.

This process imports no JAX. It starts a fresh child for each measurement (harness/job/job.py), and there
harness/measure/process.py finds this folder's device.py, benchmarks/ and use_cases/ by name.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the repository, not this folder

from harness.missing_package import exit_without_package  # noqa: E402

try:
    from harness.job.main import main
except ModuleNotFoundError as error:
    exit_without_package(error)

if __name__ == "__main__":
    sys.exit(main("jax"))
