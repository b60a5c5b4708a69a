"""docs/reference.md is what the declarations say, and they say something of everything."""

import re

import pytest

from harness.paths import REPOSITORY
from harness.results.flags import meanings
from harness.results.quantities import QUANTITIES
from harness.work.declared import use_case
from pipeline.reference import DOCUMENT, USE_CASES, page, parts


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
