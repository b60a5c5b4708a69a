"""`main.py doctor`: each judgement by hand-made answers; the probes, the data and the folders for real."""

import os
import shutil
import sys
import sysconfig
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.job.launch import command_of
from harness.paths import REPOSITORY, Results
from harness.plan import Launch
from pipeline import doctor as module
from pipeline.doctor import (
    ask,
    doctor,
    examine,
    examine_data,
    examine_room,
    examine_wandb,
    exit_status,
    judge_compiler,
    judge_driver,
    judge_framework,
    judge_locks,
    judge_nvml,
    judge_versions,
    judge_wandb,
    last_line,
)
from pipeline.doctor_slurm import examine_slurm, judge_gpu_types, judge_request, parse_gpu_types
from pipeline.finding import Finding, Verdict
from pipeline.submission.render import header_variables
from tests.made.faults import programs
from tests.made.report_records import plain, text

BASE = load_config(REPOSITORY / "experiments.yaml")
A100 = "NVIDIA A100"
LOCK = {"name": "2026-11", "file": "cpu-py312-x86_64", "packages": 112, "matching": 112, "others": []}
JAX: dict[str, Any] = {"version": "1", "python": "3.11.7", "missing": [], "gpus": [], "built_for_gpu": True}
TORCH = {"compilers": ["gcc", "clang"], "compiler": "/usr/bin/gcc", "headers": "/include", "has_headers": True}
ON = "1 on Python 3.11.7: "


def a_config(**changes: Any) -> Config:
    """experiments.yaml with parts replaced: `cluster` and `wandb` by key, `gpus` and `matrix_gpus` whole."""
    content = BASE.model_dump(exclude_unset=True)
    for part in ("cluster", "wandb"):
        content[part] = content.get(part, {}) | changes.get(part, {})
    if "gpus" in changes:
        content["gpus"] = changes["gpus"]
        content["matrix"]["gpus"] = changes.get("matrix_gpus", list(changes["gpus"]))
        content["matrix"]["exclude"] = []
    return Config.model_validate(content)


def framework(nvml_sees: str | None = None, **changes: Any) -> list[Finding]:
    return [judge_framework("jax", JAX | changes, nvml_sees)]


def versions(name: str, **changes: Any) -> list[Finding]:
    return judge_versions(name, JAX | changes)


def compiler(**changes: Any) -> list[Finding]:
    return judge_compiler(TORCH | changes)


def locks(**of_frameworks: Any) -> list[Finding]:
    return judge_locks({name: {"lock": lock} for name, lock in of_frameworks.items()})


def driver(version: str | None, cuda: str | int) -> list[Finding]:
    answers = {"jax": {"cuda": 12}, "torch": {"cuda": cuda}}
    return judge_driver({"driver_version": version} if version else {}, answers)


def nvml(**absent: str) -> list[Finding]:
    return [judge_nvml({"name": A100, "driver_version": "580.65", "absent": absent})]


def wandb(mode: str, **answer: Any) -> list[Finding]:
    return [judge_wandb(a_config(wandb={"mode": mode}), {"version": "1", "url": "https://w", "key": False} | answer)]


