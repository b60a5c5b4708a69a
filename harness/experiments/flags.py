"""The flags that narrow what is measured; main.py and both runners' run.py have the same.

Standard library only, so that main.py starts fast.
"""

import argparse
import re
from collections.abc import Callable

from harness.printable import is_one_line, shortened

LONGEST_PAIR = 200
BATCHES = ("global", "per_device")
PAIRING_WORDS = (
    "; or pairing=together (the processes of both frameworks of a cell run one after the other), interleaved (two at "
    "once, which take turns, block by block) or auto (interleaved on a CPU, else together)"
)


def add_narrowing_flags(add: Callable[..., object], *, settings: bool = True, pairing: bool = False) -> None:
    """
    Args:
        add: adds one flag, as argparse's add_argument; it may add other spellings.
        settings: whether `--set` is among them.
        pairing: whether `--set` also takes the pairing.
    """

    def repeatable(flag: str, kind: Callable[[str], object], words: str, metavar: str = "NAME") -> None:
        add(flag, action="append", type=kind, metavar=metavar, help=words)

    repeatable("--model", name, "only this model; repeatable")
    repeatable(
        "--batch_size",
        batch_size,
        "only this batch size, over all devices, also one that experiments.yaml does not have; repeatable",
        "N",
    )
    add(
        "--devices",
        type=device_counts,
        metavar="N,N",
        help="on so many GPUs each, such as 1,2,4,8: the use case on several devices, or for 1 the one on one device; "
        "as many nodes as gpus.NAME.per_node asks for",
    )
    add(
        "--batch",
        choices=BATCHES,
        metavar="KIND",
        help="the batch sizes of the use case on one device, or those of --batch_size: in all (global, strong scaling; "
        "with --devices the default), or on each device (per_device, weak scaling)",
    )
    repeatable("--precision", name, "only this precision, also one that experiments.yaml does not have; repeatable")
    repeatable(
        "--formulation",
        name,
        "only this way of writing the work down, such as vmap, also one that experiments.yaml does not have; "
        "repeatable",
    )
    repeatable(
        "--run",
        name,
        "only this way of running it, such as jit or compiled_graph, also one that experiments.yaml does not "
        "have; repeatable. A framework that has none of what is named runs its headline mode",
    )
    repeatable(
        "--execution_mode",
        name,
        "a formulation and a run in one word, such as vmap.compiled_graph; repeatable",
    )
    repeatable(
        "--option",
        name_and_value,
        "only this value of an option of the use case, such as output=full or models=8; repeatable",
        "NAME=VALUE",
    )
    if settings:
        repeatable(
            "--set",
            name_and_value,
            "another value of a setting of the use case, of `measurement` or of a benchmark's sizes, such as "
            f"epochs=2, replicates=4 or image_size=64{PAIRING_WORDS if pairing else ''}; repeatable",
            "NAME=VALUE",
        )


def name(text: str) -> str:
    """Of a GPU, benchmark, framework, model or mode."""
    if not text or not is_one_line(text):
        raise argparse.ArgumentTypeError(f"{shortened(text) or repr(text)}: a name, such as those in experiments.yaml")
    return text


def batch_size(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,9}", text):
        raise argparse.ArgumentTypeError(f"{shortened(text) or repr(text)}: a number of samples, such as 64")
    return int(text)


def device_counts(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"0*[1-9][0-9]{0,4}(,0*[1-9][0-9]{0,4})*", text):
        raise argparse.ArgumentTypeError(f"{shortened(text) or repr(text)}: numbers of devices, such as 1,2,4,8")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def name_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value) or not is_one_line(text) or len(text) > LONGEST_PAIR:
        shown = shortened(text) or repr(text)
        raise argparse.ArgumentTypeError(f"{shown}: a name and a value are needed, such as output=full")
    return key, value
