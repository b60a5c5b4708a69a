"""The doctor's questions to Slurm: what it would say to the jobs of `python main.py`, before any is submitted."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from harness.errors import ProjectError
from harness.experiments.expand import Selection, expand
from harness.experiments.model import NO_GRES, UNTYPED, Config
from harness.experiments.presets import expand_preset, preset_of
from harness.experiments.profile import slurms_name
from harness.paths import REPOSITORY
from harness.plan import CPU
from harness.suggest import valid_names
from pipeline.finding import Finding
from pipeline.submission.queue_job import QueueJob, paired, pairs_of
from pipeline.submission.render import header_variables, write_scripts
from pipeline.submission.slurm import without_inherited_job
from pipeline.submission.whole_nodes import whole_nodes

Partitions = Mapping[str, Mapping[str, str]]
SLURM_TIMEOUT_S = 15.0
LITTLE_MEMORY_GB = 16
"""For each GPU: a framework with its compilers takes as much."""
WORDS_OF_REFUSALS = {name: name for name in ("partition", "account", "qos")} | {
    **{"constraint": "feature", "gres": "generic resource", "memory_gb": "memory", "time_limit_minutes": "time limit"}
}
"""By which of Slurm's words a setting is meant."""


def examine_slurm(config: Config) -> list[Finding]:
    if shutil.which("sbatch") is None:
        fix = "Jobs run here, one after the other (--executor local)."
        return [Finding("slurm", "warning", "sbatch is not on PATH", fix)]
    missing = [name for name in ("squeue", "scancel", "sinfo", "scontrol") if shutil.which(name) is None]
    if missing:
        fix = "Load the module, or install the package, that has all of Slurm's commands."
        return [Finding("slurm", "problem", f"without {', '.join(missing)}", fix)]
    ping = _slurm("scontrol", "ping")
    if ping.returncode != 0 or "is UP" not in ping.stdout:
        answer = shorten(ping.stdout + ping.stderr, 200, placeholder=" ...") or "no answer"
        fix = "Check SLURM_CONF and the network, ask the cluster's people, or measure here: --executor local."
        return [Finding("slurm", "problem", f"the controller is not up: {answer}", fix)]
    version, name = _slurm("sinfo", "--version").stdout.strip(), slurms_name()
    partitions = parse_partitions(_slurm("scontrol", "--oneliner", "show", "partition").stdout)
    settings = dict(re.findall(r"^(\w+) += +(.*\S)", _slurm("scontrol", "show", "config").stdout, re.MULTILINE))
    findings = [
        Finding("slurm", "ok", f"{version}, the controller is up"),
        Finding("profile", "ok", f"{config.profile or 'none'}; Slurm calls this cluster {name}"),
        judge_gpu_types(config, parse_gpu_types(_slurm("sinfo", "--noheader", "--format=%G").stdout)),
    ]
    try:
        jobs = submitted_by_default(config)
    except ProjectError as error:
        return [*findings, Finding("slurm scripts", "problem", str(error))]
    cells = [pair.cell for pair in pairs_of(jobs)]
    requests = {cell.gpu: header_variables("", cell, config, results=Path()) for cell in cells}
    for gpu, request in requests.items():
        request |= {"memory_gb": 0} if gpu in {job.pairs[0].cell.gpu for job in jobs if job.gpus} else {}
        findings += [one for one in judge_request(config, gpu, request, partitions, settings) if one not in findings]
    return [*findings, examine_scripts(jobs, config, partitions)]


def submitted_by_default(config: Config) -> list[QueueJob]:
    """What `python main.py` submits. Raises ProjectError as that does."""
    preset = preset_of(config, None, Selection())
    pairs = expand(config, Selection())
    if preset:
        pairs = [pair for part in expand_preset(config, preset, Selection()) for pair in part.pairs]
    pairs = [paired(pair, config.pairing) for pair in pairs]
    return whole_nodes(pairs, config) if config.cluster.whole_nodes else [QueueJob.of(pair) for pair in pairs]


