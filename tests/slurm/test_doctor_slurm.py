"""`main.py doctor` against a real Slurm: two nodes with two GPUs of the type a100 each; and each profile of clusters/
against one that is configured like its cluster. None has accounting."""

import pytest

from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.experiments.profile import profile_of
from harness.paths import REPOSITORY
from pipeline.doctor import exit_status
from pipeline.doctor_slurm import examine_slurm
from pipeline.finding import Finding
from tests.slurm.cluster import Cluster, Site, running_cluster

EXPERIMENTS = REPOSITORY / "experiments.yaml"
UNAVAILABLE = "Requested node configuration is not available"


def a_config(gpu: str, partition: str | None, **cluster: int) -> Config:
    content = load_config(EXPERIMENTS).model_dump(exclude_unset=True)
    content["cluster"] |= {"partition": partition, "cpus_per_task": 1} | cluster
    content["matrix"] |= {"gpus": [gpu], "exclude": []}
    return Config.model_validate(content)


def found_by(config: Config) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine_slurm(config)}


def test_a_cluster_that_fits_and_configurations_for_another(slurm: Cluster) -> None:
    """With whole nodes, what is tried is the script of a node: three of four GPUs for the eleven cells of one."""
    findings = found_by(a_config("a100", "main"))
    assert {finding.verdict for finding in findings.values()} == {"ok"}
    assert findings["slurm"].found.startswith("slurm-wlm 2")
    assert findings["profile"].found == "none; Slurm calls this cluster test"
    assert findings["slurm GPUs"].found == "in one node: 2 x a100"
    assert findings["slurm scripts"].found == "sbatch --test-only accepts all 19, which ask for 2 different things"

    config = a_config("a100", "main", whole_nodes=True)
    gpus = config.gpus | {"a100": config.gpus["a100"].model_copy(update={"per_node": 4})}
    found = found_by(config.model_copy(update={"gpus": gpus}))["slurm scripts"].found
    assert f"{UNAVAILABLE} (a100/node_1 and 2 more)" in found

    other_gpu, other_partition = found_by(a_config("h100", "main")), found_by(a_config("a100", "mian"))
    for findings, words, fix in (
        (other_gpu, UNAVAILABLE, "Look at cluster.constraint, gpus.h100.gres, "),
        (other_partition, "Invalid partition name specified", "Look at cluster.partition in experiments.yaml (part"),
    ):
        assert exit_status(findings.values()) == 1
        assert words in findings["slurm scripts"].found and findings["slurm scripts"].fix.startswith(fix)
    assert "Set gpus.h100.gres in experiments.yaml (valid: a100" in other_gpu["slurm GPUs"].fix


FOUR = "File=/dev/null,/dev/zero,/dev/full,/dev/random"
PROFILES: dict[Site, list[str]] = {
    Site(
        name="apptainer-offline",
        nodes=("CPUs=32 RealMemory=256000 Gres=gpu:a100:4",) * 2,
        gpus=f"Type=a100 {FOUR}",
        partitions="PartitionName=gpu Default=YES DefMemPerCPU=2000 MaxTime=1-0\n",
        select="CR_Core_Memory",
    ): ["memory"],
    Site(
        name="pyxis-whole-nodes",
        nodes=("CPUs=112 RealMemory=2000000",) * 2,
        gpus=None,
        partitions="PartitionName=batch Default=YES OverSubscribe=EXCLUSIVE MaxTime=240\n",
        select="CR_Core_Memory",
    ): ["slurm GPUs", "time limit", "slurm scripts"],
    Site(
        name="modules-features",
        nodes=tuple(f"CPUs=64 RealMemory=256000 Gres=gpu:4 Feature={kind}" for kind in ("a100", "h100")),
        gpus=FOUR,
        partitions="PartitionName=guest Default=YES MaxTime=60 PriorityTier=1 PreemptMode=CANCEL\n"
        "PartitionName=owner PriorityTier=10 PreemptMode=OFF\n",
        select="CR_Core_Memory",
    ): ["slurm GPUs", "time limit", "preemption", "slurm scripts"],
}
"""And what is said there to an experiments.yaml that asks for a typed a100, 480 minutes and no memory."""


@pytest.mark.parametrize(("site", "wrong_elsewhere"), PROFILES.items(), ids=[site.name for site in PROFILES])
def test_a_profile_on_its_cluster(
    slurm: Cluster, site: Site, wrong_elsewhere: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by Slurm's name, and Slurm takes its scripts."""
    with running_cluster(site) as cluster:
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        config = load_config(EXPERIMENTS, profile_of(None))
        assert config.profile == site.name
        findings = found_by(config)
        elsewhere = found_by(a_config("a100", None, cpus_per_task=4, time_limit_minutes=480))
    # 11 of the 19 cells are of one GPU: on two nodes of eight where a node is shared.
    accepted = f"accepts all {10 if config.cluster.whole_nodes else 19}, which ask for 2 different things"
    assert findings["slurm scripts"].found == f"sbatch --test-only {accepted}"
    assert exit_status(findings.values()) == 0
    assert [name for name, one in elsewhere.items() if one.verdict != "ok"] == wrong_elsewhere
    assert exit_status(elsewhere.values()) == int("slurm scripts" in wrong_elsewhere)
    if site.name == "modules-features":
        assert findings["preemption"].fix == "After a preemption the same command goes on where it was."
        assert elsewhere["time limit"].found.startswith("guest allows 60 min, and 480 are asked for")
