"""How two processes of one job make sure of each other before either does what the other says.

Any user of a node may connect to a port there, or listen at one. Both sides prove by an HMAC (RFC 2104) that they know
the job's secret, which is never sent. The port is part of the proof: who listens at another port of the same node and
passes everything on to the right one proves nothing.

    agent     hello {nonce, content}
    parent    {nonce, proof}
    agent     {proof}
"""

import hmac
import json
import secrets
import socket
from typing import Any

LONGEST_LINE = 100_000
"""Bytes. A hello names the CPUs of its task."""


def introduce(connection: socket.socket, secret: str, port: int, content: dict[str, Any]) -> None:
    """The agent's side; `port` is the one that it has connected to.

    Raises:
        OSError: the other side is silent, gone, or does not know the secret.
    """
    hello = json.dumps({"nonce": secrets.token_hex(16), "content": content})
    _send_line(connection, hello)
    answer = _read_message(connection)
    nonce = str(answer.get("nonce"))
    _require_proof(answer, _proof(secret, "parent", port, hello, nonce))
    _send_line(connection, json.dumps({"proof": _proof(secret, "agent", port, hello, nonce)}))


def admit(connection: socket.socket, secret: str) -> dict[str, Any]:
    """The parent's side: what the agent says of itself.

    Raises:
        OSError: the other side is silent, gone, or does not know the secret.
    """
    port = connection.getsockname()[1]
    hello = _read_line(connection)
    nonce = secrets.token_hex(16)
    proof = _proof(secret, "parent", port, hello, nonce)
    _send_line(connection, json.dumps({"nonce": nonce, "proof": proof}))
    _require_proof(_read_message(connection), _proof(secret, "agent", port, hello, nonce))
    content = _message(hello).get("content")
    if not isinstance(content, dict):
        raise OSError("a hello without content")
    return content


def _proof(secret: str, role: str, port: int, hello: str, nonce: str) -> str:
    """`role`, so that no side can be made to prove what the other must."""
    return hmac.new(secret.encode(), json.dumps([role, port, hello, nonce]).encode(), "sha256").hexdigest()


def _require_proof(message: dict[str, Any], proof: str) -> None:
    if not hmac.compare_digest(str(message.get("proof")).encode(), proof.encode()):
        raise OSError("somebody who does not know this job's secret")


def _send_line(connection: socket.socket, line: str) -> None:
    connection.sendall(line.encode() + b"\n")


def _read_message(connection: socket.socket) -> dict[str, Any]:
    return _message(_read_line(connection))


def _message(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise OSError("no message of this handshake") from error
    if not isinstance(message, dict):
        raise OSError("no message of this handshake")
    return message


def _read_line(connection: socket.socket) -> str:
    """Byte by byte: what comes after it is for whoever reads the connection next."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > LONGEST_LINE:
            raise OSError("no message of this handshake")
        line += byte
    return line[:-1].decode(errors="replace")
