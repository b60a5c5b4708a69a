"""A channel that keeps what it is told."""

from typing import Any

from harness.measure.channel import Channel


class Heard(Channel):
    """What went through it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        self.events.append((kind, content))

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [content for one, content in self.events if one == kind]
