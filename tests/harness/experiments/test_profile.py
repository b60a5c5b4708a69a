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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("qos: short", "qoss: short", "4:3: cluster.qoss: unknown key; valid:"),
        ("pairing: together", "measurement: {}", "2:1: measurement: a profile says where measurements run, not what"),
    ],
)
def test_a_mistake_is_named_with_the_profiles_line(old: str, new: str, message: str, clusters: Path) -> None:
    with pytest.raises(ConfigError, match=f"^clusters/here.yaml:{message}"):
        laid(SITE.replace(old, new), clusters)


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