SLOW = "jaxlib 0.11.0 has a scatter-add on GPUs that is 450 to 2000 times too slow"
OLD_DRIVER = "550.54.15, and CUDA 13, for which torch is built here, needs 580"


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        # name, verdict, beginning of what was found, a part of the fix; nothing of the fix where there is none
        (framework(gpus=[A100] * 2), [("jax", "ok", f"{ON}2 x {A100}", "")]),
        (framework(), [("jax", "ok", f"{ON}CPU only here; this build can use a GPU", "")]),
        (framework(A100), [("jax", "warning", f"{ON}CPU only, though NVML sees {A100}", "newer driver")]),
        (
            framework(built_for_gpu=False),
            [("jax", "warning", f"{ON}CPU only; this build cannot", "make env LOCK=cuda13")],
        ),
        (
            framework(missing=["wandb", "yaml"]),
            [("jax", "problem", f"{ON}CPU only; without wandb, yaml", "make env LOCK=cuda13")],
        ),
        (framework(error="no jax"), [("jax", "problem", "no jax", "its container, under cluster.frameworks.jax")]),
        (versions("jax", jaxlib="0.11.0"), [("jaxlib", "warning", SLOW, "0.11.1 or later")]),
        (versions("jax", jaxlib="0.11.1"), []),
        (
            versions("torch", cudnn=91002, cudnn_package="9.26.0.51"),
            [("cudnn of torch", "warning", "torch has loaded 9.10.2, and the installed", "LD_LIBRARY_PATH")],
        ),
        (locks(jax=LOCK, torch=LOCK), [("lock", "ok", "2026-11 cpu-py312-x86_64: 112 of 112 packages", "")]),
        (
            locks(jax=LOCK | {"matching": 105, "others": ["jax 1 (2 in the lock)", "a 1 (added)"]}, torch=None),
            [
                ("lock of jax", "warning", "2026-11 cpu-py312-x86_64: 105 of 112 packages; not jax 1", "make -B env"),
                ("lock of torch", "ok", "none: other places", ""),
            ],
        ),
        (compiler(), [("torch.compile", "ok", "a C compiler and Python.h are there", "")]),
        (
            compiler(compilers=["icc"], compiler=None, has_headers=False),
            [("torch.compile", "warning", "no C compiler (icc); no Python.h in /include", "this machine lacks.)")],
        ),
        ([judge_nvml({"absent": "no driver"})], [("nvml", "warning", "no driver", "Normal on a login node")]),
        (nvml(), [("nvml", "ok", "NVIDIA A100, driver 580.65", "")]),
        (nvml(ecc="", energy=""), [("nvml", "warning", "NVIDIA A100, driver 580.65; refused: ecc, energy", "")]),
        (driver("550.54.15", "13.0"), [("driver", "problem", OLD_DRIVER, "make env LOCK=cuda12 PYTHON=python3.12")]),
        (driver("550.54.15", "12.6"), []),
        (driver("470.182.03", "12.6"), [("driver", "problem", "470.182.03 is older than CUDA 12", "525.60.13")]),
        (driver(None, 13), []),
        (wandb("auto", key=True), [("wandb", "ok", "1, mode auto, project jax-vs-torch, a key for https://w is", "")]),
        (wandb("auto"), [("wandb", "ok", "1, mode auto, project jax-vs-torch, no key for https:", "wandb login")]),
        (wandb("online"), [("wandb", "warning", "1, mode online, project jax-vs-torch, no key", "wandb login")]),
        (wandb("auto", error="no module"), [("wandb", "warning", "no module", "Jobs run without it")]),
    ],
)
def test_what_is_made_of_an_answer(findings: list[Finding], expected: list[tuple[str, Verdict, str, str]]) -> None:
    assert [(one.name, one.verdict) for one in findings] == [(name, verdict) for name, verdict, _, _ in expected]
    for finding, (_, _, found, fix) in zip(findings, expected, strict=True):
        assert finding.found.startswith(found)
        assert fix in finding.fix and bool(fix) == bool(finding.fix)


def probe(code: str, *, setup: str = "", timeout_s: float = 60.0) -> dict[str, Any]:
    return ask(command_of(Launch(setup=(setup,) if setup else ()), ["-c", code]), timeout_s=timeout_s)


def test_an_interpreter_answers_after_its_set_up_or_has_its_reason_named() -> None:
    code = "import json, os; print('a library greets'); print(json.dumps({'x': os.environ['SEEN_BY_THE_PROBE']}))"
    assert probe(code, setup="export SEEN_BY_THE_PROBE=7") == {"x": "7"}
    missing = probe("import no_such_framework")
    assert missing == {"error": f"{sys.executable}: ModuleNotFoundError: No module named 'no_such_framework'"}
    assert "No such file" in ask(["/no/such/python", "-c", "1"])["error"]
    slow = probe("import time; time.sleep(30)", timeout_s=0.5)
    assert slow == {"error": f"no answer from {sys.executable} in 0.5 s"}
    assert probe("import os; os._exit(3)") == {"error": f"{sys.executable}: exit status 3"}


STAND_INS = textwrap.dedent("""
    import os, sys, types
    device = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")
    jax = types.ModuleType("jax"); jax.__version__ = "9.9"; jax.devices = lambda: [device, device]
    torch = types.ModuleType("torch"); torch.__version__ = "8.8"
    torch.version = types.SimpleNamespace(cuda=None)
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    sys.modules |= {"jax": jax, "flax": jax, "optax": jax, "torch": torch}
""")
"""For the frameworks, so that the tests of the probes need neither."""


def test_the_probes_find_what_is_there_and_what_is_missing() -> None:
    """Of the compiler: its own Python's headers, and a compiler by the name in CC."""
    python = ".".join(map(str, sys.version_info[:3]))
    jax = probe(STAND_INS + module.PROBES["jax"])
    assert jax["gpus"] == ["NVIDIA H100"] * 2
    assert (jax["version"], jax["python"], jax["missing"], jax["built_for_gpu"]) == ("9.9", python, [], True)
    torch = probe(STAND_INS + module.PROBES["torch"], setup="export CC='bash -m64'")
    assert (torch["version"], torch["gpus"], torch["built_for_gpu"]) == ("8.8", [], False)
    assert (torch["compilers"], torch["compiler"]) == (["bash"], shutil.which("bash"))
    found = probe(STAND_INS + module.PROBES["torch"], setup="export CC=no-such-cc")
    assert (found["compilers"], found["compiler"]) == (["no-such-cc"], None)
    headers = Path(sysconfig.get_path("include"))
    assert (found["headers"], found["has_headers"]) == (str(headers), (headers / "Python.h").exists())


