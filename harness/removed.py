"""Commands, flags and settings that no longer exist, each with what to do instead.

Standard library only, so that main.py starts fast.
"""

from collections.abc import Container, Iterable, Sequence

REMOVED = {
    "cancel": "Use `python main.py status --cancel`.",
    "ceilings": "Each job measures them once for its device, and `python main.py report` shows them.",
    "compile": "Measure on the GPU itself; `make gpu-compile` tests the compiled programs without one.",
    "gpu-check": "Use `make gpu-check`.",
    "pack": "Archive a results folder with tar; unpack it before `python main.py report`.",
    "site": "Use `python main.py report`: its page is one HTML file that needs no server.",
    "wandb": "Upload offline runs with `wandb sync` in an empty folder, see docs/clusters.md; the workspace that W&B "
    "makes for the project shows both frameworks.",
    "--details": "The page of `python main.py report` contains the tables of every execution mode.",
    "--fleet": "Measure on each node with its own `--results DIR`, then use `python main.py report --results DIR "
    "--baseline OTHER_DIR`.",
    "--images_per_class": "Measure on the whole data set, or with `--data sample`.",
    "--no-baseline": "A run on several devices also measures on one device, which the scaling efficiency needs.",
    "--no-weights": "The weights are downloaded with the data; the setting `weights: drawn` ignores them.",
    "--pairing": "Use `--set pairing=together`, `--set pairing=interleaved` or `--set pairing=auto`.",
    "--png": "Convert the figures, which are SVG and PDF files.",
    "--publish": "Use `python main.py report --publish NAME`; a calibration is not published.",
    "--spread": "Each benchmark and use case is one job; name fewer variants to shorten it, such as with --model.",
    "--trace": "Use the profiler of the framework; the page of `python main.py report` explains each traced step.",
    "--update-docs": "`python main.py calibrate --table` prints the table of a results folder.",
    "--verbose": "`--dry-run` writes the scripts to slurm_scripts/; their headers contain the options of sbatch.",
    "--why": "experiments.yaml names what is measured; `--dry-run` lists the chosen models, modes and precisions.",
    "cluster.stage_environment": "Use a container image, see docs/clusters.md.",
    "use_cases.like": "Write all keys of the use case, as experiments.yaml does for use cases 2 and 4.",
}
"""Sentences by name: a command, a flag with its dashes, or a setting of experiments.yaml with the key above it."""


def answer(word: str) -> str | None:
    """Return what to do instead of a removed command or flag, or None for any other word of a command line."""
    name = word.partition("=")[0]
    for removed, instead in REMOVED.items():
        if "." not in removed and removed.replace("_", "-") == name.replace("_", "-"):
            return f"{name}: this {'flag' if name.startswith('-') else 'command'} was removed. {instead}"
    return None


def answers_to_flags(words: Iterable[str], known: Container[str]) -> str:
    """Return the answers to all removed flags among the words, joined; empty where there is none.

    Args:
        known: flags of the parser, which are valid again or still.
    """
    flags = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return " ".join(dict.fromkeys(filter(None, map(answer, flags))))


def rule_of_key(keys: Sequence[str | int]) -> str | None:
    """Return what a message about a removed key of experiments.yaml ends with, or None for any other key.

    Args:
        keys: from the section, such as `cluster`, down to the key itself.
    """
    instead = REMOVED.get(f"{keys[0]}.{keys[-1]}")
    return f"was removed. {instead}" if instead else None
