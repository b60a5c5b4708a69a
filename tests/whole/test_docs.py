"""What README.md, docs/ and the pages of use cases claim about the repository is true: links, commands, flags, paths.

tests/whole/test_adding.py follows docs/adding.md; tests/pipeline/test_reference.py has the generated page.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import main
from harness.paths import REPOSITORY
from harness.work.declared import use_case_names

DOCS = REPOSITORY / "docs"
OF_USE_CASES = [REPOSITORY / "harness" / "work" / "use_cases" / f"{name}.md" for name in use_case_names()]
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md")), *OF_USE_CASES]
MADE_LATER = ("results", "data", "slurm_scripts", ".venv", "use_cases", "benchmarks")
"""First parts of paths that a run makes, or that mean both runners' folders."""
OF_THE_RECIPE = ("fashion_mnist", "evaluate")
OTHER_PROGRAMS = ("wandb ", "srun ", "sbatch")
"""Commands whose flags are not those of main.py. A flag behind `=` is the value of a variable, such as XLA_FLAGS."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def prose(text: str) -> str:
    """Without fenced code."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings: lower case, punctuation dropped, blanks to dashes."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def empty_parts(text: str) -> list[str]:
    """Two markers with nothing between them: a generated part that nothing fills."""
    return re.findall(r"<!--[^>]*-->\s*<!--[^>]*-->", text)


def commands(text: str) -> Iterator[list[str]]:
    """The words behind each `main.py`, in code blocks and between backticks, without comments."""
    pieces = re.findall(r"`([^`]+)`", prose(text))
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        pieces += block.replace("\\\n", " ").splitlines()
    for piece in pieces:
        line = " ".join(piece.split())
        if line.startswith("python main.py"):
            yield shlex.split(line, comments=True)[2:]


def make_targets(text: str) -> set[str]:
    return set(re.findall(r"(?:^|[`\s])make ([a-z-]+)(?=[`\s]|$)", "\n".join(code(text)), re.MULTILINE))


def code(text: str) -> list[str]:
    """Everything in code blocks, fenced or indented, or between backticks."""
    fenced = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    .+$", prose(text), re.MULTILINE)
    return [*fenced, *indented, *re.findall(r"`[^`]+`", prose(text))]


def repository_paths(text: str) -> set[str]:
    """What is between backticks and looks like a file or folder of the repository."""
    words = re.findall(r"`([\w./-]+)`", prose(text))
    top = {path.name for path in REPOSITORY.iterdir()}
    paths = {word for word in words if word in top or (word.partition("/")[0] in top and "/" in word)}
    return {
        path
        for path in paths
        if (path.partition("/")[0] not in MADE_LATER or path.startswith("results/published/"))
        and not any(name in path for name in OF_THE_RECIPE)
    }


@every_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text()), target


@every_page
def test_every_command_is_one_that_main_py_takes(page: Path) -> None:
    for words in commands(page.read_text()):
        name = words[0] if words and not words[0].startswith("-") else ""
        assert name in main.COMMAND_PARSERS, words
        parser, _ = main.COMMAND_PARSERS[name]
        flags = words[1:] if name else words
        if "--help" not in flags:  # it would end this process
            parser().parse(flags)


@every_page
def test_every_flag_in_backticks_exists(page: Path) -> None:
    """Of main.py, or of a runner's run.py (its parser is in harness/job/)."""
    known = {flag for parser, _ in main.COMMAND_PARSERS.values() for flag in parser()._option_string_actions}
    for path in (REPOSITORY / "harness" / "job").glob("*.py"):
        known |= set(re.findall(r'"(--[\w-]+)"', path.read_text()))
    for words in re.findall(r"`([^`]+)`", prose(page.read_text())):
        if words.startswith(OTHER_PROGRAMS):
            continue
        for flag in re.findall(r"(?<![\w=-])--[a-z][\w-]*", words):
            assert flag in known, words


@every_page
def test_every_target_path_and_module_exists(page: Path) -> None:
    """Targets of make, paths and modules exist, and no generated part is empty."""
    text = page.read_text()
    assert empty_parts(text) == []
    assert make_targets(text) <= set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert [path for path in sorted(repository_paths(text)) if not (REPOSITORY / path).exists()] == []
    for name in re.findall(r"python -m ([\w.]+)", text):
        path = REPOSITORY / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


def test_readme_is_short() -> None:
    """It has at most 800 words without the generated parts."""
    text = (REPOSITORY / "README.md").read_text()
    written = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
    assert len(written.split()) <= 800
