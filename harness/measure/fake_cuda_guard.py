"""The guard against the fake CUDA of tests/fake_cuda, whose kernels compute nothing: no measurement is made on it."""

import ctypes
import os

from harness.errors import ProjectError

SYMBOL = "fake_cuda_card"
"""Function that every library of the fake exports."""
LIBRARIES = (None, "libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries that are searched for it; None stands for those that were preloaded."""


def require_real_cuda() -> None:
    """Raise ProjectError if this process has loaded the fake CUDA."""
    for library in LIBRARIES:
        try:
            loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:  # not loaded
            continue
        if hasattr(loaded, SYMBOL):
            raise ProjectError(
                f"{library or 'a preloaded library'} is the fake CUDA of tests/fake_cuda: nothing is measured on it. "
                f"Remove it from LD_PRELOAD and LD_LIBRARY_PATH."
            )
