"""Where the processes of one job meet: which rank this one is, and how it reaches rank 0.

In Slurm every task of a step finds that in its own environment. Elsewhere the parent tells the agents that it starts.
No port is fixed, and the secret tells the job's own processes from a neighbour's (harness/handshake.py).
"""

import os
import random
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from pydantic import Field

from harness.errors import ProjectError
from harness.settings import Frozen

PORTS = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections (ip_local_port_range begins at 32768)."""
PORTS_TO_TRY = 8
SECRET_VARIABLE = "RENDEZVOUS_SECRET"
"""The rendered scripts draw it for each run. `srun` hands it to all tasks, and only their user can read it there."""
SLURM_PATIENCE_S = 120.0
"""The tasks of a step may start minutes apart where Python comes from a slow file system."""


class Rendezvous(Frozen):
    rank: int = Field(ge=0)
    size: int = Field(ge=2)
    local_rank: int = Field(ge=0)
    node: str
    hosts: tuple[str, ...]
    """Names and addresses of rank 0's node; the first that answers is taken."""
    ports: tuple[int, ...]
    """Rank 0 listens at the first that is free."""
    secret: str
    patience_s: float = SLURM_PATIENCE_S


def slurm_rendezvous(environment: Mapping[str, str] = os.environ) -> Rendezvous | None:
    """None outside of a step of several tasks. A bare batch script is no step, whatever SLURM_NTASKS says.

    Where a step was started without the rendered script there may be no secret. Then the step's name, which others can
    find out, tells its tasks from those of another step, and no more.
    """
    size = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if size == 1 or "SLURM_PROCID" not in environment:
        return None
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    step = ".".join(environment.get(name, "0") for name in names)
    rank = int(environment["SLURM_PROCID"])
    return Rendezvous(
        rank=rank,
        size=size,
        local_rank=int(environment["SLURM_LOCALID"]),
        node=environment.get("SLURMD_NODENAME") or socket.gethostname(),
        hosts=_addresses(_first_node(environment["SLURM_STEP_NODELIST"])) if rank > 0 else (),
        ports=tuple(random.Random(step).sample(PORTS, PORTS_TO_TRY)),
        secret=f"{step}.{environment.get(SECRET_VARIABLE, '')}",
    )


def _first_node(node_list: str) -> str:
    """`gpu[07-09,12]` to `gpu07`. Raises ProjectError where there are brackets and no scontrol to read them."""
    if "[" not in node_list:
        return node_list.split(",")[0]
    names = _scontrol("hostnames", node_list).split()
    if not names:
        raise ProjectError(f"`scontrol show hostnames {node_list}` does not answer on {socket.gethostname()}")
    return names[0]


def _addresses(node: str) -> tuple[str, ...]:
    """The node's name, and the address by which Slurm itself reaches it where that differs."""
    fields = dict(word.partition("=")[::2] for word in _scontrol("node", node).split())
    return tuple(dict.fromkeys((node, fields.get("NodeAddr") or node)))


def _scontrol(*what: str) -> str:
    """Empty where scontrol does not answer."""
    try:
        done = subprocess.run(["scontrol", "show", *what], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def free_port() -> int:
    """Of this node, for a server that another process starts in a few seconds; in PORTS, so that no outgoing connection
    takes it meanwhile. Raises ProjectError where none is found."""
    for port in random.sample(PORTS, PORTS_TO_TRY**2):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise ProjectError(f"no port from {PORTS[0]} to {PORTS[-1]} is free on {socket.gethostname()}")
