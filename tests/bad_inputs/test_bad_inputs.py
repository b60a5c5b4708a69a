"""Odd files, command lines and values: main.py takes or refuses each of them in words, and writes nothing elsewhere."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.job.progress import write_heartbeat
from harness.paths import JobFolder, Results
from harness.plan_file import write_plan
from harness.work import datasets
from harness.work.datasets import DataFiles
from harness.work.declared import benchmark
from main import COMMAND_PARSERS
from pipeline.watching.jobs import LocalEnd
from tests.made.calibration_records import processes
from tests.made.calls import call, nothing_leaves_the
from tests.made.config_text import PRETRAINED
from tests.made.project import alone
from tests.made.records import heartbeat
from tests.made.report_records import H200, plan, record, save
from tests.made.submissions import submitted

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys or hides, and what no file can hold."""
EXECUTED = ("<script>PWNED", "<img src=x", "\\input{PWNED}", "\\write18{")
ODD_TEXTS = (
    *("", " ", "-", "--", "-x", "a\nb", "a\x00b", "\x1b[31mred", "\x9b31m", "\u202eevil", "\ud800", "x" * 300, "3٣"),
    *("$(touch PWNED)", "`touch PWNED`", "'; touch PWNED; '", '"; touch PWNED; "', "x\n#SBATCH --array=0-9", "x #y"),
    *("{{ 7 * 7 }}", "{% raw %}", "[bold red]x[/]", "[/]", "<script>PWNED</script>", "</script><img src=x onerror=P>"),
    *("\\input{PWNED}", "\\write18{x}", "~nosuchuser/x", "../../x", "/dev/null/x", '=cmd|"/c calc"!A1', "@SUM(1)"),
    *("9" * 5000, "1e999", "😀", "%j", "null", "0x10", "1:30", ".inf", "0_1", "1.0", "1e3", "３", " 1", "+1", "-1"),
)
TEXTS = st.sampled_from(ODD_TEXTS) | st.text(max_size=12) | st.text("'\";|#*~%\\ -é!<$`&{}x", min_size=1, max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | TEXTS
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(TEXTS, SCALARS, max_size=2))
CONFIG = f"""\
{PRETRAINED}
measurement: {{replicates: 4, warmup_s: 2.0}}
quick: {{benchmarks: {{mnist: {{batch_sizes: {{train: [8]}}}}}}, use_cases: {{3: {{batch_sizes: [8]}}}}}}
presets: {{short: {{about: a look, quick: true, data: sample, parts: [{{use_cases: [1], benchmarks: [mnist]}}]}}}}
wandb: {{mode: auto, tags: [a]}}
""".replace("{per_node: 4}", '{per_node: 4, partition: p, constraint: "a&b", sbatch_options: [--exclusive]}')
IN_YAML = ("!!python/object/apply:os.system [touch PWNED]", r'"a\u0007b"', r'"\ud800"', "9" * 5000, "!foo x", "[a")
IN_YAML += ("*no", "-7", "[]", "~", "&a [*a]", "? ", "[" * 1000, "{a: " * 100_000, "a # b", "'", "\t", "\x07", "{a: 1}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder that holds all files, and the working directory."""
    root = tmp_path_factory.mktemp("odd")
    for name in ("here", "results"):
        (root / name).mkdir()
    (root / "config.yaml").write_text(f"{CONFIG}data_dir: {root / 'data'}\n")
    (root / "notes").write_text("mine")
    (root / "link").symlink_to("link")
    os.mkfifo(root / "fifo")
    with contextlib.chdir(root / "here"):
        yield root
    assert not [*root.rglob("PWNED")] and not [*(root / "here").iterdir()]


def answer(folder: Path, *words: str | Path, statuses: tuple[int, ...] = (0, 1, 2)) -> tuple[int, str]:
    """Return the exit status and what is printed. It has no control characters, and a refusal is no empty line."""
    with nothing_leaves_the(folder):
        status, output, errors = call(*map(str, words))
    assert status in statuses, (words, output, errors)
    assert status != 2 or errors.strip(), words
    assert not CONTROL.search(output + errors), (output, errors)
    return status, output + errors


@contextlib.contextmanager
def changed_file(path: Path, new: bytes | Callable[[Path], object]) -> Iterator[None]:
    """Put other content, or something that is not a file, in the place of a file for a while."""
    before = path.read_bytes()
    path.unlink()
    path.write_bytes(new) if isinstance(new, bytes) else new(path)
    try:
        yield
    finally:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_bytes(before)


def nodes_of(node: yaml.Node) -> Iterator[tuple[int, int]]:
    yield node.start_mark.index, node.end_mark.index
    for one in node.value if isinstance(node.value, list) else ():
        for inside in one if isinstance(one, tuple) else (one,):
            yield from nodes_of(inside)


@cache
def nodes_in(text: str) -> list[tuple[int, int]]:
    """Return where each node of a document of YAML or JSON begins and ends."""
    return [*nodes_of(yaml.compose(text, Loader=yaml.BaseLoader))]


@st.composite
def broken(draw: st.DrawFn, text: str) -> bytes:
    """Return a document with a node deleted, doubled, or replaced by another node or by an odd value."""
    (start, end), other = (draw(st.sampled_from(nodes_in(text))) for _ in range(2))
    odd = draw(st.sampled_from(IN_YAML) | st.builds(json.dumps, VALUES))
    new = draw(st.sampled_from(["", text[start:end] * 2, text[slice(*other)], odd, odd, odd]))
    return (text[:start] + new + text[end:]).encode("utf-8", "surrogatepass")


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 28))
MANY = CONFIG.replace("batch_sizes: [64]", f"batch_sizes: {[*range(1, 50_001)]}")