def test_jax_for_cuda_is_not_tried_without_a_driver() -> None:
    """It would end the process, without a word."""
    without_driver = textwrap.dedent("""
        device.platform = device.device_kind = "cpu"
        jax.devices = lambda: [device] if os.environ.get("JAX_PLATFORMS") == "cpu" else os._exit(139)
        import ctypes
        def without_driver(name): raise OSError(name)
        ctypes.CDLL = without_driver
    """)
    answer = ask([sys.executable, "-c", STAND_INS + without_driver + module.PROBES["jax"]])
    assert (answer["version"], answer["gpus"]) == ("9.9", []) and "lock" in answer


TYPED, UNTYPED = "gpu:a100:2(S:0-1)\ngpu:a100:4(S:0-1),gpu:h1:8\n", "4 x GPUs without a type"


@pytest.mark.parametrize(
    ("changes", "sinfo", "verdict", "found"),
    [
        ({"gpus": {"any": {}, "big": {"gres": "h1"}, "a100": {}}}, TYPED, "ok", "4 x a100, 8 x h1"),
        # A GPU outside the matrix is no problem.
        ({"gpus": {"any": {}, "h100": {}}, "matrix_gpus": ["any"]}, "gpu:4\n(null)\n", "ok", UNTYPED),
        ({"gpus": {"a100": {}}}, "craynetwork:4,gpu:a100_80gb:4\ngpu:h100:8", "problem", "4 x a100_80gb, 8 x h100"),
        ({}, "(null)\nlicense:9\n", "problem", None),
        ({"gpus": {"a100": {"gres": "none"}}}, "", "ok", None),
        ({"gpus": {"a100": {"gres": "untyped"}}}, "gpu:4", "ok", UNTYPED),
    ],
)
def test_gpu_types(changes: dict[str, Any], sinfo: str, verdict: Verdict, found: str | None) -> None:
    finding = judge_gpu_types(a_config(**changes), parse_gpu_types(sinfo))
    assert (finding.name, finding.verdict) == ("slurm GPUs", verdict)
    if found:
        missing = "no node has gpu:a100; " if verdict == "problem" else ""
        assert finding.found == f"{missing}in one node: {found}"
        fix = "Set gpus.a100.gres in experiments.yaml (valid: a100_80gb, h100; did you mean a100_80gb?)"
        assert finding.fix.startswith(fix) if missing else finding.fix == ""


NEVER = "problem: main allows 60 min, and 480 are asked for: such a job never starts"
CUT_OFF = "warning: a job has {} s before it stops, and one measurement may take 5400 s"
CANCELS = "{}: main cancels what it preempts (PreemptMode=CANCEL), and requeues nothing"
LITTLE = "warning: a job on main gets {} GB for each GPU ({})"
SHARED = "CR_CORE_MEMORY"


@pytest.mark.parametrize(
    ("cluster", "partition", "memory_is", "found", "fix"),
    [
        ({"time_limit_minutes": 480}, {"MaxTime": "01:00:00"}, "", NEVER, "Set cluster.time_limit_minutes in exp"),
        # Three processes of 1,800 s, and 90 s to end in order: 5,490 s are 91.5 min.
        ({"time_limit_minutes": 92}, {}, "", None, ""),
        ({"time_limit_minutes": 91}, {}, "", CUT_OFF.format(5370), "Raise cluster.time_limit_minutes in exp"),
        ({}, {"MaxTime": "01:00:00"}, "", CUT_OFF.format(3510), "Raise cluster.time_limit_minutes in exp"),
        ({}, {"DefMemPerCPU": "2000"}, SHARED, LITTLE.format(8, "DefMemPerCPU=2000"), "Set cluster.memory_gb in exp"),
        ({}, {"DefMemPerNode": "4096"}, SHARED, LITTLE.format(4, "DefMemPerNode=4096"), "Set cluster.memory_gb in exp"),
        ({}, {"DefMemPerCPU": "2000"}, "CR_CORE", None, ""),
        ({}, {"PreemptMode": "CANCEL"}, "", CANCELS.format("warning"), "Set cluster.requeue: false in exp"),
        ({"requeue": False}, {"PreemptMode": "CANCEL"}, "", CANCELS.format("ok"), "After a preemption the same"),
    ],
)
def test_what_a_partition_gives(
    cluster: dict[str, Any], partition: dict[str, str], memory_is: str, found: str | None, fix: str
) -> None:
    config = a_config(cluster=cluster, gpus={"h100": {"cpus_per_task": 4}})
    request = header_variables("", expand(config, Selection())[0].cell, config, results=Path())
    partitions = {"other": {}, "main": {"PartitionName": "main", "Default": "YES", **partition}}
    said = list(judge_request(config, "h100", request, partitions, {"SelectTypeParameters": memory_is}))
    assert [f"{one.verdict}: {one.found}" for one in said] == ([found] if found else [])
    assert all(one.fix.startswith(fix) for one in said)


