"""All ranks of a job, as its parent sees them: its own child is rank 0, and an agent (harness/agent.py) stands for each
other.

The agents stay for the whole job; each measurement gets a fresh child on every rank. In Slurm the agents are the step's
other tasks; elsewhere the parent starts them on this machine.
"""

import json
import os
import queue
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.agent import notice_a_dead_peer, send
from harness.child import END_TIMEOUT_S as CHILD_END_TIMEOUT_S
from harness.child import Child, CompilerCaches, Event
from harness.errors import ConfigError, ProjectError
from harness.handshake import admit
from harness.paths import REPOSITORY
from harness.plan import Cell
from harness.ranks import log_of_rank
from harness.rendezvous import SECRET_VARIABLE, Rendezvous, free_port, slurm_rendezvous
from harness.session import ChildTask
from harness.settings import Framework
from harness.world import ALONE, World

HELLO_TIMEOUT_S = 10.0
END_TIMEOUT_S = 15.0
"""For an agent to end its child or itself when it is told to; it kills, so this is for the network."""
SEND_HOME_S = 20.0

Events = queue.SimpleQueue[tuple[int, Event]]
"""Rank and event. From an agent that is gone comes `lost`, once for each measurement."""


class RankLostError(ProjectError):
    """An agent is gone for good, or a device not free: no measurement of this job can run any more."""


@dataclass(kw_only=True)
class _Agent:
    """The parent's end of one connection."""

    rank: int
    local_rank: int
    node: str
    host: str
    """By which it reached rank 0's node."""
    cpus: list[int]
    connection: socket.socket
    run: int = 0
    """Number of the measurement whose events are passed on; those of an earlier one come too late."""
    tell: Callable[[Event], None] = lambda _event: None
    lost: str | None = None
    idle: threading.Event
    """Set while it has no child."""


