"""Records, of which one is odd: it is named and left alone or shown, the others keep their report, and what is written
holds nothing that a terminal, a spreadsheet, LaTeX or a browser would obey."""

import csv
import io
import json
import os
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from harness.paths import Results
from pipeline.report.command import ReportOptions, report_command
from tests.bad_inputs.campaign import Case, Cases, changed_file, changed_values, judged_call, judged_text
from tests.made.calibration_records import processes
from tests.made.report_records import H200, passed, record, save

ENVIRONMENT = H200 | {
    "python": "3.12.1",
    "node": "n1",
    "cpu": {"model": "Xeon", "count": 4, "affinity": [0, 1]},
    "gpu": {"name": "NVIDIA H200", "uuid": "GPU-1", "driver_version": "580", "max_sm_clock_mhz": 1980},
    "framework": {"name": "jax", "version": "0.10", "platform": "gpu", "device": "NVIDIA H200"},
    "git": {"commit": "0123456789", "clean": True, "absent": None},
    "slurm": {"job_id": "7", "restart_count": 0},
    "pairing": {"kind": "together", "pair": "7.0"},
    "packages": {"numpy": "2.3.0", "jaxlib": "0.10.2"},
    "variables": {"OMP_NUM_THREADS": "4"},
    "code": {"harness": "ab", "runner": "cd"},
    "load_average": [0.1, 0.2, 0.3],
}
EXECUTED = {".html": ("<script>PWNED", "<img src=x"), ".tex": ("\\input{PWNED}", "\\write18{"), ".csv": ()}


def cases(draw: random.Random, folder: Path) -> Cases:
    results = Results(root=folder / "results")
    for framework, mode in (("jax", "step.jit"), ("torch", "step.eager")):
        for replicate in range(2):
            save(record(framework, mode, replicate=replicate, environment=ENVIRONMENT), results)
    path = sorted(results.records().rglob("*.json"))[0]
    good = path.read_bytes()
    for name, change in [*changed_values(draw, json.loads(good), 2), *_files(good).items()]:
        yield Case(name, partial(_judged, results, path, change))
    for name in (b"\xff\xfe.json", b"\x1b[31m.json", b"a\nb.json", b"=1+1.json", b"<script>PWNED.json", b"..json"):
        yield Case(repr(name), partial(_judged, results, path.parent / os.fsdecode(name), b"{}"))

    results = Results(root=folder / "calibrated")
    for one in processes(3):
        save(one, results)
    path = sorted(results.calibration.rglob("*.json"))[0]
    for name, changed in draw.sample([*changed_values(draw, json.loads(path.read_text()))], 60):
        yield Case(f"calibration: {name}", partial(_judged_calibration, results, path, changed))


def _files(good: bytes) -> dict[str, bytes | Callable[[Path], object]]:
    deep = b'"environment":{"x":' + b"[" * 900 + b"]" * 900 + b","
    return {
        "empty": b"",
        "cut off": good[: len(good) // 2],
        "not UTF-8": b"\xff" + good,
        "deep": b"[" * 100_000,
        "deep and closed": b"[" * 5000 + b"]" * 5000,
        "deep in the environment": good.replace(b'"environment":{', deep),
        "many digits": b'{"schema_version": ' + b"9" * 5000 + b"}",
        "a list": b"[]",
        "a pipe": os.mkfifo,
        "a folder": Path.mkdir,
        "a link to itself": lambda path: path.symlink_to(path),
        "a link to zeros": lambda path: path.symlink_to("/dev/zero"),
        "a raw escape": good.replace(b"Xeon", "Xe\x9bon\u202e".encode()),
        "an escaped one": good.replace(b"Xeon", b"Xe\\u001b[31mon\\b\\ud83d\\ude00\\\\u001b"),
        "half a character": good.replace(b"Xeon", b"\\ud800"),
    }


def _judged(results: Results, path: Path, change: bytes | Callable[[Path], object]) -> str | None:
    with changed_file(path, change):
        return _judged_report(results)


def _judged_calibration(results: Results, path: Path, changed: bytes) -> str | None:
    with changed_file(path, changed):
        return judged_call(["calibrate", "--table", "--results", str(results.root)])


def _judged_report(results: Results) -> str | None:
    terminal = io.StringIO()
    status = report_command(
        results, ReportOptions(figures=False), Console(file=terminal, width=100, color_system=None), passed
    )
    if status:
        return f"exit status {status}: {terminal.getvalue()[:300]!r}"
    if why := judged_text("the terminal", terminal.getvalue()):
        return why
    for file in [*results.report.glob("*.html"), *results.report.glob("*.csv"), *results.report.rglob("*.tex")]:
        text = file.read_text(encoding="utf-8")
        text = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL) if file.suffix == ".html" else text
        if why := judged_text(file.name, text):
            return why
        text = re.sub(r"^%.*", "", text, flags=re.MULTILINE) if file.suffix == ".tex" else text  # comments of LaTeX
        if found := [words for words in EXECUTED[file.suffix] if words in text]:
            return f"{file.name} has {found[0]}"
        if file.suffix == ".csv":
            for line in csv.reader(text.splitlines()):
                if odd := [cell for cell in line if cell[:1] in tuple("=+-@") and not _is_number(cell)]:
                    return f"{file.name} has the cell {odd[0]!r}"
    return None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
