"""A release is one version, date and section of the changelog; and a workflow runs what there is."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.paths import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def of_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_version_and_date_are_those_of_the_newest_section() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    (version, date), *_ = re.findall(r"^## ([\d.]+) - ([\d-]+)$", changelog, re.MULTILINE)
    assert "\n## Unreleased\n" in changelog.partition(f"\n## {version} - ")[0]
    citation = of_yaml(REPOSITORY / "CITATION.cff")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    preferred = citation["preferred-citation"]
    assert {project["version"], str(citation["version"]), str(preferred["version"])} == {version}
    assert (str(citation["date-released"]), preferred["year"]) == (date, int(date[:4]))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there_by_pinned_actions(workflow: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    steps = [step for job in of_yaml(workflow)["jobs"].values() for step in job["steps"]]
    made = [re.match(r"make ([\w-]+)", step["run"]) for step in steps if step.get("run", "").startswith("make ")]
    assert all(match and match[1] in targets for match in made)
    programs = [step["run"] for step in steps if step.get("run", "").startswith("./") or step.get("run") == ".ci/run"]
    assert all((REPOSITORY / program).exists() for program in programs) and (made or programs)
    used = [step["uses"] for step in steps if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", one) for one in used)
