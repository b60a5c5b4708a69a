"""Mistakes that a user can make, and the whole answer to each, as one golden file (mistakes.txt).

An answer says where, what value, which rule, what is valid and what is near. main.py runs in this process.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.made.calls import call, nothing_leaves_the
from tests.made.config_text import MINIMAL, changed
from tests.made.golden import require_golden

HEADER = """\
# Mistakes of users, and what main.py answers to each. The exit status is 2, or 1 after `data --verify`.
# The configuration is MINIMAL of tests/made/config_text.py; a mistake in it is shown as the lines that take the place
# of its own. CONFIG, RESULTS, DATA and EMPTY are paths.
#
# To accept a change: ACCEPT=1 python -m pytest -n 0 tests/whole/test_mistakes.py
"""

COMMAND_LINES = """\
--benchmrk mnist
--benchmark minst
--use_case trian
--framework jxa
--executor slrum
--batch_size 0
--wait status
--precision fp8
--formulation loop --run compiled --use_case 3 --benchmark mnist
--execution_mode step.jit --framework torch
--option epochs=3
--set output=full --use_case 3
--set replicates=7
--set epochs=2 --set epochs=3
--set pairing=turns
--gpu a10
--preset headlin
--devices 3
--execution_mode step.jitt
--benchmark cifar10 --use_case 3 --model resnet18
--benchmark cifar10 --use_case 3 --option output=ful
--set epoch=2
--cluster nowhere
--results CONFIG
sttus
status --wacth
status --cancel --watch
status --results EMPTY/gone
report --fail-above 3%
report --baseline EMPTY/gone
data --benchmark minst
"""
"""Flags that are not among the later ones stand here in the form that they have today."""

IN_THE_FILE = [
    ("time_limit_minutes: 30", "time_limit_minutes: true"),
    ("per_node: 4", "per_nodes: 4"),
    ("  time_limit_minutes: 30\n", "  time_limit_minutes: 30\n  sbatch_options: [--gres=gpu:2]\n"),
    ("  time_limit_minutes: 30\n", "  time_limit_minutes: 30\n  srun_options: [--gres=none]\n"),
    ("  time_limit_minutes: 30\n", '  time_limit_minutes: 30\n  partition: "x\\n#SBATCH --array=0-9"\n'),
    ("{python: /opt/jax/bin/python}", "{python: -c}"),
    ("{python: /opt/jax/bin/python}", "{runtime: podman}"),
    ("gpus: [any]", "gpus: [any, a10]"),
    ("name: train", "name: trian"),
    ("batch_sizes: [64]", "batch_sizes: []"),
    ("    batch_sizes: [64]\n", "    devices: 4\n    batch_sizes: [64, 66]\n"),
    ("precisions: [fp32]", "precisions: [fp16]"),
    ("epochs: 2", "epochs: 2.5"),
    ("momentum: 0.9", "momentum: 0.9, momentun: 1"),
    ("clip_norm: 1.0", "clip_norm: 1e999"),
    ("[norms, full]", "[norms, ful]"),
    ("project: trial", "project: !foo trial"),
    ("project: trial", "project: trial\ndata_dir: ~nosuchuser/x"),
    ("project: trial", "project: trial\nmeasurement: {min_time_s: 13}"),
    ("project: trial", "project: [trial"),
    ("project: trial", 'project: "a\\ud800"'),
    ("project: trial", "project: trial\nmeasurement: {replicates: 5}"),
    ("    batch_sizes: [64]\n", ""),
    ("batch_sizes: [64]", "batch_sizes: [64, 64]"),
    ("  a100: {per_node: 4}\n", "  any: {gres: a100}\n"),
    ("    name: train\n", "    name: train\n    devices: 4\n    nodes: 3\n"),
    ("torch: [step]}", "torch: [steps]}"),
    ("torch: [step]}", "torch: [step, epoch]}"),
    (", target_metric: 0.5", ""),
    ("- {formulation: loop, batch_size: 32}", "- {}"),
    ("- {formulation: loop, batch_size: 32}", "- {framework: torch, benchmark: mnist}"),
    ("  mnist: {models: [cnn]}\n", "  mnist: {models: [cn], sizes: {classes: 3}}\n"),
    ("project: trial", "project: trial\nquick: {runs: {torch: [egaer]}}"),
    ("project: trial", "project: trial\npresets: {one: {about: x, parts: [{benchmarks: [minst]}]}}"),
]


MANIFESTS = {"is cut off": '{"schema', "is an empty mapping": "{}"}


class Project:
    """A configuration, and folders beside it."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "experiments.yaml"
        self.data = folder / "data"
        empty = folder / "empty"
        empty.mkdir()
        self._paths = {"CONFIG": self.config, "RESULTS": folder / "results", "DATA": self.data, "EMPTY": empty}

    def answer(self, words: str, status: int = 2) -> str:
        """Return what main.py prints. `status`: with which it must exit."""
        given = words
        for name, path in self._paths.items():
            given = given.replace(name, str(path))
        exited, output, errors = call(*given.split())
        text = output + errors
        assert exited == status, (words, text)
        for name, path in self._paths.items():
            text = text.replace(str(path), name)
        return text


UNSEEN = {"": ["--dry-run", "--executor local", "--config CONFIG", "--results RESULTS"], "data": ["--config CONFIG"]}
"""Flags that are needed, by command, and are no part of a mistake."""


def answers_to_command_lines(project: Project) -> Iterator[str]:
    project.config.write_text(MINIMAL)
    for words in COMMAND_LINES.splitlines():
        command = "" if words.startswith("-") else words.partition(" ")[0]
        unseen = [flag for flag in UNSEEN.get(command, []) if flag.partition(" ")[0] not in words]
        yield f"$ python main.py {words}\n{project.answer(' '.join([words, *unseen]))}"


def answers_to_configurations(project: Project) -> Iterator[str]:
    for old, new in IN_THE_FILE:
        text = changed(old, new) if MINIMAL.count(old) == 1 else MINIMAL.replace(old, new, 1)
        project.config.write_text(text)
        shown = [line.strip() for line in text.splitlines() if line not in MINIMAL.splitlines()]
        answer = project.answer("--dry-run --executor local --config CONFIG --results RESULTS")
        shown = shown or [f"(without {old.strip()})"]
        yield "\n".join(["# experiments.yaml:", *(f"#   {line}" for line in shown), answer])


def answers_to_data(project: Project) -> Iterator[str]:
    """A job that begins on such files fails with the same words as `data --verify`."""
    project.config.write_text(MINIMAL + f"data_dir: {project.data}\n")
    answer = project.answer("--benchmark mnist --executor local --config CONFIG --results RESULTS")
    yield f"# DATA is empty\n$ python main.py --benchmark mnist\n{answer}"
    folder = project.data / "mnist"
    folder.mkdir(parents=True)
    for what, manifest in MANIFESTS.items():
        (folder / "manifest.json").write_text(manifest)
        answer = project.answer("data --verify --benchmark mnist --config CONFIG", status=1)
        yield f"# DATA/mnist/manifest.json {what}\n$ python main.py data --verify --benchmark mnist\n{answer}"


def test_each_mistake_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no Slurm that would name its cluster
    monkeypatch.setenv("COLUMNS", "100")
    project = Project(tmp_path)
    with nothing_leaves_the(tmp_path):
        answers = [
            *answers_to_command_lines(project),
            *answers_to_configurations(project),
            *answers_to_data(project),
        ]
    text = "\n".join([HEADER, *answers])
    assert "Traceback" not in text
    require_golden(Path(__file__).with_name("mistakes.txt"), text, __file__)
