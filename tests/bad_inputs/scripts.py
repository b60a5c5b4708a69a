"""Values that reach scripts: each must arrive as it is, on its line, and run nothing."""

import random
import shlex
import subprocess
from functools import partial
from pathlib import Path

import yaml

from harness.errors import ConfigError
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from pipeline.submission.render import render_script
from tests.bad_inputs.campaign import ODD_TEXTS, Case, Cases, judged_text, with_value
from tests.bad_inputs.yaml_files import EVERY_KEY
from tests.made.project import alone

PIECES = (*"'\";|#*~%\\ -é!<\t", "$(touch PWNED)", "`touch PWNED`", "&&", "{{ x }}")
PLACES = (
    *(("cluster", "partition"), ("cluster", "account"), ("gpus", "any", "partition"), ("gpus", "any", "constraint")),
    *(("cluster", "sbatch_options", 0), ("data_dir",)),
)
HEADERS = {"partition": "--partition=", "account": "--account=", "constraint": "--constraint="}


def cases(draw: random.Random, folder: Path) -> Cases:
    for keys in PLACES:
        made = ["".join(draw.choices(PIECES, k=draw.randrange(1, 6))) for _ in range(6)]
        for value in [*ODD_TEXTS, *made]:
            yield Case(f"{'.'.join(map(str, keys))}: {value[:60]!r}", partial(_judged, folder, keys, value))
    for _ in range(20):
        name = "".join(draw.choices([piece for piece in PIECES if piece != "\t"], k=4))
        yield Case(f"--results {name!r}", partial(_judged, folder, (), "", results=folder / name))


def _judged(folder: Path, keys: tuple[str | int, ...], value: str, results: Path | None = None) -> str | None:
    path = folder / "experiments.yaml"
    path.write_text(_text(value, keys), encoding="utf-8")
    try:
        config = load_config(path)
    except ConfigError as error:
        return judged_text("the terminal", str(error))
    return _judged_script(config, path, keys, value, results or folder / "results")


def _text(value: str, keys: tuple[str | int, ...]) -> str:
    """EVERY_KEY with the value in quotes; numbers stay numbers."""
    if not keys:
        return EVERY_KEY
    plain = yaml.load(EVERY_KEY, Loader=yaml.SafeLoader)
    changed = with_value(plain, keys, f"--comment={value}" if keys[-1] == 0 else value)
    text: str = yaml.safe_dump(changed, allow_unicode=False)
    return text.replace("1e-3", "0.001")


def _judged_script(config: Config, path: Path, keys: tuple[str | int, ...], value: str, results: Path) -> str | None:
    [pair] = expand(config, Selection(gpus=("any",), benchmarks=("mnist",), use_cases=(1,)))
    scripts = [render_script(job, config, config_path=path, results=results) for job in (pair, *map(alone, pair.jobs))]
    for text in scripts:
        if why := judged_text("the script", text):
            return why
        checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        if checked.returncode:
            return f"bash: {checked.stderr[:200]!r}"
        directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
        names = [line.split()[1].partition("=")[0] for line in directives]
        if len(set(names)) != len(names):
            return f"a directive twice: {names}"
        of_header = HEADERS.get(str(keys[-1])) if keys else None
        if of_header:
            [line] = [line for line in directives if of_header in line] or [""]
            if of_header == "--partition=" and keys[0] == "cluster":
                continue  # the GPU's own goes first, where it has one
            if (found := _as_sbatch_reads(line.partition(of_header)[2])) != value:
                return f"sbatch reads {found!r} for {value!r}"
        [run] = [line for line in text.splitlines() if line.startswith("run=(")][:1]
        words = shlex.split(run.removeprefix("run=(").removesuffix(")"))
        if not keys and str(results.absolute()) not in words:
            return f"--results became {words!r}"
    return None


def _as_sbatch_reads(text: str) -> str:
    """src/sbatch/opt.c, _get_next_opt and what it does with quotes: a backslash keeps the next character, `#` ends the
    line, quotes group."""
    found = quote = ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            found += next(letters, letter)
        elif quote:
            quote, found = ("", found) if letter == quote else (quote, found + letter)
        elif letter in "\"'":
            quote = letter
        elif letter in "# ":
            break
        else:
            found += letter
    return found