@given(content=broken(CONFIG) | st.sampled_from([BOMB.encode(), MANY.encode()]))
def test_odd_configurations(content: bytes, folder: Path) -> None:
    """Each line of a refusal names its place, and each script has the directives that it must have, once."""
    path = folder / "experiments.yaml"
    path.write_bytes(content)
    usual = ("--dry-run", "--executor", "slurm", "--config", path, "--results", folder / "results")
    status, printed = answer(folder, *usual, statuses=(0, 2))
    for line in printed.splitlines() if status else ():
        assert str(path) in line or line.startswith(("--", "nothing to measure: ")), line
        assert len(line) < 1500 and "pydantic" not in line and "Input should" not in line
    for script in (folder / "slurm_scripts").rglob("*.sh") if status == 0 else ():
        lines = script.read_text().splitlines()
        names = [line.split()[1].partition("=")[0] for line in lines if line.startswith("#SBATCH ")]
        assert len({*names}) == len(names) and not any(map(CONTROL.search, lines)), lines


NEVER = ["-h", "--help-all", "--update-readme", "--publish", "--update-docs", "--watch", "--wait", "--results"]
COMMANDS = {"": ("--dry-run",), "calibrate": ("--dry-run",), "status": (), "report": ("--no-figures",)}
FLAGS = [
    (command, action.option_strings[0], action.nargs == 0)
    for command in COMMANDS
    for action in COMMAND_PARSERS[command][0]()._actions
    if action.option_strings and action.option_strings[0] not in NEVER
]


@given(flag=st.sampled_from(FLAGS), value=TEXTS, place=st.sampled_from(["results", "notes", "link", "fifo", "no"]))
def test_odd_command_lines(flag: tuple[str, str, bool], value: str, place: str, folder: Path) -> None:
    command, name, is_switch = flag
    config = ("--config", folder / "config.yaml") if COMMANDS[command] == ("--dry-run",) else ()
    usual = [*([command] if command else []), *COMMANDS[command], *config, "--results", folder / place]
    status, printed = answer(folder, *usual, f"{name}={value}")
    assert status == 2 or not is_switch
    assert status != 2 or name.replace("-", "_") in printed.replace("-", "_") or str(folder) in printed, printed
    assert (folder / "notes").read_text() == "mine"
    answer(folder, *usual, value)


