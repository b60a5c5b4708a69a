"""`python -m harness.job`: a job of both frameworks."""

import sys

from harness.job.main import main

if __name__ == "__main__":
    sys.exit(main())
