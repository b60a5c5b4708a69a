"""`main.py calibrate --quick` on a real Slurm: one job runs both frameworks, which are fake here, in turn."""

from functools import partial

import pytest

from harness.experiments import load
from harness.plan import CONDITIONS
from harness.results.record import read_record
from main import main
from pipeline import calibrate, measure
from pipeline.submission import render
from pipeline.watching.jobs import job_states
from tests.made.project import QUICK, BehavingProject


def test_it_is_submitted_shown_by_status_and_ends_with_the_table(
    behaving: BehavingProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What main.py measures and where its scripts go: experiments.yaml has no words for the fake frameworks."""
    monkeypatch.setattr(load, "load_config", lambda _path: behaving.config)
    monkeypatch.setattr(render, "write_scripts", partial(render.write_scripts, repository=behaving.root))
    monkeypatch.setattr(measure, "lacking_builds", lambda _pairs: [])
    monkeypatch.setattr(calibrate, "expand", lambda _config, _selection: [behaving.pair()])
    monkeypatch.setattr(calibrate, "QUICK_PROTOCOL", calibrate.PROTOCOL.model_copy(update=QUICK))
    where = ("--results", str(behaving.results.root))
    command = ("calibrate", "--quick", "--executor", "slurm", *where)
    assert main(command) == 0
    (job_id,) = {state.job_id for state in job_states(behaving.results)}
    assert f"any/pair_mnist_1_calibration: submitted as job {job_id}" in capsys.readouterr().out
    assert main(["status", *where]) == 0
    assert capsys.readouterr().out.count("mnist behave, calibration (quick, sample) ") == 1

    assert main([*command, "--wait"]) == 0, capsys.readouterr().out  # the same command follows what runs already
    shown = capsys.readouterr().out
    assert shown.count("already, as job") == 2
    assert shown.count("| A/A |") == 2 and "A quick run: not a result to quote." in shown
    records = [read_record(path) for path in behaving.results.calibration.rglob("*.json")]
    assert len(records) == 2 * 4 * len(CONDITIONS)
    assert {record.environment["slurm"]["job_id"] for record in records} == {job_id}
    assert {record.environment["pairing"]["kind"] for record in records} == {"together"}
    assert main(command) == 0
    assert capsys.readouterr().out.count("every measurement has a record") == 2