def change_to(data: st.DataObject, content: bytes, *, is_json: bool = True) -> bytes | Callable[[Path], object]:
    """Draw a damaged copy of a file's content, or something that is not a file."""
    at, more = data.draw(st.integers(0, len(content) - 1)), data.draw(st.binary(min_size=1, max_size=9))
    damaged = [content[:at], content[:at] + more + content[at:], content[:at] + more + content[at + len(more) :]]
    odd = [b"", b"[" * 100_000, b"[]", b"null", os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)]
    if not is_json or data.draw(st.booleans()):
        return data.draw(st.sampled_from([*damaged, *odd]))
    return data.draw(broken(content.decode()))


ENVIRONMENT = H200 | {"git": {"commit": "0123", "clean": True}, "packages": {"a": "2"}}


@pytest.fixture(scope="module")
def measured(folder: Path) -> Results:
    results = Results(root=folder / "measured")
    for framework, mode in (("jax", "step.jit"), ("torch", "step.eager")):
        for replicate in range(2):
            save(record(framework, mode, replicate=replicate, environment=ENVIRONMENT), results)
    for one in processes(2):
        save(one, results)
    return results


@given(data=st.data())
def test_odd_records(data: st.DataObject, measured: Results, folder: Path) -> None:
    """The other records are reported, and no file has what a browser, LaTeX or a spreadsheet would execute."""
    path = data.draw(st.sampled_from(sorted(measured.root.rglob("*-r0-*.json"))))
    command = "calibrate --table" if path.is_relative_to(measured.calibration) else "report --no-figures"
    with changed_file(path, change_to(data, path.read_bytes())):
        answer(folder, *command.split(), "--results", measured.root, statuses=(0,))
    for file in (path for path in measured.report.rglob("*.*") if path.suffix in (".html", ".csv", ".tex")):
        text = re.sub(r"<script>.*?</script>|^%.*?$", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
        assert not CONTROL.search(text) and not [words for words in EXECUTED if words in text], file
        cells = re.split(r"[,\n]", text) if file.suffix == ".csv" else []
        assert not [cell for cell in cells if re.match(r"\"?[=+@]", cell)], file


@pytest.fixture(scope="module")
def job(folder: Path) -> JobFolder:
    """Return the second of two submitted jobs."""
    for benchmark_name in ("mnist", "cifar10"):
        made = plan("jax", "step.jit")
        work = alone(made.model_copy(update={"cell": made.cell.model_copy(update={"benchmark": benchmark_name})}))
        job = Results(root=folder / "jobs").new_job_folder(work)
        write_plan(work, job)
        submitted(job, "local", job_id="999999", node="elsewhere")
        write_heartbeat(heartbeat(pid=999999, replicates_made=1, last_error="e", phase="cold"), job.heartbeat)
        job.local_end.write_text(LocalEnd(error="e", ended_at_unix_s=1.0).model_dump_json())
    return job


@given(name=st.sampled_from(["plan", "submission", "heartbeat", "local_end"]), data=st.data())
def test_odd_job_files(name: str, data: st.DataObject, job: JobFolder, folder: Path) -> None:
    """The other job is shown."""
    path = getattr(job, name)
    with changed_file(path, change_to(data, path.read_bytes())):
        _, printed = answer(folder, "status", "--results", folder / "jobs", statuses=(0, 1))
        assert "mnist train" in printed
        answer(folder, "status", "--cancel", "--results", folder / "jobs", statuses=(0, 1))
    for mark in (folder / "jobs").rglob("cancelled"):
        mark.unlink()


@pytest.fixture(scope="module")
def mnist(folder: Path) -> DataFiles:
    source = benchmark("mnist").data
    assert source
    datasets.fetch(replace(source, read=lambda _: source.sample()), folder / "data")
    return DataFiles(data_dir=folder / "data", benchmark="mnist")


@given(data=st.data())
def test_odd_data_files(data: st.DataObject, mnist: DataFiles, folder: Path) -> None:
    """A damaged file is named; a changed one that is the same data passes."""
    path = data.draw(st.sampled_from([mnist.manifest, mnist.array("train", "images"), mnist.array("test", "labels")]))
    change = change_to(data, path.read_bytes(), is_json=path == mnist.manifest)
    with changed_file(path, b"" if change is os.mkfifo else change):  # NumPy waits for a pipe's other end
        status, printed = answer(folder, "data", "--verify", "--benchmark", "mnist", "--config", folder / "config.yaml")
    assert status == 0 or str(mnist.folder) in printed
