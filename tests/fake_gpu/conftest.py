"""The fake libraries, built once."""

import shutil
from pathlib import Path

import pytest

from harness.fake_gpu.nvml import build_nvml


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake NVML alone."""
    if shutil.which("g++") is None:
        pytest.skip("the fake NVML is compiled with g++, which is missing here")
    folder = tmp_path_factory.mktemp("fake_nvml")
    build_nvml(folder)
    return folder
