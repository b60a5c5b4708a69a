"""harness/handshake.py: who knows the secret is let in, and learns that it speaks to the right one; nobody else."""

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.handshake import admit, introduce

ABOUT_ME = {"rank": 1, "cpus": list(range(2000))}


class Parent:
    """Listens, and admits the first who comes."""

    def __init__(self, secret: str) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(10)
        self.port = self.server.getsockname()[1]
        self.admitted: dict[str, Any] | None = None
        self.refusal: OSError | None = None
        self._thread = threading.Thread(target=self._admit, args=(secret,), daemon=True)
        self._thread.start()

    def _admit(self, secret: str) -> None:
        connection, _ = self.server.accept()
        with connection:
            connection.settimeout(10)
            try:
                self.admitted = admit(connection, secret)
                connection.sendall(b"what comes next\n")
            except OSError as error:
                self.refusal = error

    def done(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.server.close()


@pytest.fixture
def parent() -> Iterator[Callable[[str], Parent]]:
    made: list[Parent] = []

    def make(secret: str) -> Parent:
        made.append(Parent(secret))
        return made[-1]

    yield make
    for one in made:
        one.server.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def test_both_know_the_secret(parent: Callable[[str], Parent]) -> None:
    there = parent("s3cret")
    with connected(there.port) as connection:
        introduce(connection, "s3cret", there.port, ABOUT_ME)
        there.done()
        assert there.admitted == ABOUT_ME
        assert connection.recv(100) == b"what comes next\n"  # the handshake has taken none of it


def test_agent_without_the_secret_is_refused(parent: Callable[[str], Parent]) -> None:
    """It does not even take the parent for the right one; if it goes on all the same, the parent refuses it."""
    there = parent("s3cret")
    with connected(there.port) as connection, pytest.raises(OSError, match="does not know this job's secret"):
        introduce(connection, "42.0.0.", there.port, ABOUT_ME)
    there.done()
    assert there.admitted is None

    there = parent("s3cret")
    with connected(there.port) as connection:
        connection.sendall(json.dumps({"nonce": "0", "content": ABOUT_ME}).encode() + b"\n")
        proof = json.loads(connection.makefile().readline())["proof"]
        connection.sendall(json.dumps({"proof": proof}).encode() + b"\n")  # the parent's own, sent back to it
        there.done()
    assert there.admitted is None
    assert "does not know this job's secret" in str(there.refusal)


def test_proof_is_the_hmac_that_the_docstring_promises(parent: Callable[[str], Parent]) -> None:
    there = parent("s3cret")
    hello = json.dumps({"nonce": "00", "content": ABOUT_ME})
    with connected(there.port) as connection:
        connection.sendall(hello.encode() + b"\n")
        answer = json.loads(connection.makefile().readline())

        def proof(role: str) -> str:
            signed = json.dumps([role, there.port, hello, answer["nonce"]]).encode()
            return hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()

        assert answer["proof"] == proof("parent")
        connection.sendall(json.dumps({"proof": proof("agent")}).encode() + b"\n")
        there.done()
    assert there.admitted == ABOUT_ME
    assert len(answer["nonce"]) == 32


def test_impostor_that_passes_everything_on_is_found_out(parent: Callable[[str], Parent]) -> None:
    """It listens at one port of the node and connects to the parent's, which is another."""
    there = parent("s3cret")
    impostor = socket.create_server(("127.0.0.1", 0))

    def pass_on() -> None:
        to_agent, _ = impostor.accept()
        with to_agent, connected(there.port) as to_parent:
            to_parent.sendall(to_agent.makefile("rb").readline())
            to_agent.sendall(to_parent.makefile("rb").readline())
            to_agent.recv(1)  # the agent hangs up

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    port = impostor.getsockname()[1]
    with connected(port) as connection, pytest.raises(OSError, match="does not know this job's secret"):
        introduce(connection, "s3cret", port, ABOUT_ME)
    thread.join(10)
    there.done()
    impostor.close()
    assert there.admitted is None


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"\xff\xfe\n", b"", b"x" * 200_000])
def test_whoever_speaks_something_else_is_refused_in_words(said: bytes, parent: Callable[[str], Parent]) -> None:
    there = parent("s3cret")
    with connected(there.port) as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        there.done()
    assert there.admitted is None
    assert there.refusal is not None


def test_silence_ends_by_the_timeout_of_the_connection() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(0.1)
        with pytest.raises(TimeoutError):
            introduce(here, "s3cret", 1, ABOUT_ME)
