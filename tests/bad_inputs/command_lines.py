"""Command lines: each flag of each command with odd values, odd words, and wrong places for what is written."""

import os
import random
from functools import partial
from pathlib import Path

from harness.paths import Results
from main import COMMAND_PARSERS
from tests.bad_inputs.campaign import ODD_TEXTS, Case, Cases, judged_call
from tests.bad_inputs.yaml_files import EVERY_KEY
from tests.made.report_records import record, save

NEVER_A_WORD = ("", "a\nb", "a\x00b", "\x1b[31m", "\u202eevil", "\udcff")
"""No name, no number and no path."""


def cases(draw: random.Random, folder: Path) -> Cases:
    results, config = folder / "results", folder / "experiments.yaml"
    config.write_text(EVERY_KEY)
    for framework, mode in (("jax", "step.jit"), ("torch", "step.eager")):
        save(record(framework, mode), Results(root=results))
    usual = {
        "": ["--dry-run", "--config", str(config), "--results", str(results)],
        "calibrate": ["--dry-run", "--config", str(config), "--results", str(results)],
        "status": ["--results", str(results)],
        "report": ["--no-figures", "--results", str(results)],
    }
    for command, end in usual.items():
        first = [command] if command else []
        parser, _ = COMMAND_PARSERS[command]
        for action in parser()._actions:
            for flag in action.option_strings[:1]:
                if flag in ("-h", "--update-readme", "--publish", "--watch", "--wait"):
                    continue
                if action.nargs == 0:
                    yield _case([*first, f"{flag}=x", *end])
                    continue
                for value in NEVER_A_WORD:
                    yield _case([*first, *end, f"{flag}={value}"])
                for value in draw.sample([text for text in ODD_TEXTS if text not in NEVER_A_WORD], 8):
                    if flag == "--results":
                        value = str(folder / "written" / value.replace("\x00", ""))
                    yield _case([*first, *end, f"{flag}={value}"], refused=False)
        for word in draw.sample(ODD_TEXTS, 10):
            yield _case([word, *first, *end])
            yield _case([*first, *end, word])
        yield _case([*first, f"--{'x' * 300}", *end])
    for number in ("0_1", "-1", "1.0", "1e3", "٣", "３", "9" * 5000, "0x1", " 1", "1 ", "+1"):
        yield _case(["--use_case", number, *usual[""]])
        yield _case(["calibrate", "--rounds", number, *usual["calibrate"]])
        yield _case(["calibrate", "--batch_size", number, *usual["calibrate"]])
    yield _case(["calibrate", "--rounds", "1000000000", *usual["calibrate"]])
    yield from _places(folder)


def _places(folder: Path) -> Cases:
    """Folders that are none."""
    (folder / "notes").write_text("mine")
    (folder / "link").symlink_to("link")
    os.mkfifo(folder / "fifo")
    for command in ("status", "report"):
        for name in ("notes", "link", "fifo", "nowhere", "x" * 300, "notes/below"):
            yield _case([command, "--results", str(folder / name)])


def _case(words: list[str], *, refused: bool = True) -> Case:
    shown = " ".join(word[:60] for word in words)
    return Case(repr(shown), partial(judged_call, words, refused=refused))