class Team:
    """Rank 0 alone where the cell has one device: then no socket is opened and no process started."""

    def __init__(self, framework: Framework, cell: Cell) -> None:
        """Raises ConfigError where the processes that Slurm started are not those that the cell needs."""
        self._framework: Framework = framework
        self._size = cell.devices
        self._slurm = slurm_rendezvous()
        tasks = self._slurm.size if self._slurm else 1
        if tasks != cell.devices and not (tasks == 1 and cell.nodes == 1):
            raise ConfigError(
                f"use case {cell.use_case} needs {cell.devices} tasks, one per device, on {cell.nodes} node(s), and "
                f"this step has {tasks}. In Slurm start it with srun --nodes={cell.nodes} "
                f"--ntasks-per-node={cell.devices // cell.nodes}; without Slurm nodes must be 1."
            )
        self._agents: list[_Agent] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._run = 0
        self._own_child_is_stuck = False

    @property
    def node(self) -> str:
        """Rank 0's."""
        return self._slurm.node if self._slurm else socket.gethostname()

    def gather(self, while_waiting: Callable[[], None]) -> None:
        """Until every rank's agent is here.

        Raises:
            ProjectError: some did not come in time; the message names them.
        """
        if self._size == 1:
            return
        rendezvous = self._slurm or Rendezvous(
            rank=0,
            size=self._size,
            local_rank=0,
            node=self.node,
            hosts=("127.0.0.1",),
            ports=(0,),
            secret=secrets.token_hex(16),
            patience_s=30.0,
        )
        with _listen(rendezvous) as server:
            if self._slurm is None:
                self._start_agents(rendezvous.model_copy(update={"ports": (server.getsockname()[1],)}))
            self._agents = _accept_all(server, rendezvous, while_waiting)
        for agent in self._agents:
            threading.Thread(target=_read_events, args=(agent,), daemon=True).start()

    @contextmanager
    def measuring(
        self, task: ChildTask, log: Path, *, per_node: bool = False, caches: CompilerCaches | None = None
    ) -> Iterator[tuple[Events, Sequence[World]]]:
        """A child on every rank, at work on `task`; all are ended on leaving. The log of rank 1 is `log` with `-rank1`.

        Args:
            per_node: one child for all devices of a node, instead of one for each device.
            caches: of rank 0's compilers (harness/child.py).

        Raises:
            RankLostError: an agent is gone, or a device is still in use, so nothing was started.
        """
        self._require_all()
        self._run += 1
        agents = self._first_of_each_node() if per_node else self._agents
        worlds = self._worlds(agents, per_node=per_node)
        tasks = [task.model_copy(update={"world": world}) for world in worlds]
        events: Events = queue.SimpleQueue()
        try:
            child = Child(self._framework, tasks[0], log, lambda event: events.put((0, event)), caches)
            try:
                for agent, of_agent in zip(agents, tasks[1:], strict=True):
                    self._start(agent, of_agent, log, events)
                yield events, worlds
            finally:
                self._own_child_is_stuck = not child.end()
        finally:
            self._end_children()

    def close(self) -> None:
        """Send the agents home. Never raises; an agent that this process started and that stays is killed."""
        for agent in self._agents:
            _send(agent, {"kind": "leave"})
            with suppress(OSError):
                agent.connection.shutdown(socket.SHUT_WR)
        for process in self._started:
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for agent in self._agents:
            agent.connection.close()

    def _start_agents(self, rendezvous: Rendezvous) -> None:
        for rank in range(1, self._size):
            process = subprocess.Popen(
                [sys.executable, "-u", f"{self._framework}_runner/run.py", "--agent"],
                stdin=subprocess.PIPE,
                cwd=REPOSITORY,
                start_new_session=True,  # Ctrl-C means the parent
            )
            self._started.append(process)
            assert process.stdin is not None
            mine = rendezvous.model_copy(update={"rank": rank, "local_rank": rank})
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(mine.model_dump_json().encode())

    def _first_of_each_node(self) -> list[_Agent]:
        """Of the nodes besides this one."""
        first: dict[str, _Agent] = {}
        for agent in sorted(self._agents, key=lambda agent: agent.local_rank):
            first.setdefault(agent.node, agent)
        first.pop(self.node, None)
        return sorted(first.values(), key=lambda agent: agent.rank)

    def _worlds(self, agents: Sequence[_Agent], *, per_node: bool) -> Sequence[World]:
        """Of this process and these agents."""
        if self._size == 1:
            return (ALONE,)
        elsewhere = [agent for agent in agents if agent.node != self.node]
        coordinator = f"{(elsewhere or agents)[0].host}:{free_port()}" if agents else None
        local_rank = self._slurm.local_rank if self._slurm else 0
        places = [(local_rank, self.node), *((agent.local_rank, agent.node) for agent in agents)]
        return [
            World(
                rank=rank,
                size=len(places),
                devices_per_rank=self._size // len(places),
                local_rank=local_rank,
                node=node,
                coordinator=coordinator,
                cpus=self._cpus_of_node(node) if per_node else (),
            )
            for rank, (local_rank, node) in enumerate(places)
        ]

    def _cpus_of_node(self, node: str) -> tuple[int, ...]:
        """Of all this job's tasks there: Slurm gives each task CPUs of its own."""
        cpus = {cpu for agent in self._agents if agent.node == node for cpu in agent.cpus}
        return tuple(sorted(cpus | os.sched_getaffinity(0) if node == self.node else cpus))

    def _start(self, agent: _Agent, task: ChildTask, log: Path, events: Events) -> None:
        rank = task.world.rank
        agent.tell = lambda event: events.put((rank, event))
        agent.run = self._run
        agent.idle.clear()
        content = {"run": self._run, "task": task.model_dump(mode="json"), "log": str(log_of_rank(log, rank))}
        _send(agent, {"kind": "run", "content": content})
        if agent.lost:  # since before `tell` was set
            agent.tell(_lost(agent.lost))

    def _end_children(self) -> None:
        """Returns when no rank has a child any more, so that the next measurement has the devices to itself."""
        for agent in self._agents:
            _send(agent, {"kind": "stop"})
        deadline = time.monotonic() + END_TIMEOUT_S
        for agent in self._agents:
            if agent.lost is None and not agent.idle.wait(max(0.0, deadline - time.monotonic())):
                agent.lost = f"it did not end its child within {END_TIMEOUT_S:g} s"

    def _require_all(self) -> None:
        if self._own_child_is_stuck:
            raise RankLostError(
                f"the last measurement's process on {self.node} was killed and is still there after "
                f"{CHILD_END_TIMEOUT_S:g} s: it hangs in the kernel, in the GPU's driver or in a file system. Nothing "
                f"else is measured beside it. `dmesg` on that node may say more; start the job again on another."
            )
        for agent in self._agents:
            if agent.lost:
                raise RankLostError(
                    f"rank {agent.rank} on {agent.node} is gone: {agent.lost}. What is not measured yet needs all "
                    f"{self._size} ranks: start the job again; it goes on where it was."
                )


