"""Reads experiments.yaml, or says everything that is wrong with it: place, key, value, rule, valid names."""

from pathlib import Path

from harness.catalog import read_catalog
from harness.config_checks import check
from harness.config_model import (
    BenchmarkConfig,
    ClusterConfig,
    Config,
    FrameworkConfig,
    GpuConfig,
    UseCaseConfig,
)
from harness.config_shape import read_shape
from harness.paths import REPOSITORY
from harness.yaml_source import read_source

__all__ = [
    "BenchmarkConfig",
    "ClusterConfig",
    "Config",
    "FrameworkConfig",
    "GpuConfig",
    "UseCaseConfig",
    "load_config",
]


def load_config(path: Path, *, repository: Path = REPOSITORY) -> Config:
    """Raises ConfigError that lists every problem: first those of the shape, then those of the meaning.

    `repository` is where the runners lie; the names in the file are checked against theirs.
    """
    source = read_source(path)
    config = read_shape(source, Config)
    if problems := list(check(config, source, read_catalog(repository))):
        raise source.error(problems)
    return config
