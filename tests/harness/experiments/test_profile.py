"""Cluster profiles: which file is laid over experiments.yaml, what it changes, and how its mistakes are answered."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.experiments import profile as module
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.experiments.profile import profile_of
from tests.made.config_text import MINIMAL

SITE = """\
data_dir: /scratch/data
pairing: together
cluster:
  qos: short
  time_limit_minutes:
  frameworks: {jax: {setup: [module load jax]}}
gpus:
  a100: {gres: untyped, constraint: a100}
  l40: {}
matrix: {gpus: [a100, l40]}
wandb: {mode: offline}
"""


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of profiles, and no Slurm."""
    folder = tmp_path / "clusters"
    folder.mkdir()
    monkeypatch.setattr(module, "CLUSTERS", folder)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


def laid(text: str, clusters: Path) -> Config:
    (clusters / "here.yaml").write_text(text)
    path = clusters.parent / "experiments.yaml"
    path.write_text(MINIMAL)
    return load_config(path, profile_of("here"))


def test_a_profile_is_laid_over_key_by_key(clusters: Path) -> None:
    config = laid(SITE, clusters)
    assert (config.data_dir, config.pairing, config.wandb.mode) == ("/scratch/data", "together", "offline")
    assert (config.cluster.qos, config.cluster.time_limit_minutes) == ("short", None)
    jax = config.cluster.frameworks["jax"]
    assert (jax.python, jax.setup) == ("/opt/jax/bin/python", ("module load jax",))
    a100 = config.gpus["a100"]
    assert (a100.per_node, a100.gres, a100.constraint) == (4, "untyped", "a100")
    assert list(config.gpus) == ["any", "a100", "l40"] and config.matrix.gpus == ("a100", "l40")
    assert config.matrix.benchmarks == ("mnist",)
    assert (config.profile, config.site_file) == ("here", "clusters/here.yaml")


# Of SITE, what is replaced -> by what, and below it the line that must come back.
MISTAKES = """
? qos: short -> qoss: short
here.yaml:4:3: cluster.qoss: unknown key; valid:
? [a100, l40] -> [a100, l4]
here.yaml:10:23: matrix.gpus[1]: l4: not defined; valid: any, a100, l40; did you mean l40?
? data_dir: /scratch/data -> measurement: {seed: 1}
here.yaml:1:1: measurement: a profile says where measurements run, not what they are; valid: data_dir,
? gpus: [a100, l40] -> use_cases: [3]
here.yaml:10:10: matrix.use_cases: a profile says where measurements run, not what they are; valid: gpus
? pairing: together -> pairing: [
here.yaml:4:6: not valid YAML:
"""


@pytest.mark.parametrize("mistake", MISTAKES.split("\n? ")[1:], ids=lambda mistake: mistake.splitlines()[0])
def test_a_mistake_is_told_with_the_profiles_line(mistake: str, clusters: Path) -> None:
    change, expected = mistake.splitlines()
    old, new = change.split(" -> ")
    assert SITE.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        laid(SITE.replace(old, new), clusters)
    first, *_ = str(caught.value).splitlines()
    assert first.startswith(f"clusters/{expected}")


def test_which_profile(clusters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = clusters.parent / "asked"
    for name, text in {"sbatch": "", "scontrol": f"touch {asked}; echo 'ClusterName             = alps'"}.items():
        (clusters.parent / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
        (clusters.parent / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(clusters.parent))
    assert profile_of(None) is None and not asked.exists(), "without profiles Slurm is not asked"
    (clusters / "vista.yaml").write_text("cluster: {}\n")
    assert profile_of(None) is None and asked.exists()
    (clusters / "alps.yaml").write_text("cluster: {}\n")
    assert profile_of(None) == clusters / "alps.yaml"
    assert profile_of("vista") == clusters / "vista.yaml"
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "vista")
    assert profile_of(None) == clusters / "vista.yaml"
    with pytest.raises(ConfigError, match="^--cluster vist: there is no clusters/vist.yaml; valid: alps, vista;"):
        profile_of("vist")
