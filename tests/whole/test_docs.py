"""What README.md and docs/ claim about the repository is true: links, commands, flags, paths, settings, thresholds.

tests/whole/test_adding.py follows the instructions of docs/adding.md.
"""

import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import main
from harness.paths import REPOSITORY
from harness.plan import MeasurementSettings
from harness.results.parity import QUANTITIES, Quantity
from harness.results.rules import RULES
from harness.results.sequential import CRITICAL_VALUES

DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
STUDIES = sorted(path.stem for path in (DOCS / "studies").glob("[!R]*.md"))
FIGURE = re.compile(
    r"\d[\d,.]*\s*(?:k\s*)?(?:samples|images|img|steps)\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b", re.IGNORECASE
)
MADE_LATER = ("results", "data", "slurm_scripts", ".venv", "use_cases", "benchmarks")
"""First parts of paths that a run makes, or that mean both runners' folders."""


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


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
    return {path for path in paths if path.partition("/")[0] not in MADE_LATER or path.startswith("results/published/")}


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
def test_no_generated_part_is_empty(page: Path) -> None:
    assert empty_parts(page.read_text()) == []


def test_an_empty_generated_part_is_noticed() -> None:
    text = "<!-- a -->\n| b |\n<!-- end of a -->\n\nWords.\n<!-- c:begin -->\n\n<!-- c:end -->\n"
    assert empty_parts(text) == ["<!-- c:begin -->\n\n<!-- c:end -->"]


@every_page
def test_every_command_is_one_that_main_py_takes(page: Path) -> None:
    for words in commands(page.read_text()):
        name = words[0] if words and not words[0].startswith("-") else ""
        assert name in main.COMMAND_PARSERS, words
        parser, _ = main.COMMAND_PARSERS[name]
        flags = words[1:] if name else words
        if "--help" not in flags:  # it would end this process
            parser().parse(flags)


def test_commands_are_found_and_wrong_ones_are_noticed() -> None:
    text = "Run `python main.py report --csv x`.\n```sh\npython main.py --wiat   # no such flag\n```\n"
    found = list(commands(text))
    assert found == [["report", "--csv", "x"], ["--wiat"]]
    with pytest.raises(SystemExit):
        main.run_parser().parse(found[1])


@every_page
def test_every_flag_in_backticks_exists(page: Path) -> None:
    """Of main.py, or of a runner's run.py (its parser is in harness/job/)."""
    known = {flag for parser, _ in main.COMMAND_PARSERS.values() for flag in parser()._option_string_actions}
    for path in (REPOSITORY / "harness" / "job").glob("*.py"):
        known |= set(re.findall(r'"(--[\w-]+)"', path.read_text()))
    for words in re.findall(r"`([^`]+)`", prose(page.read_text())):
        if words.startswith("wandb "):
            continue
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", words):
            assert flag in known, words


@every_page
def test_every_make_target_exists(page: Path) -> None:
    defined = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert make_targets(page.read_text()) <= defined


def test_make_targets_are_found() -> None:
    assert make_targets("We make sense.\n\n    make tset   # wrong\n\nOr `make lint`.") == {"tset", "lint"}


@every_page
def test_every_path_of_the_repository_exists(page: Path) -> None:
    missing = [path for path in sorted(repository_paths(page.read_text())) if not (REPOSITORY / path).exists()]
    assert missing == []


def test_paths_are_found() -> None:
    text = "`harness/nothing.py`, `harness/`, `results/x`, `results/published/x`, `a/b`, `main.py`"
    assert repository_paths(text) == {"harness/nothing.py", "harness/", "results/published/x", "main.py"}


@every_page
def test_every_module_that_a_page_runs_exists(page: Path) -> None:
    """Now, or at the commit that the page of a study names."""
    for name in re.findall(r"python -m ([\w.]+)", page.read_text()):
        path = REPOSITORY / name.replace(".", "/")
        if name.startswith("studies."):
            assert re.search(r"At commit `[0-9a-f]{7}`", page.read_text()), name
            continue
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


