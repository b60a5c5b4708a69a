"""`cluster.whole_nodes`: cells of one GPU grouped into jobs of a whole node, which measure one on each GPU. Pure.

Cells of one length belong together, so that no GPU waits long for another. Times are by the protocol's settings alone,
as in spread.py: the same command makes the same groups again and finds its own jobs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import ConfigError
from harness.experiments.model import Config
from harness.plan import Pair
from pipeline.submission.estimate import Estimate, in_time
from pipeline.submission.spread import most_seconds_of, spread, spread_in_words


@dataclass(frozen=True, kw_only=True)
class WholeNode:
    """What one job measures on one node."""

    name: str
    """`a100/node_1`: of its script, as of a pair's."""
    gpu: str
    per_node: int
    pairs: tuple[Pair, ...]
    alone: Pair | None
    """The shortest of them, of the first node of a kind: measured once more without neighbours."""


def whole_nodes(pairs: Sequence[Pair], config: Config, spread_over: int | None) -> tuple[list[Pair], list[WholeNode]]:
    """All pairs, those of one GPU cut so that every GPU of their nodes has something to do; and the jobs of nodes. What
    is of several GPUs, of none, or a calibration, has a job of its own as ever.

    Args:
        spread_over: by `--spread`: the pairs are cut already.

    Raises:
        ConfigError: how many GPUs a node has is not known.
    """
    found: list[Pair] = []
    of_gpu: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        is_of_one_gpu = pair.cell.devices == 1 and not pair.cell.is_for_cpu and not pair.cell.is_calibration
        (of_gpu[pair.cell.gpu] if is_of_one_gpu else found).append(pair)
    nodes: list[WholeNode] = []
    for gpu, of_kind in of_gpu.items():
        per_node = config.gpus[gpu].per_node
        if per_node is None:
            raise ConfigError(
                f"cluster.whole_nodes in {config.site_file}: how many GPUs has a node? Set gpus.{gpu}.per_node, by "
                f"`sinfo -o %G`; or leave whole_nodes out"
            )
        if spread_over is None:
            of_kind = spread(of_kind, -(-len(of_kind) // per_node) * per_node)
        of_kind = sorted(of_kind, key=most_seconds_of, reverse=True)
        for place in range(0, len(of_kind), per_node):
            group = tuple(of_kind[place : place + per_node])
            # What neighbours cost cannot be seen where there are none.
            alone = group[-1] if place == 0 and len(group) > 1 else None
            name = f"{gpu}/node_{len(nodes) + 1}"
            nodes.append(WholeNode(name=name, gpu=gpu, per_node=per_node, pairs=group, alone=alone))
        found += of_kind
    return found, nodes


def jobs_of(pairs: Iterable[Pair], nodes: Sequence[WholeNode]) -> list[Pair | WholeNode]:
    """What sbatch is asked for: the pairs that share no node, and the nodes."""
    inside = {pair.name for node in nodes for pair in node.pairs}
    return [*(pair for pair in pairs if pair.name not in inside), *nodes]


def at_once_in_words(pairs: Sequence[Pair], estimates: Sequence[Estimate], nodes: Collection[WholeNode]) -> list[str]:
    """How the jobs share out one selection, where they do."""
    if nodes:
        return [whole_nodes_in_words(nodes, {pair.name: one for pair, one in zip(pairs, estimates, strict=True)})]
    return [spread_in_words(pairs, estimates)] if any(pair.part for pair in pairs) else []


def whole_nodes_in_words(nodes: Collection[WholeNode], estimates: Mapping[str, Estimate]) -> str:
    """`estimates`: by the names of the pairs that are to be measured."""

    def most_s(node: WholeNode) -> float:
        times_s = {pair.name: 0.0 for pair in node.pairs}
        times_s |= {name: estimates[name].most_seconds for name in times_s if name in estimates}
        return max(times_s.values()) + (times_s[node.alone.name] if node.alone else 0.0)

    gpus = {node.per_node for node in nodes}
    count = f"{len(nodes)} job{'s, each' if len(nodes) > 1 else ''} on all {' or '.join(map(str, sorted(gpus)))} GPUs"
    cells = sum(len(node.pairs) for node in nodes)
    again = [node.alone.words for node in nodes if node.alone]
    return (
        f"Whole nodes: {count} of a node, {cells} cells or parts of cells side by side; the longest node is busy for "
        f"{in_time(max(map(most_s, nodes)))} at most."
        + (f" Measured once more without neighbours, to see what these cost: {', '.join(again)}." if again else "")
    )
