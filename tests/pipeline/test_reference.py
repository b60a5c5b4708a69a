"""docs/reference.md is what the declarations say, and they say something of everything."""

import re
from typing import Literal

import pytest
from pydantic import Field

from harness.paths import REPOSITORY
from harness.plan import Frozen
from harness.results.flags import meanings
from harness.results.quantities import QUANTITIES
from harness.work.declared import use_case
from pipeline.reference import DOCUMENT, USE_CASES, page, parts, settings_table, words_below


def test_the_page_is_what_the_declarations_say() -> None:
    assert DOCUMENT.read_text() == page(parts()), "run `python -m pipeline.reference`"


def test_every_number_formulation_and_run_says_what_it_is() -> None:
    formulations = [one for name in USE_CASES for of in use_case(name).formulations.values() for one in of]
    runs = [run for one in formulations for run in one.runs]
    assert [one.name for one in (*QUANTITIES, *formulations, *runs) if not one.about] == []


@pytest.mark.parametrize("heading", ["Settings of a measurement", *USE_CASES])
def test_every_setting_has_its_sentence(heading: str) -> None:
    of = re.search(rf"^##+ {heading}\n(.*?)(?=^##)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert of and re.findall(r"^\| `(\w+)` \|.*\| *\|$", of[1], re.MULTILINE) == []


def test_every_flag_that_is_set_has_a_meaning() -> None:
    sources = [path for folder in ("harness/results", "pipeline/report") for path in (REPOSITORY / folder).glob("*.py")]
    code = "\n".join(path.read_text() for path in sources)
    found = re.findall(r'flags\["(\w+)"\] =|flags, "(\w+)": words|return \{"(\w+)": (?:f"|"its )', code)
    assert sorted({name for names in found for name in names if name}) == sorted(meanings())


class Example(Frozen):
    """For the test below."""

    steps: int = Field(ge=1, le=2000)
    """How many,
    at most."""
    kind: Literal["a", "b"] = "a"
    rate: float | None = Field(default=None, gt=0)
    """Of it."""


def test_a_setting_is_a_row_with_its_default_its_valid_values_and_its_sentence() -> None:
    assert words_below(Example) == {"steps": "How many, at most.", "rate": "Of it."}
    assert settings_table(Example).splitlines()[2:] == [
        "| `steps` | must be given | at least 1, at most 2,000 | How many, at most. |",
        "| `kind` | `a` | `a`, `b` |  |",
        "| `rate` |  | more than 0 | Of it. |",
    ]
