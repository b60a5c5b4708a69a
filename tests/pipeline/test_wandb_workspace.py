"""`main.py wandb`: what is in the workspace; and made by the real package against the stand-in for W&B's server, which
shows what is sent, and not that the web application draws it."""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.errors import ProjectError
from harness.job.wandb_process import STEP_AXES
from harness.results.partner import RATIO
from harness.results.quantities import BY_NAME
from pipeline.wandb_workspace import panel_groups, save
from tests.made.wandb_server import WandbServer, main_wandb

needs_package = pytest.mark.skipif(find_spec("wandb_workspaces") is None, reason="needs the extra `workspace`")


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


def test_every_panel_shows_what_runs_log() -> None:
    """Over the axis that the family of its metrics has in the runs."""
    for panel in (panel for group in panel_groups(["accuracy"]) for panel in group.panels):
        assert bool(panel.keys) != bool(panel.pattern)
        for key in (*panel.keys, *([panel.pattern.lstrip("^")] if panel.pattern else [])):
            family, _, name = key.partition("/")
            assert panel.over == next((axis for axis, own in STEP_AXES.items() if f"{family}/*" in own), "Step")
            assert panel.pattern or name in {*BY_NAME, RATIO}


def test_a_list_without_a_server(server: WandbServer, tmp_path: Path) -> None:
    status, said = main_wandb(server, tmp_path, "--dry-run", key=None)
    assert status == 0 and server.requests == []
    assert "  test bits per byte, over epoch" in said  # enwik8's metric
    assert "  parameters (parameter_count)" in said and "{" not in said
    assert "  metric on the test set (test_metric)" in said and "  time to the target (time_to_target_s)" in said


@needs_package
def test_the_workspace_arrives_at_the_server(server: WandbServer, tmp_path: Path) -> None:
    status, said = main_wandb(server, tmp_path, "--project", "speed")
    assert status == 0, said
    (view,) = server.views
    assert (view["entityName"], view["projectName"], view["type"]) == ("lab", "speed", "project-view")
    assert f"Saved: {server.url}/lab/speed?nw=" in said
    section = json.loads(view["spec"])["section"]
    drawn = {one["name"]: one["panels"] for one in section["panelBankConfig"]["sections"]}
    wanted = panel_groups(["accuracy"])
    assert [one.title for one in wanted] == [name for name in drawn if name in {group.title for group in wanted}]
    latency = [panel["config"]["metrics"] for panel in drawn["Latency of a step"]]
    assert latency == [[f"measurement/step_time_{name}_s"] for name in ("p50", "p95", "p99")]
    loss = drawn["Loss and metric"][0]["config"]
    assert (loss["metricRegex"], loss["xAxis"]) == ("^train/loss/", "epoch")
    assert "ratios" in json.dumps(drawn["Ratios"])
    (runs,) = section["runSets"]
    assert [key["name"] for key in runs["grouping"]] == ["group", "jobType"]


@needs_package
def test_a_missing_key_and_a_server_that_refuses_are_said(server: WandbServer, tmp_path: Path) -> None:
    status, said = main_wandb(server, tmp_path, key=None)
    assert status == 2 and "Traceback" not in said
    assert "wandb login" in said and server.views == []
    server.fail_with = 403
    status, said = main_wandb(server, tmp_path)
    assert status == 2 and "Traceback" not in said
    assert said.startswith("W&B has not taken the workspace for ") and "no entity" not in said


def test_without_the_package_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(ProjectError, match=r"pip install -e '\.\[workspace\]'"):
        save([], entity="lab", project="speed")
