"""`main.py doctor` against a real Slurm: two nodes with two GPUs of the type a100 each, no accounting."""

import pytest

from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.paths import REPOSITORY
from pipeline.doctor import examine_slurm
from tests.slurm.cluster import Cluster


def a_config(gpu: str, partition: str) -> Config:
    content = load_config(REPOSITORY / "experiments.yaml").model_dump(exclude_unset=True)
    content["cluster"]["partition"] = partition
    content["matrix"] |= {"gpus": [gpu], "exclude": []}
    return Config.model_validate(content)


def test_a_cluster_that_fits(slurm: Cluster) -> None:
    findings = {finding.name: finding for finding in examine_slurm(a_config("a100", "main"))}
    assert {finding.verdict for finding in findings.values()} == {"ok"}
    assert findings["slurm"].found.startswith("slurm-wlm 2")
    assert "sacct does not answer" in findings["slurm accounting"].found
    assert findings["slurm partitions"].found == "high, main"
    assert findings["slurm GPUs"].found == "in one node: 2 x a100"


def test_a_configuration_for_another_cluster(slurm: Cluster) -> None:
    findings = {finding.name: finding for finding in examine_slurm(a_config("h100", "mian"))}
    assert findings["slurm partitions"].verdict == findings["slurm GPUs"].verdict == "problem"
    assert "did you mean main?" in findings["slurm partitions"].way_out
    assert "Set gpus.h100.gres (valid: a100" in findings["slurm GPUs"].way_out


def test_a_controller_that_does_not_answer(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    away = slurm.directory / "away.conf"
    away.write_text(slurm.conf.read_text().replace("SlurmctldPort=", "SlurmctldPort=9\n#"))
    monkeypatch.setenv("SLURM_CONF", str(away))
    (finding,) = examine_slurm(a_config("a100", "main"))
    assert finding.verdict == "problem"
    assert finding.found.startswith("the controller is not up: ")
    assert "--executor local" in finding.way_out
