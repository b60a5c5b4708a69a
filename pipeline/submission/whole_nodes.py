"""`cluster.whole_nodes`: cells of one GPU grouped into jobs of a whole node, which measure one on each GPU. Pure.

Cells of similar length share a node, so that no GPU waits long for another. Times are by the protocol's settings alone:
the same command makes the same groups again and finds its own jobs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from harness.errors import ConfigError
from harness.experiments.model import Config
from harness.plan import Pair
from pipeline.submission.estimate import NO_DURATIONS, Estimate, estimate_of, expected, in_time, together
from pipeline.submission.queue_job import QueueJob


def whole_nodes(pairs: Sequence[Pair], config: Config) -> list[QueueJob]:
    """Return the jobs of all pairs: one for each node full of cells of one GPU, the longest cells first. A pair of
    several GPUs, of none, or of a calibration has a job of its own.

    Raises:
        ConfigError: the number of GPUs in a node is not known.
    """
    jobs: list[QueueJob] = []
    pairs_by_gpu: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.cell.devices == 1 and not pair.cell.is_for_cpu and not pair.cell.is_calibration:
            pairs_by_gpu[pair.cell.gpu].append(pair)
        else:
            jobs.append(QueueJob.of(pair))
    number = 0
    for gpu, of_one_gpu in pairs_by_gpu.items():
        per_node = config.gpus[gpu].per_node
        if per_node is None:
            raise ConfigError(
                f"cluster.whole_nodes in {config.site_file}: how many GPUs has a node? Set gpus.{gpu}.per_node, by "
                f"`sinfo -o %G`; or leave whole_nodes out"
            )
        longest_first = sorted(of_one_gpu, key=_most_seconds, reverse=True)
        for first in range(0, len(longest_first), per_node):
            number += 1
            cells = tuple(longest_first[first : first + per_node])
            jobs.append(QueueJob(name=f"{gpu}/node_{number}", pairs=cells, gpus=per_node))
    return jobs


def _most_seconds(pair: Pair) -> float:
    """Return the longest time that a pair may take, by the protocol's settings alone."""
    alone = len(pair.jobs) == 1
    estimates = [estimate_of(plan, expected(plan, alone=alone), NO_DURATIONS) for plan in pair.jobs]
    return together(estimates).most_seconds


def whole_nodes_in_words(jobs: Sequence[QueueJob], estimates: Mapping[str, Estimate]) -> str:
    """Return one sentence about the nodes.

    Args:
        estimates: by the names of the pairs.
    """
    gpus = sorted({str(job.gpus) for job in jobs})
    count = f"{len(jobs)} job{'s, each' if len(jobs) > 1 else ''} on all {' or '.join(gpus)} GPUs"
    names = [pair.name for job in jobs for pair in job.pairs]
    cells = f"{len(names)} cell{'s' if len(names) > 1 else ''}"
    longest = in_time(max(estimates[name].most_seconds for name in names))
    return f"Whole nodes: {count} of a node, {cells}, one on each GPU; the longest node is busy for {longest} at most."
