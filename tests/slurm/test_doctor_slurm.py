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


def a_config(gpu: str, partition: str | None, **cluster: int) -> Config:
    content = load_config(EXPERIMENTS).model_dump(exclude_unset=True)
    content["cluster"] |= {"partition": partition, "cpus_per_task": 1} | cluster
    content["matrix"] |= {"gpus": [gpu], "exclude": []}
    return Config.model_validate(content)


def found_by(config: Config) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine_slurm(config)}


def test_a_cluster_that_fits(slurm: Cluster) -> None:
    findings = found_by(a_config("a100", "main"))
    assert {finding.verdict for finding in findings.values()} == {"ok"}
    assert findings["slurm"].found.startswith("slurm-wlm 2")
    assert findings["profile"].found == "none; Slurm calls this cluster test"
    assert findings["slurm GPUs"].found == "in one node: 2 x a100"
    assert findings["slurm scripts"].found == "sbatch --test-only accepts all 19, which ask for 2 different things"


@pytest.mark.parametrize(
    ("per_node", "found"),
    [
        (2, "sbatch --test-only accepts all 14, which ask for 2 different things"),
        (4, "Requested node configuration is not available (a100/node_1 and 2 more)"),
        (None, "cluster.whole_nodes in experiments.yaml: how many GPUs has a node? Set gpus.a100.per_node"),
    ],
)
def test_whole_nodes(slurm: Cluster, per_node: int | None, found: str) -> None:
    """What is tried is the script of a node, of which eleven cells of one GPU need six, or of four GPUs three."""
    config = a_config("a100", "main", whole_nodes=True)
    gpus = config.gpus | {"a100": config.gpus["a100"].model_copy(update={"per_node": per_node})}
    assert found in found_by(config.model_copy(update={"gpus": gpus}))["slurm scripts"].found


@pytest.mark.parametrize(
    ("gpu", "partition", "cpus", "words", "fix"),
    [
        (
            "h100",
            "main",
            1,
            "Requested node configuration is not available",
            "Look at cluster.constraint, gpus.h100.gres, ",
        ),
        ("a100", "mian", 1, "Invalid partition name specified", "Look at cluster.partition in experiments.yaml (part"),
        (
            "a100",
            "main",
            9,
            "Requested node configuration is not available",
            "Look at cluster.constraint, gpus.a100.gres, ",
        ),
    ],
)
def test_a_configuration_for_another_cluster(
    slurm: Cluster, gpu: str, partition: str, cpus: int, words: str, fix: str
) -> None:
    findings = found_by(a_config(gpu, partition, cpus_per_task=cpus))
    assert exit_status(findings.values()) == 1
    assert words in findings["slurm scripts"].found and findings["slurm scripts"].fix.startswith(fix)
    if gpu == "h100":
        assert "Set gpus.h100.gres in experiments.yaml (valid: a100" in findings["slurm GPUs"].fix


SITES = [
    Site(
        name="apptainer-offline",
        nodes=("CPUs=32 RealMemory=256000 Gres=gpu:a100:4",) * 2,
        gpus="Type=a100 File=/dev/null,/dev/zero,/dev/full,/dev/random",
        partitions="PartitionName=gpu Default=YES DefMemPerCPU=2000 MaxTime=1-0\n",
        select="CR_Core_Memory",
    ),
    Site(
        name="pyxis-whole-nodes",
        nodes=("CPUs=112 RealMemory=2000000",) * 2,
        gpus=None,
        partitions="PartitionName=batch Default=YES OverSubscribe=EXCLUSIVE MaxTime=240\n",
        select="CR_Core_Memory",
    ),
    Site(
        name="modules-features",
        nodes=tuple(f"CPUs=64 RealMemory=256000 Gres=gpu:4 Feature={kind}" for kind in ("a100", "h100")),
        gpus="File=/dev/null,/dev/zero,/dev/full,/dev/random",
        partitions="PartitionName=guest Default=YES MaxTime=60 PriorityTier=1 PreemptMode=CANCEL\n"
        "PartitionName=owner PriorityTier=10 PreemptMode=OFF\n",
        select="CR_Core_Memory",
    ),
]


WRONG_ELSEWHERE: dict[str, list[str]] = {
    "apptainer-offline": ["memory"],
    "pyxis-whole-nodes": ["slurm GPUs", "time limit", "slurm scripts"],
    "modules-features": ["slurm GPUs", "time limit", "preemption", "slurm scripts"],
}
"""What is said to an experiments.yaml that asks for a typed a100, 480 minutes and no memory."""


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
def test_a_profile_on_its_cluster(slurm: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by Slurm's name, and Slurm takes its scripts."""
    with running_cluster(site) as cluster:
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        config = load_config(EXPERIMENTS, profile_of(None))
        assert config.profile == site.name
        findings = found_by(config)
        elsewhere = found_by(a_config("a100", None, cpus_per_task=4, time_limit_minutes=480))
    # 11 of the 19 cells are of one GPU: on two nodes of eight where a node is shared.
    jobs = 10 if config.cluster.whole_nodes else 19
    said = f"sbatch --test-only accepts all {jobs}, which ask for 2 different things"
    assert findings["slurm scripts"].found == said
    assert exit_status(findings.values()) == 0
    assert [name for name, one in elsewhere.items() if one.verdict != "ok"] == WRONG_ELSEWHERE[site.name]
    assert exit_status(elsewhere.values()) == int("slurm scripts" in WRONG_ELSEWHERE[site.name])
    if site.name == "modules-features":
        assert findings["preemption"].fix == "After a preemption the same command goes on where it was."
        assert elsewhere["time limit"].found.startswith("guest allows 60 min, and 480 are asked for")
