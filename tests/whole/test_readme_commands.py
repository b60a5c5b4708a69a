"""README's commands, in the order in which a reader types them: each works where the ones above it have been typed.

Nothing is installed, downloaded, submitted or measured: make and main.py only show what they would do.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import main
from harness.paths import REPOSITORY, Results
from tests.made.project import copy_repository, without_slurm
from tests.made.report_records import pair, save

MAKES_ENVIRONMENT = {"env", "env-dev", "demo", "test", "test-fast"}
ACTIVATE = "source .venv/bin/activate"


class Reader:
    """Someone who has cloned the repository, and types one line after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.has_environment = self.is_active = False
        self.fetched: set[str] = set()

    def problems(self, text: str) -> Iterator[str]:
        """Yield what goes wrong, with the line."""
        for line in lines_of(text):
            for problem in self._type(shlex.split(line, comments=True)):
                yield f"{line}: {problem}"

    def _type(self, words: Sequence[str]) -> Iterator[str]:
        match list(words):
            case ["make", *targets]:
                yield from self._run("make", "--dry-run", *targets)
                self.has_environment |= not MAKES_ENVIRONMENT.isdisjoint(targets)
            case ["source", path]:
                if path != ".venv/bin/activate" or not self.has_environment:
                    yield "nothing has made it"
                self.is_active = True
            case ["$EDITOR", path]:
                if not (self.root / path).is_file():
                    yield "there is no such file"
            case ["git", "clone", *_] | ["cd", *_]:
                pass
            case ["python", "main.py", *rest]:
                if not self.is_active:
                    yield f"python has no packages: `{ACTIVATE}` comes before"
                yield from self._main(rest)
            case _:
                yield "nobody has tried such a command"

    def _main(self, words: list[str]) -> Iterator[str]:
        command = words[0] if words and not words[0].startswith("-") else ""
        if command in ("data", "doctor"):
            arguments = main.COMMAND_PARSERS[command][0]().parse(words[1:])
            self.fetched |= set(getattr(arguments, "benchmark", None) or ())
            return
        yield from self._run(sys.executable, "main.py", *words, *([] if command else ["--dry-run"]))

    def _run(self, *words: str) -> Iterator[str]:
        outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
        environment = {name: value for name, value in without_slurm().items() if name not in outer}
        done = subprocess.run(words, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            yield f"status {done.returncode}: {done.stderr.strip()[-300:]}"
        for name in re.findall(r"/data/(\w+)/manifest\.json is not here", " ".join(done.stdout.split())):
            if name not in self.fetched:
                yield f"the data of {name} are not here"


def lines_of(text: str) -> Iterator[str]:
    """Yield the commands in blocks of `sh`, without continuations and comments."""
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if words := " ".join(line.partition(" #")[0].split()):
                yield words


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two records, as if what is dry here had been measured."""
    root = tmp_path_factory.mktemp("clone")
    copy_repository(root)
    for name in ("Makefile", "install.sh", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, root / name)
    shutil.copytree(REPOSITORY / "constraints", root / "constraints")
    for record in pair(replicates=1):
        save(record, Results(root=root / "results"))
    return root


def test_each_command_of_readme_works_after_the_ones_above_it(clone: Path) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert {"make demo", "make test"} <= set(lines_of(text))
    assert list(Reader(clone).problems(text)) == []


SH = "```sh\n{}\n```\n"
RUN = "python main.py --benchmark mnist --use_case 1 --quick --wait"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((ACTIVATE, "python main.py report"), f"{ACTIVATE}: nothing has made it"),
        (("make demo", "python main.py doctor"), "python main.py doctor: python has no packages"),
        (("make env", ACTIVATE, "python main.py data --benchmark cifar10", RUN), "the data of mnist are not here"),
        (("make env", ACTIVATE, f"{RUN} --data real"), "the data of mnist are not here"),
        (("make nothing",), "make nothing: status 2"),
        (("make env", ACTIVATE, "python main.py --benchmark mnits"), "status 2: --benchmark mnits"),
        (("$EDITOR experiment.yaml",), "there is no such file"),
        (("rm -r .venv",), "nobody has tried such a command"),
    ],
)
def test_what_goes_wrong_is_found(clone: Path, lines: Sequence[str], problem: str) -> None:
    [found] = Reader(clone).problems(SH.format("\n".join(lines)))
    assert problem in found


def test_what_was_fetched_before_is_there(clone: Path) -> None:
    right = ("make demo    # 4 minutes", ACTIVATE, "python main.py data --benchmark mnist", RUN, f"{RUN} --data sample")
    assert list(Reader(clone).problems(SH.format("\n".join(right)))) == []
    assert not (clone / ".venv").exists() and not (clone / "data").exists()
