"""Which nodes can be in a fleet, by what sinfo lists of a made-up cluster."""

from typing import Any

import pytest

from pipeline.submission.fleet import fitting_nodes

SINFO = """\
n1|idle|main*|gpu:a100:4(S:0-1)|a100,nvlink
n1|idle|long|gpu:a100:4(S:0-1)|a100,nvlink
n2|mixed|main*|gpu:a100:4(S:0-1)|a100
n3|down*|main*|gpu:a100:4(S:0-1)|a100,nvlink
n4|allocated+|main*|gpu:h100:2|h100,nvlink
n5|drained|main*|gpu:a100:4|a100
n6|idle*|main*|gpu:a100:4|a100
n7|idle~|main*|gpu:1|(null)
n8|maint|main*|gpu:a100:4|a100
n9|idle|main*|(null)|(null)
"""


@pytest.mark.parametrize(
    ("asked", "partition", "nodes"),
    [
        ({"gres": "gpu:a100:1"}, None, ["n1", "n2"]),
        ({"gres": "gpu:a100:1"}, "long", ["n1"]),
        ({"gres": "gpu:a100:1", "partition": "long"}, None, ["n1"]),
        ({"gres": "gpu:1", "constraint": "nvlink&a100"}, None, ["n1"]),
        ({"constraint": "[a100|h100]"}, None, ["n1", "n2", "n4"]),
        ({}, None, ["n1", "n2", "n4", "n7", "n9"]),
    ],
)
def test_nodes_that_are_up_and_have_what_is_asked_for(
    asked: dict[str, Any], partition: str | None, nodes: list[str]
) -> None:
    request = {"gres": None, "constraint": None, "partition": None} | asked
    assert [node for node, _ in fitting_nodes(SINFO, request, partition)] == nodes
