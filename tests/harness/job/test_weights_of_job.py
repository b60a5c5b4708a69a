"""Pretrained weights in a job: verified before the first measurement, named in each record, given to each session."""

import json
from pathlib import Path

import numpy as np
import pytest
from torchvision import models

from harness.errors import DataError
from harness.experiments.expand import Selection, expand
from harness.job.job import Job
from harness.job.main import verified_weights
from harness.job.ranks import RanksReport
from harness.measure.process import make_session
from harness.paths import JobFolder, Results
from harness.plan import JobPlan
from harness.results.record import read_record
from harness.work.benchmarks.imagenet100 import BENCHMARK
from harness.work.datasets import DataFiles, fetch
from harness.work.pretrained import WeightsFiles, fetch_weights
from tests.made.config_text import PRETRAINED, config_of
from tests.made.image_folders import put_images
from tests.made.originals import put_weights
from tests.made.project import alone

MODEL = "mobilenet_v3_small"
OTHER = "efficientnet_b0"


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_images(DataFiles(data_dir=tmp_path, benchmark="imagenet100").originals, train=1, val=1)
    fetch(BENCHMARK.data, tmp_path)
    put_weights(tmp_path, MODEL, models.get_model(MODEL).state_dict(), monkeypatch)
    fetch_weights("imagenet100", MODEL, tmp_path)
    return tmp_path


def plan_of(model: str, data_dir: Path) -> JobPlan:
    selection = Selection(benchmarks=("imagenet100",), use_cases=(5,), frameworks=("torch",))
    (pair,) = expand(config_of(PRETRAINED, data_dir), selection)
    (plan,) = pair.jobs
    variants = tuple(variant.model_copy(update={"model": model}) for variant in plan.variants)
    return plan.model_copy(update={"variants": variants, "data_dir": str(data_dir)})


def test_the_record_says_which_weights_it_began_with(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(MODEL, data_dir)
    weights = verified_weights(alone(plan))
    manifest = json.loads(WeightsFiles(data_dir=data_dir, benchmark="imagenet100", model=MODEL).manifest.read_text())
    assert weights.keys() == {MODEL} and weights[MODEL].sha256 == manifest["sha256"]
    results = Results(root=data_dir / "results")
    arm = Job(alone(plan), JobFolder(root=data_dir / "job"), results, data=None, weights=weights)._arms["torch"]
    monkeypatch.setattr(arm, "_work", lambda *_: RanksReport(outcome="failed", reason="not measured here"))
    measurement = next(plan.measurements())
    arm.measure_unless_settled(measurement)
    (path,) = results.record_files(measurement)
    assert read_record(path).weights == weights[MODEL]


def test_a_job_whose_weights_are_missing_does_not_begin_and_one_that_draws_its_own_needs_none(data_dir: Path) -> None:
    plan = plan_of(OTHER, data_dir)
    with pytest.raises(DataError, match=f"the weights of {OTHER} are not here"):
        verified_weights(alone(plan))
    for settings in ({"weights": "drawn"}, {}):
        assert verified_weights(alone(plan.model_copy(update={"settings": settings}))) == {}


def test_a_session_has_them_where_the_settings_ask_for_them(data_dir: Path) -> None:
    measurement = next(plan_of(MODEL, data_dir).measurements())
    session = make_session(measurement, None, data_dir)
    assert session.pretrained and session.dataset.train_count == 100
    bias = session.pretrained("classifier.3.bias", (100,))
    assert isinstance(bias, np.ndarray) and np.isfinite(bias).all()
    drawn = measurement.model_copy(update={"settings": {"weights": "drawn"}})
    assert make_session(drawn, None, data_dir).pretrained is None
