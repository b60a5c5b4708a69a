"""The flags that narrow what is measured; main.py and both runners' run.py have the same.

Standard library only, so that main.py starts fast.
"""

import argparse
from collections.abc import Callable


def add_narrowing_flags(add: Callable[..., object], *, settings: bool = True) -> None:
    """
    Args:
        add: adds one flag, as argparse's add_argument; it may add other spellings.
        settings: whether `--set` is among them.
    """
    add("--model", action="append", metavar="NAME", help="only this model; repeatable")
    add(
        "--batch_size",
        action="append",
        type=batch_size,
        metavar="N",
        help="only this batch size, over all devices, also one that experiments.yaml does not have; repeatable",
    )
    add(
        "--precision",
        action="append",
        metavar="NAME",
        help="only this precision, also one that experiments.yaml does not have; repeatable",
    )
    add(
        "--execution_mode",
        action="append",
        metavar="NAME",
        help="only this execution mode, also one that experiments.yaml does not have; repeatable. A mode belongs to a "
        "framework; one for which none is named runs its headline mode",
    )
    add(
        "--option",
        action="append",
        type=name_and_value,
        metavar="NAME=VALUE",
        help="only this value of an option of the use case, such as output=full or models=8; repeatable",
    )
    if settings:
        add(
            "--set",
            action="append",
            type=name_and_value,
            metavar="NAME=VALUE",
            help="another value of a setting of the use case, of `measurement` or of a benchmark's sizes, such as "
            "epochs=2, replicates=5 or image_size=64; repeatable",
        )


def batch_size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number of samples, such as 64")
    return int(text)


def name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text}: a name and a value are needed, such as output=full")
    return name, value