def test_every_study_is_in_the_index() -> None:
    assert len(STUDIES) > 1
    index = (DOCS / "studies" / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+)\.md\)", index)) == STUDIES


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_of_a_study_has_all_of_its_parts(name: str) -> None:
    text = (DOCS / "studies" / f"{name}.md").read_text()
    parts = dict(re.findall(r"^\*\*(\w+)\.\*\* (.*?)(?=^\*\*[A-Z]|\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(parts) == ["Question", "Command", "Record", "Result", "Decision"]
    assert ("python main.py calibrate" if name == "calibration" else f"python -m studies.{name}") in parts["Command"]
    assert "`results/published/" in parts["Record"]
    assert "\n| --- |" in parts["Result"] or "\n|---|" in parts["Result"]


def test_architecture_names_every_module() -> None:
    text = (DOCS / "architecture.md").read_text()
    modules = {path.name for folder in ("harness", "pipeline") for path in (REPOSITORY / folder).rglob("[!_]*.py")}
    assert [name for name in sorted(modules) if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("text", ["21,700 samples/s", "3k images per second", "12.5 img/sec", "900 steps/s"])
def test_a_figure_of_speed_is_recognised(text: str) -> None:
    assert FIGURE.search(text)


def test_readme_claims_no_speed() -> None:
    """Until the README has a table made from records, no figure in it could be backed by one."""
    assert FIGURE.findall((REPOSITORY / "README.md").read_text()) == []


def test_readme_has_the_section_that_messages_name() -> None:
    assert "see the README's section on W&B" in (REPOSITORY / "harness" / "job" / "wandb_process.py").read_text()
    assert re.search(r"^## .*W&B", (REPOSITORY / "README.md").read_text(), re.MULTILINE)


def test_measurement_page_has_the_defaults() -> None:
    text = (DOCS / "measurement.md").read_text()
    table = text.partition("### Settings")[2].partition("###")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+|true|false) \|", table, re.MULTILINE))
    assert {name: json.loads(value) for name, value in rows.items()} == MeasurementSettings().model_dump()


def tolerances_of(precision: str, text: str) -> list[float]:
    """In the first table that has a row for it."""
    (row, *_) = re.findall(rf"^\| `{precision}` \| (.*) \|$", text, re.MULTILINE)
    return [float(cell) for cell in row.split(" | ")]


def test_measurement_page_has_the_thresholds() -> None:
    from harness.work import closeness

    text = (DOCS / "measurement.md").read_text()
    of_samples = text.partition("### The check of per-sample gradients")[2]
    of_training = text.partition("## Use case 1: training")[2]
    of_outputs = text.partition("### The check of outputs")[2]
    for precision, tolerance in closeness.TOLERANCES.items():
        assert tolerances_of(precision, of_samples) == [*tolerance]
        expected = [closeness.LOSSES[precision], *closeness.WITH_BATCH_NORM[precision]]
        assert tolerances_of(precision, of_training) == expected
        assert tolerances_of(precision, of_outputs) == [*closeness.OUTPUTS[precision]]
    flags = dict(
        re.findall(r"^\| `(\w+)` \| (.+) \|$", text.partition("### Flags")[2].partition("\n## ")[0], re.MULTILINE)
    )
    modules = [
        import_module(f"harness.results.{path.stem}") for path in (REPOSITORY / "harness/results").glob("[!_]*.py")
    ]
    known = {name: value for module in modules for name, value in vars(module).items()}
    assert f"above {known['IMPRECISE'] * 100:.0f} %" in flags["imprecise"]
    assert f"the {known['DIFFER_LEVEL'] * 100:.0f} % quantile" in flags["processes_differ"]
    assert (
        f"more than {known['RATIO_DRIFT'] * 100:.0f} %, and by {known['RATIO_DRIFT_ERRORS']:.0f} of" in flags["drift"]
    )
    assert f"under {known['SHORT_BLOCK_S']} s" in flags["short_blocks"]
    assert f"under {known['calls_needed'](0.95)} calls" in flags["too_few_latency_calls"]
    assert f"under {known['calls_needed'](0.99)} calls" in flags["too_few_calls_for_p99"]
    assert f"below {known['LOW_CLOCK_SHARE'] * 100:.0f} %" in flags["low_clocks"]
    assert f"under {known['ENERGY_WINDOW_MIN_S']:.0f} s" in flags["energy_window_short"]
    assert f"at least {known['HELD_BACK_SHARE'] * 100:.0f} %" in flags["throttled"]
    assert f"jaxlib {' or '.join(known['KNOWN_SLOW_JAXLIB'])} on a GPU" in flags["known_slow_jaxlib"]


def test_measurement_page_has_the_designs() -> None:
    text = (DOCS / "measurement.md").read_text()
    looks = [int(pairs) for pairs in re.findall(r"\d+", *re.findall(r"^  \| at most \|(.*)$", text, re.MULTILINE))]
    rows = re.findall(r"^  \| (\d+) pairs \| (.*) \|$", text, re.MULTILINE)
    stated = {
        int(most): dict(zip(looks, map(float, re.findall(r"[\d.]+", cells)), strict=False)) for most, cells in rows
    }
    assert stated == CRITICAL_VALUES
    assert "looks](#replicates-and-the-ratio) at 4, 6, 8 and 12 pairs" in text and max(RULES) == 3


def test_measurement_page_has_all_flags() -> None:
    text = (DOCS / "measurement.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", text.partition("### Flags")[2].partition("\n## ")[0], re.MULTILINE)
    sources = [path for folder in ("harness/results", "pipeline/report") for path in (REPOSITORY / folder).glob("*.py")]
    code = "\n".join(path.read_text() for path in sources)
    given = re.findall(r'(?:flags\[|return \{)"(\w+)"\] =|return \{"(\w+)": (?:f"|"its )', code)
    assert sorted(listed) == sorted({name for names in given for name in names if name})


def test_measurement_page_has_the_tolerances_of_the_gate() -> None:
    table = (DOCS / "measurement.md").read_text().partition("## The parity gate")[2]
    rows = re.findall(r"^\| (`.+`) \| .+ \| (\d[^|]*) \|$", table.partition("**Why these")[0], re.MULTILINE)
    stated = {name: tolerance for names, tolerance in rows for name in re.findall(r"`(\w+)`", names)}
    assert stated == {name: in_words(quantity) for name, quantity in QUANTITIES.items()}


def in_words(quantity: Quantity) -> str:
    def short(tolerance: float) -> str:
        return f"{tolerance:.0e}".replace("e-0", "e-")

    if quantity.typical is None:
        return short(quantity.tolerance)
    return f"{short(quantity.typical)} together and median, {short(quantity.tolerance)} each"