def test_no_slurm_and_half_an_installation_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = examine_slurm(a_config())
    assert (finding.verdict, finding.found) == ("warning", "sbatch is not on PATH")
    programs(tmp_path, sbatch="", squeue="", scontrol="")
    (finding,) = examine_slurm(a_config())
    assert (finding.verdict, finding.found) == ("problem", "without scancel, sinfo")


@pytest.mark.parametrize(
    ("free", "quota", "fix"),
    [
        ((10**9, 0, 0), "", ""),  # a file system that counts no inodes
        ((10**5, 10**6, 10**6), "", "Free some, or choose others: --results DIR, "),
        ((10**9, 10**6, 90), "", "Free some, or choose others: --results DIR, "),
        ((10**9, 10**6, 10**6), "echo home 5G over", "Free some, or choose others: less in your home."),
    ],
)
def test_room(free: tuple[int, ...], quota: str, fix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = SimpleNamespace(f_bavail=free[0], f_frsize=4096, f_files=free[1], f_favail=free[2])
    monkeypatch.setattr(module.os, "statvfs", lambda folder: told)
    programs(tmp_path, quota=quota)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    finding = examine_room(Results(root=tmp_path))
    assert (finding.name, finding.verdict) == ("room", "warning" if fix else "ok")
    assert finding.fix.startswith(fix) and ("quota: home 5G over" in finding.found) == bool(quota)


def test_wandb_key_is_found_as_the_client_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    config = a_config(wandb={"mode": "auto"})
    assert "no key for http://127.0.0.1:9: runs are kept offline" in examine_wandb(config).found
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1:9 login user password {'0' * 40}\n")
    (tmp_path / ".netrc").chmod(0o600)
    found = examine_wandb(config).found
    assert "a key for http://127.0.0.1:9 is configured" in found and "0" * 40 not in found
    assert examine_wandb(a_config(wandb={"mode": "disabled"})).found == "disabled in experiments.yaml"


def test_data_are_one_finding_and_what_is_damaged_one_more(tmp_path: Path) -> None:
    drawn = "none needed: synthetic (random inputs, made on the device from the seed)"
    assert examine_data(["synthetic"], tmp_path) == [Finding("data", "ok", drawn)]
    none, missing = examine_data(["mnist", "synthetic", "cifar10"], tmp_path)
    assert none == Finding("data", "ok", drawn)
    assert (missing.verdict, missing.found) == ("warning", f"not in {tmp_path}: mnist, cifar10")
    assert "python main.py data --benchmark mnist --benchmark cifar10" in missing.fix
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "manifest.json").write_text("{")
    damaged, missing = examine_data(["mnist", "cifar10"], tmp_path)
    assert (damaged.name, damaged.verdict) == ("data mnist", "problem")
    assert missing.found == f"not in {tmp_path}: cifar10"


@pytest.mark.parametrize(("problems", "status"), [((), 0), (("jax",), 0), (("jax", "torch"), 1), (("results",), 1)])
def test_exit_status_and_last_line(problems: tuple[str, ...], status: int) -> None:
    names = ("python", "jax", "torch", "results")
    findings = [Finding(name=n, verdict="problem" if n in problems else "warning", found="") for n in names]
    assert exit_status(findings) == status
    line, closer = last_line(findings, computed=False), "`python main.py doctor --compute` also compiles"
    begin = f"To be corrected: {', '.join(problems)}." if problems else "No check failed. Warnings: python, jax, torch"
    assert line.startswith(begin) and (closer in line) == (not problems)
    assert closer not in last_line(findings, computed=True)
    assert last_line([Finding(name="python", verdict="ok", found="")], computed=True) == "All checks passed."


def test_neither_framework_works_and_results_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    nothing = {"python": "/no/such/python", "setup": ()}
    config = a_config(cluster={"frameworks": {"jax": nothing, "torch": nothing}}, wandb={"mode": "disabled"})
    console = plain(200)
    assert doctor(config, Results(root=tmp_path / "results"), console=console) == 1
    lines = {words[0]: words[1] for line in text(console).splitlines() if len(words := line.split()) > 1}
    assert (lines["jax"], lines["torch"], lines["python"], lines["results"]) == ("problem", "problem", "ok", "ok")
    assert "cluster.frameworks.jax" in text(console) and "slurm" in lines
    (tmp_path / "file").write_text("")
    findings = {one.name: one for one in examine(config, Results(root=tmp_path / "file"), slurm=False)}
    assert not [name for name in findings if "slurm" in name]
    assert findings["results"].fix == "Choose another folder with --results DIR."
