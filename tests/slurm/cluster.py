"""A real Slurm on this one machine: a controller and two nodes of two fake A100s each, or those of another `Site`,
without an accounting database.

Everything lives in one temporary directory with free ports and its own munge daemon, so that it disturbs neither a
Slurm that this machine may belong to nor a second test cluster. Daemons, jobs and directory go with the process that
started them, however it ends (tests/made/guardian.py).

It needs Slurm's and munge's programs, here Debian's `apt-get install slurm-wlm munge`, and a Slurm that was built with
multiple slurmd support, as Debian's is. The devices of the GPUs are /dev/null and its siblings: nothing opens them,
they only have to exist.
"""

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.made.guardian import MARK, end_all, marked_folder
from tests.made.patience import wait_until

GPU_FILES = ("/dev/null,/dev/zero", "/dev/full,/dev/random")
"""Of the first node, the second, the first again, ..."""
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")


@dataclass(frozen=True, kw_only=True)
class Site:
    """What differs from cluster to cluster."""

    name: str = "test"
    nodes: tuple[str, ...] = ("CPUs=4 RealMemory=8000 Gres=gpu:a100:2",) * 2
    gpus: str | None = "Type=a100 File={files}"
    """In gres.conf; None where Slurm counts no GPUs."""
    partitions: str = """\
PartitionName=main Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=120
PartitionName=high PriorityTier=10 PreemptMode=OFF
"""
    select: str = "CR_Core"

    @property
    def names(self) -> tuple[str, ...]:
        """`n1`, `n2`, ..."""
        return tuple(f"n{place}" for place, _ in enumerate(self.nodes, 1))


SLURM_CONF = """\
ClusterName={site.name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters={site.select}
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=60
MessageTimeout=100
TCPTimeout=30
BatchStartTimeout=120
MinJobAge=300
GresTypes=gpu
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
{nodes}
PartitionName=DEFAULT Nodes=ALL State=UP
{site.partitions}"""
"""`cred_expire`: Slurm holds a requeued job back for the life of a credential, 120 s by default; 5 s is the least."""


def missing_programs() -> list[str]:
    """The programs that are not on PATH, so that a test can say what it lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    """Daemons live in sbin, which is not on an ordinary user's PATH."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _free_ports(count: int) -> list[int]:
    """Held open together, so that no port comes twice."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Cluster:
    def __init__(self, directory: Path, site: Site) -> None:
        """Args: directory: short, because the socket's path must fit in 107 bytes."""
        self.directory, self.site = directory, site
        self.conf = directory / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def environment(self) -> dict[str, str]:
        """This process's environment, pointed at this cluster; what is started with it ends with the cluster."""
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SRUN_", "SBATCH_"))}
        return mine | {"SLURM_CONF": str(self.conf), "PATH": _path(), MARK: str(self.directory)}

    def run(self, *command: str, check: bool = True) -> str:
        """Standard output of a Slurm program. Raises CalledProcessError."""
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=check).stdout

    def start(self) -> None:
        """Raises AssertionError with the end of the logs when the nodes do not come up."""
        self._write_configuration()
        listening = self.directory / "munge.socket"
        munge = [f"--{name}-file={self.directory / f'munge.{name}'}" for name in ("key", "pid", "log", "seed")]
        self._daemon("munged", "munged", "--foreground", "--force", f"--socket={listening}", *munge)
        self._wait_until(listening.exists, "munged to listen")
        self.start_controller("-c")
        for node in self.site.names:
            self._daemon(f"slurmd-{node}", "slurmd", "-D", "-N", node)
        idle = {f"{node} idle" for node in self.site.names}
        nodes = ("sinfo", "-h", "-N", "-o", "%N %T")
        self._wait_until(lambda: set(self.run(*nodes, check=False).splitlines()) == idle, "all nodes to be idle")

    def stop_controller(self) -> None:
        """As for an update: it saves what it knows, and the nodes and the jobs go on. One that is killed may know less
        when it is back, and calls a job that runs a job that waits."""
        self._controller.terminate()
        self._controller.wait()
        self._daemons.remove(self._controller)

    def start_controller(self, *options: str) -> None:
        """Where it was, if it was stopped."""
        self._controller = self._daemon("slurmctld", "slurmctld", "-D", *options)
        self._wait_until(lambda: "is UP" in self.run("scontrol", "ping", check=False), "the controller to answer")

    def cancel_all(self) -> None:
        """Raises AssertionError when jobs do not end."""
        self.run("scancel", "--me", "--signal=KILL", check=False)
        self.run("scancel", "--me", check=False)
        self._wait_until(lambda: not self.run("squeue", "-h"), "the jobs to end")

    def stop(self) -> None:
        """Kills the daemons and all that runs in jobs."""
        end_all(self.directory)
        for daemon in self._daemons:
            daemon.wait()
        self._daemons.clear()

    def _daemon(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        """In the foreground and as our child, so that stop() ends exactly what start() began."""
        with (self.directory / f"{name}.out").open("wb") as out:
            new = subprocess.Popen(command, env=self.environment(), stdout=out, stderr=out, start_new_session=True)
        self._daemons.append(new)
        return new

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            dead = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            assert not dead, f"ended while the cluster waited for {what}: {dead}\n{self._ends_of_logs()}"
            return condition()

        wait_until(is_so, what, self._ends_of_logs)

    def _ends_of_logs(self) -> str:
        logs = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.out")])
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def _write_configuration(self) -> None:
        (self.directory / "state").mkdir()
        key = self.directory / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        controller_port, *node_ports = _free_ports(1 + len(self.site.names))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {has} State=UNKNOWN"
            for node, port, has in zip(self.site.names, node_ports, self.site.nodes, strict=True)
        )
        own = {"site": self.site, "host": host, "user": user, "directory": self.directory, "nodes": nodes}
        self.conf.write_text(SLURM_CONF.format(controller_port=controller_port, **own))
        gpus = [
            f"NodeName={node} Name=gpu {self.site.gpus.format(files=GPU_FILES[place % 2])}"
            for place, node in enumerate(self.site.names)
            if self.site.gpus and "Gres" in self.site.nodes[place]
        ]
        (self.directory / "gres.conf").write_text("\n".join(["AutoDetect=off", *gpus]) + "\n")
        # Slurm 22.05 always loads a cgroup plugin; without systemd's bus it must not ask for a scope.
        (self.directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")


@contextmanager
def running_cluster(site: Site = Site()) -> Iterator[Cluster]:
    """Started on entering; every daemon and the directory gone on leaving, also after an error."""
    cluster = Cluster(marked_folder("slurm-"), site)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.directory)
