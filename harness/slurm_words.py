"""What Slurm's programs say where its controller, and not the job, is the trouble."""

import re

NO_ANSWER = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused|connect failure"
    r"|Zero Bytes were transmitted|[Bb]ackup controller in standby|configuration source"
)
PERHAPS_HEARD = re.compile(r"timed out|Zero Bytes were transmitted")
"""The controller may have taken what it was asked for, and the answer was lost."""
