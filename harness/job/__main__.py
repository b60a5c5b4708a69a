"""`python -m harness.job`: a job of both frameworks."""

import sys

from harness.missing_package import exit_without_package

try:
    from harness.job.main import main
except ModuleNotFoundError as error:
    exit_without_package(error)

if __name__ == "__main__":
    sys.exit(main())
