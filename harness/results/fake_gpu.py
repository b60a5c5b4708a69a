"""A fake GPU (harness/fake_gpu) computes nothing and takes no time of its own, so nothing that it leaves may ever be
taken for a measurement.

Where one is found, a job refuses to begin. Tests try the whole project on it all the same: in a results folder that has
the file `Results.fake_gpu`, which takes nothing else. Its records say so in their environment. They are read in that
folder alone, and whatever is reported of it begins with HEADLINE.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.paths import Results

HEADLINE = "made on a fake GPU: no number here is a measurement"
KEY = "fake_gpu"
"""In a record's environment."""
LEFT_OUT = {
    "check": "the step is compared with no reference",
    "is_finite": "outputs may be anything",
    "losses": "all are 0",
    "evaluate": "the test set is gone through; loss and metrics are 0",
    "answers": "the test set is gone through; all labels are 0, without a metric",
    "parity": "no numbers for the parity gate",
    "gather": "what several ranks agree on goes through the store by which they have met",
}
"""Of a measurement on a fake, and what is there instead (torch_runner/fake_gpu.py)."""
VARIABLE = "FAKE_CUDA_CARD"
SYMBOL = "fake_cuda_card"
"""What each fake library exports, whichever it stands for."""
LIBRARIES = ("libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1")


def found_fakes() -> list[str]:
    """What shows that this process's GPU is a fake one; empty where nothing does.

    The variable may be gone and the libraries loaded, or not loaded yet.
    """
    found = [f"{VARIABLE} is set"] if VARIABLE in os.environ else []
    if _has_symbol(None):
        found.append("a fake CUDA is preloaded")
    return found + [f"{name} is a fake" for name in LIBRARIES if _has_symbol(name)]


def _has_symbol(library: str | None) -> bool:
    """Of one that is loaded already; None: of all that the program itself could call."""
    try:
        loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return hasattr(loaded, SYMBOL)


def is_of_a_fake(environment: Mapping[str, Any]) -> bool:
    """`environment`: of a record."""
    return environment.get(KEY) is not None


def is_for_fakes(record: Path) -> bool:
    """Whether a record lies in a results folder that takes those of fakes."""
    return Results.of_record(record).fake_gpu.is_file()


def require_place(results: Results, found: list[str]) -> None:
    """Raises ConfigError for a fake GPU in a folder of measurements, and for a measurement in a folder of fakes.

    Args:
        found: as `found_fakes` has it.
    """
    is_marked = results.fake_gpu.is_file()
    if found and not is_marked:
        raise ConfigError(
            f"this GPU is a fake ({'; '.join(found)}), and no number made on it would be a measurement. Unset "
            f"{VARIABLE}, and take the fake libraries out of LD_PRELOAD and LD_LIBRARY_PATH."
        )
    if is_marked and not found:
        raise ConfigError(
            f"{results.root} is for what tests make on a fake GPU ({results.fake_gpu.name} lies in it), and this one "
            f"is none. Choose another folder with --results DIR."
        )
