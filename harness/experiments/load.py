"""Reads experiments.yaml, or says everything that is wrong with it: place, key, value, rule, valid names."""

from pathlib import Path

from harness.experiments.model import Config
from harness.experiments.profile import lay_profile
from harness.experiments.rules import check
from harness.experiments.source import read_source
from harness.experiments.words import read_shape


def load_config(path: Path, profile: Path | None = None) -> Config:
    """`profile`: of a cluster, laid over it. Raises ConfigError that lists every problem: first those of the shape,
    then those of the meaning."""
    source = read_source(path)
    if profile is not None:
        lay_profile(source, profile)
    config = read_shape(source, Config)
    devices = {number: source.values.get(("use_cases", number, "devices")) for number in config.use_cases}
    places = {number: f"{source.name}:{place.line}:{place.column}" for number, place in devices.items() if place}
    config = config.of_file(source.name, places, profile)
    if problems := list(check(config, source)):
        raise source.error(problems)
    return config
