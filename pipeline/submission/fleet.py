"""`--fleet N`: the same jobs once more on each of N nodes, so that cards of one kind can be compared with each other.

Each node has a results folder of its own, `results/fleet/NODE`, so that ids of measurements stay, and the records of
one node do not replace those of another.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.errors import ConfigError, SubmissionError
from harness.experiments.model import Config
from harness.paths import Results
from pipeline.doctor_slurm import parse_gpu_types
from pipeline.submission.queue_job import QueueJob
from pipeline.submission.render import header_variables
from pipeline.watching.slurm_states import CALL_TIMEOUT_S

SINFO = ("sinfo", "--noheader", "--Node", "--format=%N|%T|%P|%G|%f")
UP = re.compile(r"(idle|mixed|allocated|completing|planned)[-+~#]?")
"""States of nodes on which a job starts, now or later. `*` behind one is a node that does not answer."""


def fleet_of(jobs: Sequence[QueueJob], count: int, config: Config, results: Results) -> list[QueueJob]:
    """The jobs of each node, node by node; of each kind of GPU `count` nodes, first those that were in the fleet
    before, so that the same command finds its own jobs, then idle ones.

    Args:
        jobs: each of one pair.

    Raises:
        ConfigError: there are fewer; or a cell is of several nodes.
        SubmissionError: sinfo has no answer.
    """
    told = _sinfo()
    of_nodes: dict[str, list[QueueJob]] = {}
    for job in jobs:
        [pair] = job.pairs
        if pair.cell.nodes > 1:
            raise ConfigError(f"--fleet compares one node with another, and {pair.cell.name} is measured on several")
        request = header_variables(job.name, pair.cell, config, results=results.root)
        states = dict(fitting_nodes(told, request, os.environ.get("SBATCH_PARTITION")))
        nodes = sorted(states, key=lambda node: (not results.of_node(node).root.is_dir(), states[node] != "idle"))
        if len(nodes) < count:
            raise ConfigError(
                f"--fleet {count}: {len(nodes)} nodes are up that {job.name} can run on, by sinfo and by `cluster` "
                f"and `gpus` in {config.site_file}: {', '.join(nodes) or 'none'}; ask for at most {len(nodes)}"
            )
        for node in nodes[:count]:
            of_nodes.setdefault(node, []).append(replace(job, node=node))
    return [job for of_node in of_nodes.values() for job in of_node]


def fitting_nodes(told: str, request: Mapping[str, Any], partition: str | None = None) -> Iterator[tuple[str, str]]:
    """Names and states of the nodes that are up and have what a job asks for.

    Args:
        told: by SINFO, a line for each node and partition; the default partition ends with `*`.
        request: of header_variables.
        partition: in place of the one in the request.
    """
    partitions = [one for one in (partition or request["partition"] or "").split(",") if one]
    needed = parse_gpu_types(request["gres"] or "")
    for line in told.splitlines():
        node, state, of_node, gres, features = line.split("|", 4)
        has, words = parse_gpu_types(gres), {*features.split(",")}
        is_there = of_node.rstrip("*") in partitions if partitions else of_node.endswith("*")
        has_gpus = all((has.get(kind, 0) if kind else max(has.values(), default=0)) >= n for kind, n in needed.items())
        asked = re.split("[&,]", (request["constraint"] or "").strip("[]"))
        has_features = all(words & {*one.split("|")} for one in asked if one)
        if is_there and has_gpus and has_features and UP.fullmatch(state):
            yield node, state


def fleet_in_words(nodes: Sequence[str], results: Results) -> str:
    folder = results.of_node("NODE").root
    return (
        f"Fleet: each job once more on each of {len(nodes)} nodes (sbatch --nodelist): {', '.join(nodes)}. Their "
        f"records: {folder}; to compare the cards: python main.py report --fleet."
    )


def _sinfo() -> str:
    try:
        answer = subprocess.run(SINFO, capture_output=True, text=True, timeout=CALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubmissionError(f"--fleet asks sinfo for nodes: {error}. Run it on a login node of a cluster.") from error
    if answer.returncode:
        raise SubmissionError(f"--fleet asks sinfo for nodes: {answer.stderr.strip() or 'it failed without a word'}")
    return answer.stdout
