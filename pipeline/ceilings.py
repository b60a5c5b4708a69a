"""`main.py ceilings`: what this machine can do, measured by both frameworks, one after the other."""

import os
import subprocess

from rich.console import Console

from harness.errors import RecordError
from harness.experiments.model import Config
from harness.job.launch import command_of
from harness.paths import REPOSITORY, Results
from harness.plan import FRAMEWORKS
from harness.printable import printable
from harness.results.ceilings import read_ceilings
from pipeline.report.ceilings import attainable_of_devices, ceiling_lines

TIMEOUT_S = 300.0
"""Of one framework, with its import from a cold file system."""


def measure_ceilings(
    config: Config, results: Results, console: Console | None = None, *, devices: int | None = None
) -> int:
    """Exit status: 0, or 1 where one of the frameworks left no record. `devices`: whose all-reduce it is."""
    console = console or Console()
    found = []
    for framework in FRAMEWORKS:
        own = config.launch(framework)
        path = results.new_ceilings(framework)
        words = ["-m", "harness.job.ceilings", framework, str(path), *([] if devices is None else [str(devices)])]
        try:
            subprocess.run(
                command_of(own, words, [REPOSITORY, results.root.absolute()]),
                cwd=REPOSITORY,
                env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ,
                stdin=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                check=False,
            )
            found.append(read_ceilings(path))
        except subprocess.TimeoutExpired:
            console.print(f"{framework}: no answer in {TIMEOUT_S:g} s", style="yellow", highlight=False)
        except OSError as error:
            console.print(f"{framework}: {error}", style="yellow", highlight=False)
        except RecordError as error:
            console.print(f"{framework}: no record: {printable(str(error))}", style="yellow", highlight=False)
    for line in ceiling_lines(attainable_of_devices(found)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"records: {results.ceilings}; `python main.py report` shows them", soft_wrap=True, highlight=False)
    return int(len(found) < len(FRAMEWORKS))
