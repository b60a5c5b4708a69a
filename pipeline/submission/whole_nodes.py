"""`cluster.whole_nodes`: cells of one GPU grouped into jobs of a whole node, which measure one on each GPU. Pure.

Cells of one length belong together, so that no GPU waits long for another. Times are by the protocol's settings alone,
as in spread.py: the same command makes the same groups again and finds its own jobs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from harness.errors import ConfigError
from harness.experiments.model import Config
from harness.plan import Pair
from pipeline.submission.estimate import Estimate, in_time
from pipeline.submission.queue_job import QueueJob
from pipeline.submission.spread import most_seconds_of, spread


def whole_nodes(pairs: Sequence[Pair], config: Config, spread_over: int | None) -> list[QueueJob]:
    """The jobs of all pairs, those of one GPU cut so that every GPU of their nodes has something to do. What is of
    several GPUs, of none, or a calibration, has a job of its own as ever.

    Args:
        spread_over: by `--spread`: the pairs are cut already.

    Raises:
        ConfigError: how many GPUs a node has is not known.
    """
    jobs: list[QueueJob] = []
    of_gpu: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.cell.devices == 1 and not pair.cell.is_for_cpu and not pair.cell.is_calibration:
            of_gpu[pair.cell.gpu].append(pair)
        else:
            jobs.append(QueueJob.of(pair))
    number = 0
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
            number += 1
            jobs.append(QueueJob(name=f"{gpu}/node_{number}", pairs=group, gpus=per_node))
    return jobs


def whole_nodes_in_words(jobs: Sequence[QueueJob], estimates: Mapping[str, Estimate]) -> str:
    """`estimates`: by the names of the pairs."""

    def most_s(job: QueueJob) -> float:
        return max(estimates[pair.name].most_seconds for pair in job.pairs)

    gpus = sorted({str(job.gpus) for job in jobs})
    count = f"{len(jobs)} job{'s, each' if len(jobs) > 1 else ''} on all {' or '.join(gpus)} GPUs"
    cells = sum(len(job.pairs) for job in jobs)
    return (
        f"Whole nodes: {count} of a node, {cells} cells or parts of cells side by side; the longest node is busy for "
        f"{in_time(max(map(most_s, jobs)))} at most."
    )
