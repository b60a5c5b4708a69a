"""An agent: the process of run.py that stands for one rank above 0. It starts and ends that rank's children.

It connects to the job's parent, on whatever node that is, and does what it is told, one JSON line per message:

    from the parent    run {run, task, log}   stop   leave
    to the parent      who it is (harness/handshake.py); then {run, event} for every event of a child (harness/child.py)

It leaves when it is told to or when the parent is gone, and no child of it stays behind. It imports no framework.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.child import JOB_SIGNALS, Child, Event, tell_error
from harness.errors import ProjectError
from harness.handshake import introduce
from harness.rendezvous import SECRET_VARIABLE, Rendezvous
from harness.session import ChildTask
from harness.settings import Framework

TRY_AGAIN_S = 0.2
CONNECT_TIMEOUT_S = 3.0
WELCOME_TIMEOUT_S = 10.0
DEAD_AFTER_S = 30.0
"""A connection whose other end does not even acknowledge for this long is broken: the node or its network is gone."""


def run_agent(framework: Framework, rendezvous: Rendezvous) -> int:
    """0 when the parent said `leave`, 1 when it was not found or is gone."""
    for number in JOB_SIGNALS:
        # Schedulers signal every rank; what a signal means is the parent's to decide, and the agent goes with it.
        signal.signal(number, lambda _number, _frame: None)
    try:
        connection = _find_parent(rendezvous)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with connection:
        return _Agent(framework, connection).serve()


class _Agent:
    def __init__(self, framework: Framework, connection: socket.socket) -> None:
        self._framework = framework
        self._connection = connection
        self._sending = threading.Lock()
        self._child: Child | None = None

    def serve(self) -> int:
        try:
            with self._connection.makefile() as lines, suppress(OSError):
                for line in lines:
                    message = json.loads(line)
                    self._end_child()
                    if message["kind"] == "leave":
                        return 0
                    if message["kind"] == "run":
                        self._run(message["content"])
        finally:
            self._end_child()
        return 1

    def _run(self, content: dict[str, Any]) -> None:
        number = content["run"]

        def tell(event: Event) -> None:
            with self._sending, suppress(OSError):  # a parent that is gone is noticed by `serve`
                send(self._connection, {"run": number, "event": event})

        try:
            task = ChildTask.model_validate(content["task"])
            self._child = Child(self._framework, task, Path(content["log"]), tell)
        except ProjectError as error:
            tell_error(tell, str(error))

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall((json.dumps(message) + "\n").encode())


def notice_a_dead_peer(connection: socket.socket) -> None:
    """A node that loses its power closes no connection; this does it from here."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(DEAD_AFTER_S * 1000))


def _find_parent(rendezvous: Rendezvous) -> socket.socket:
    """Raises ProjectError when nobody answers in time."""
    deadline = time.monotonic() + rendezvous.patience_s
    while True:
        for host in rendezvous.hosts:
            for port in rendezvous.ports:
                connection = _try(rendezvous, host, port)
                if connection is not None:
                    return connection
        if time.monotonic() > deadline:
            raise ProjectError(
                f"rank {rendezvous.rank} on {rendezvous.node} found no rank 0 at {' or '.join(rendezvous.hosts)} "
                f"within {rendezvous.patience_s:g} s. Rank 0's output tells whether it started; compute nodes must "
                f"reach each other over TCP, and all tasks need the same {SECRET_VARIABLE}."
            )
        time.sleep(TRY_AGAIN_S)


def _try(rendezvous: Rendezvous, host: str, port: int) -> socket.socket | None:
    """None unless the job's own parent answers there."""
    try:
        connection = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
    except OSError:
        return None
    try:
        connection.settimeout(WELCOME_TIMEOUT_S)
        about_me = {
            "rank": rendezvous.rank,
            "local_rank": rendezvous.local_rank,
            "node": rendezvous.node,
            "host": host,
            "cpus": sorted(os.sched_getaffinity(0)),
        }
        introduce(connection, rendezvous.secret, port, about_me)
    except OSError:
        connection.close()
        return None
    connection.settimeout(None)
    notice_a_dead_peer(connection)
    return connection