def parse_partitions(told: str) -> dict[str, dict[str, str]]:
    lines = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in told.splitlines()]
    return {one["PartitionName"]: one for one in lines if "PartitionName" in one}


def minutes_of(time: str | None) -> int | None:
    """Of Slurm's `1-02:30:00`; None of `UNLIMITED` and `NONE`."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):\d+", time or "")
    return None if found is None else (int(found[1] or 0) * 24 + int(found[2])) * 60 + int(found[3])


def judge_request(
    config: Config, gpu: str, request: Mapping[str, Any], partitions: Partitions, settings: Mapping[str, str]
) -> Iterator[Finding]:
    """Time, memory and preemption, against what the partition gives. `request`: of header_variables; `settings`: what
    `scontrol show config` says."""
    default = next((name for name, one in partitions.items() if one.get("Default") == "YES"), None)
    name = str(os.environ.get("SBATCH_PARTITION") or request["partition"] or default).partition(",")[0]
    partition, goes_on = partitions.get(name, {}), "After a preemption the same command goes on where it was."
    yield from judge_time_limit(config, gpu, request, partition)
    if "CANCEL" in partition.get("PreemptMode", ""):
        found = f"{name} cancels what it preempts (PreemptMode=CANCEL), and requeues nothing"
        set_it = f"Set cluster.requeue: false in {config.site_file}, so that nobody waits for it. "
        if config.cluster.requeue:
            yield Finding("preemption", "warning", found, fix=set_it + goes_on)
        else:
            yield Finding("preemption", "ok", found, fix=goes_on)
    tasks, selected = request["tasks_per_node"], [one.get("SelectTypeParameters", "") for one in (partition, settings)]
    if request["memory_gb"] is None and "MEMORY" in "".join(selected).upper():
        for key, count in (("DefMemPerCPU", request["cpus_per_task"] * tasks), ("DefMemPerNode", 1)):
            told = next((one[key] for one in (partition, settings) if one.get(key, "").isdecimal()), "0")
            if 0 < (gb := int(told) * count / tasks / 1024) < LITTLE_MEMORY_GB:
                found = f"a job on {name} gets {gb:.0f} GB for each GPU ({key}={told})"
                fix = f"Set {_key(config, gpu, 'memory_gb')} in {config.site_file}, such as {4 * LITTLE_MEMORY_GB}."
                yield Finding("memory", "warning", found, fix)


def judge_time_limit(
    config: Config, gpu: str, request: Mapping[str, Any], partition: Mapping[str, str]
) -> Iterator[Finding]:
    """A measurement with its warm start is three processes, each of which may take its timeout; 90 s before the
    limit the job stops and begins anew."""
    asked, most = request["time_limit_minutes"], minutes_of(partition.get("MaxTime"))
    key = f"{_key(config, gpu, 'time_limit_minutes')} in {config.site_file}"
    limit, needed_s = asked or minutes_of(partition.get("DefaultTime")) or most, 3 * config.measurement.timeout_s
    if asked and most and asked > most:
        found = f"{partition['PartitionName']} allows {most} min, and {asked} are asked for: such a job never starts"
        fix = f"Set {key} to {most} or less."
        yield Finding("time limit", "problem", found, fix)
    elif limit and limit * 60 - 90 < needed_s:
        found = f"a job has {limit * 60 - 90} s before it stops, and one measurement may take {needed_s:g} s"
        fix = f"Raise {key}, or lower measurement.timeout_s."
        yield Finding("time limit", "warning", found, fix)


def _key(config: Config, gpu: str, name: str) -> str:
    """Where a setting of that kind of GPU stands, or may be written."""
    is_own = name == "gres" or getattr(config.gpus[gpu], name) is not None
    return f"gpus.{gpu}.{name}" if is_own else f"cluster.{name}"


def examine_scripts(jobs: Sequence[QueueJob], config: Config, partitions: Partitions) -> Finding:
    """`sbatch --test-only` of each script that would be submitted; of those that ask for the same, of one."""
    answers: dict[str, str] = {}
    refused: dict[str, list[QueueJob]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scripts = write_scripts(
            jobs,
            config,
            config_path=REPOSITORY / "experiments.yaml",
            results=Path(folder) / "results",
            repository=Path(folder),
        )
        for job in jobs:
            script = scripts[job.name]
            header = " ".join(re.findall(r"^#SBATCH (?!--job-name).*", script.read_text(), re.MULTILINE))
            if header not in answers:
                done = _slurm(*without_inherited_job(), "sbatch", "--test-only", str(script))
                words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
                answers[header] = words if done.returncode else ""
            if answers[header]:
                refused.setdefault(answers[header], []).append(job)
    if not refused:
        found = f"sbatch --test-only accepts all {len(jobs)}, which ask for {len(answers)} different things"
        return Finding("slurm scripts", "ok", found)
    said, fixes = [], []
    for words, of_words in refused.items():
        said.append(f"{words} ({of_words[0].name} and {len(of_words) - 1} more)")
        names = [name for name, word in WORDS_OF_REFUSALS.items() if word in words.lower()]
        names = names or ["constraint", "gres", "cpus_per_task", "memory_gb"]
        gpus = dict.fromkeys(job.pairs[0].cell.gpu for job in of_words)
        keys = {_key(config, gpu, name): None for gpu in gpus for name in names}
        valid = f" (partitions: {', '.join(sorted(partitions))})" if "partition" in names else ""
        fixes.append(f"Look at {', '.join(keys)} in {config.site_file}{valid}.")
    return Finding("slurm scripts", "problem", "; ".join(said), fix=" ".join(fixes))


def parse_gpu_types(gres: str) -> dict[str, int]:
    """Most GPUs of each type in one node, from `sinfo --format=%G`; "" is the type of GPUs without one.

    `gpu:a100:4(S:0-1),gpu:h100:2` and `gpu:8` are such lines, and `(null)`.
    """
    types: dict[str, int] = {}
    for entry in re.findall(r"\bgpu:(?:[^,()\s]+)", gres):
        *kind, count = entry.split(":")[1:]
        name = kind[0] if kind else ""
        if count.isdecimal():
            types[name] = max(types.get(name, 0), int(count))
    return types


def judge_gpu_types(config: Config, types: Mapping[str, int]) -> Finding:
    """Of the GPUs in the matrix; those that `gpus` only defines are nobody's problem yet."""
    finding = partial(Finding, name="slurm GPUs")
    offered = ", ".join(f"{count} x {name or 'GPUs without a type'}" for name, count in sorted(types.items())) or "none"
    wanted = {name: config.gpus[name].gres_type(name) for name in config.matrix.gpus if name != CPU}
    typed = sorted(name for name in types if name)
    if set(wanted.values()) <= {NO_GRES}:
        return finding(verdict="ok", found=f"none is asked for by --gres; in one node: {offered}")
    if not types:
        fix = f"If nodes come with their GPUs, set gpus.{next(iter(wanted))}.gres: none in {config.site_file}. "
        fix += "Else ask the cluster's people for gres.conf, or measure here: --executor local."
        return finding(verdict="problem", found="Slurm knows of no GPU (sinfo -o %G)", fix=fix)
    wrong = {name: gres for name, gres in wanted.items() if gres not in (*typed, NO_GRES, UNTYPED)}
    if not wrong:
        return finding(verdict="ok", found=f"in one node: {offered}")
    name, gres = next(iter(wrong.items()))
    # `a100` means `nvidia_a100_80gb`, though `h100` is spelled more like it.
    nearest = next((one for one in typed if gres.lower() in one.lower()), None)
    ways = f"valid: {', '.join(typed)}; did you mean {nearest}?" if nearest else valid_names(gres, typed)
    ways = ways if typed else f"untyped, with gpus.{name}.constraint"
    fix = f"Set gpus.{name}.gres in {config.site_file} ({ways}), or leave {name} out of matrix.gpus."
    found = f"no node has gpu:{', gpu:'.join(wrong.values())}; in one node: {offered}"
    return finding(verdict="problem", found=found, fix=fix)


def _slurm(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SLURM_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, returncode=1, stdout="", stderr=str(error))
