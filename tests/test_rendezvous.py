"""How the tasks of a Slurm step know who they are; tests/slurm has the real thing."""

import socket
from pathlib import Path

import pytest

from harness import rendezvous
from harness.errors import ProjectError
from harness.rendezvous import PORTS, PORTS_TO_TRY, free_port, slurm_rendezvous

STEP = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURMD_NODENAME": "gpu08",
}


@pytest.fixture
def scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {("hostnames", "gpu[07-08]"): "gpu07\ngpu08\n", ("node", "gpu07"): "NodeName=gpu07\n NodeAddr=10.0.0.7\n"}
    monkeypatch.setattr(rendezvous, "_scontrol", lambda *what: answers[what])


@pytest.mark.usefixtures("scontrol")
def test_task_finds_the_first_node_by_name_and_by_slurms_address() -> None:
    found = slurm_rendezvous(STEP)
    assert found is not None
    assert (found.rank, found.size, found.local_rank, found.node) == (3, 4, 1, "gpu08")
    assert found.hosts == ("gpu07", "10.0.0.7")


@pytest.mark.usefixtures("scontrol")
def test_all_tasks_of_a_step_have_the_same_ports_and_secret_and_no_other_step_has() -> None:
    mine, theirs = slurm_rendezvous(STEP), slurm_rendezvous(STEP | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert mine is not None
    assert theirs is not None
    assert (mine.ports, mine.secret) == (theirs.ports, theirs.secret)
    assert len(set(mine.ports)) == PORTS_TO_TRY
    assert set(mine.ports) <= set(PORTS)
    for change in ({"SLURM_JOB_ID": "43"}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"}):
        other = slurm_rendezvous(STEP | change)
        assert other is not None
        assert other.secret != mine.secret
        assert other.ports != mine.ports
    drawn = [slurm_rendezvous(STEP | {"RENDEZVOUS_SECRET": secret}) for secret in ("5f1e", "5f1e", "a0b1")]
    assert [one.secret for one in drawn if one] == ["42.0.0.5f1e", "42.0.0.5f1e", "42.0.0.a0b1"]
    assert {one.ports for one in drawn if one} == {mine.ports}


def test_free_port_is_no_port_of_outgoing_connections_and_nobody_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port()
    assert 1024 < port < first_ephemeral
    with socket.create_server(("", port)):
        monkeypatch.setattr(rendezvous, "PORTS", range(port, port + 1))
        monkeypatch.setattr(rendezvous, "PORTS_TO_TRY", 1)
        with pytest.raises(ProjectError, match=f"no port from {port} to {port} is free on"):
            free_port()
    assert free_port() == port


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {name: value for name, value in STEP.items() if name not in ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")},
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    ],
    ids=["no Slurm", "a bare batch script", "a step of one task"],
)
def test_no_step_of_several_tasks_is_no_rendezvous(environment: dict[str, str]) -> None:
    assert slurm_rendezvous(environment) is None