def send_home(rendezvous: Rendezvous) -> None:
    """For a rank 0 that has no work: the step's other tasks would look for it for minutes."""
    agents: list[_Agent] = []
    with suppress(ProjectError), _listen(rendezvous) as server:
        agents = _accept_all(server, rendezvous.model_copy(update={"patience_s": SEND_HOME_S}), lambda: None)
    for agent in agents:
        _send(agent, {"kind": "leave"})
        agent.connection.close()


def rendezvous_of_started_agent() -> Rendezvous:
    """What `_start_agents` wrote to this process's stdin."""
    return Rendezvous.model_validate_json(sys.stdin.read())


def _listen(rendezvous: Rendezvous) -> socket.socket:
    """At the first free port. Raises ProjectError where none is."""
    host = "" if rendezvous.hosts == () else rendezvous.hosts[0]
    for port in rendezvous.ports:
        server = socket.socket()
        try:
            server.bind((host, port))
        except OSError:
            server.close()
            continue
        server.listen(rendezvous.size + 8)
        return server
    raise ProjectError(f"none of the ports {', '.join(map(str, rendezvous.ports))} is free on {rendezvous.node}")


def _accept_all(server: socket.socket, rendezvous: Rendezvous, while_waiting: Callable[[], None]) -> list[_Agent]:
    agents: dict[int, _Agent] = {}
    deadline = time.monotonic() + rendezvous.patience_s
    while len(agents) < rendezvous.size - 1:
        while_waiting()
        if time.monotonic() > deadline:
            missing = [str(rank) for rank in range(1, rendezvous.size) if rank not in agents]
            for agent in agents.values():
                agent.connection.close()
            raise ProjectError(
                f"rank {', '.join(missing)} did not come within {rendezvous.patience_s:g} s to rank 0 on "
                f"{rendezvous.node}, port {server.getsockname()[1]}. Its own output tells whether it started; compute "
                f"nodes must reach each other over TCP, and all tasks need the same {SECRET_VARIABLE}."
            )
        if select.select([server], [], [], 1.0)[0]:
            newcomer = _welcome(server.accept()[0], rendezvous)
            if newcomer is not None:
                agents[newcomer.rank] = newcomer
    return [agents[rank] for rank in range(1, rendezvous.size)]


def _welcome(connection: socket.socket, rendezvous: Rendezvous) -> _Agent | None:
    """None for whoever does not know the secret: another job that tries its ports, or a port scan."""
    try:
        connection.settimeout(HELLO_TIMEOUT_S)
        about_it = admit(connection, rendezvous.secret)
        agent = _Agent(**about_it, connection=connection, idle=threading.Event())
        if agent.rank not in range(1, rendezvous.size):
            raise ValueError("a rank that does not exist")
        connection.settimeout(None)
        notice_a_dead_peer(connection)
    except (OSError, ValueError, TypeError):
        connection.close()
        return None
    agent.idle.set()
    return agent


def _send(agent: _Agent, message: dict[str, Any]) -> None:
    """A connection that is broken is told by the thread that reads it."""
    if agent.lost is None:
        with suppress(OSError):
            send(agent.connection, message)


def _read_events(agent: _Agent) -> None:
    """In a thread of its own until the connection ends."""
    why = "its connection closed"
    try:
        with agent.connection.makefile() as lines:
            for line in lines:
                message = json.loads(line)
                if message["run"] != agent.run:
                    continue
                if message["event"]["kind"] == "exit":
                    agent.idle.set()
                agent.tell(message["event"])
    except (OSError, ValueError) as error:
        why = f"its connection broke: {error}"
    agent.lost = why
    agent.idle.set()
    agent.tell(_lost(why))


def _lost(why: str) -> Event:
    return {"kind": "lost", "content": {"reason": why}}
