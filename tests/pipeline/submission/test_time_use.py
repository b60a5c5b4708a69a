"""How the time of a plan is best split between processes and their blocks; the numbers are worked out by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.paths import Results
from harness.plan import Cell, JobPlan, MeasurementSettings, Pair, Variant, WandbSettings
from pipeline.submission.time_use import Process, Processes, Split, advice, best_split, described

CELL = Cell(gpu="any", benchmark="mnist", use_case=3, use_case_name="per_sample_gradients")
VARIANT = Variant(model="cnn", batch_size=8, precision="fp32", execution_mode="vmap.jit")
NOISY_PROCESSES = Processes(count=3, between=4e-4, within=1e-3, beside_s=16.0, block_s=0.1, blocks=300)
"""Equal ones differ by 2 %."""


def process(log_s: float, calls: int = 1) -> Process:
    """Two blocks, 0.1 below and above it in logarithms."""
    return Process([calls * math.exp(log_s - 0.1), calls * math.exp(log_s + 0.1)], calls, beside_s=8.0 + log_s)


def test_variances_of_processes_and_of_their_blocks() -> None:
    """Logarithms -0.1 and 0.1 have the variance 0.02; 0, 0.2 and 0.4 have 0.04, of which pi / 2 * 0.02 / 2 is the
    blocks'. A block of twice the calls takes twice the time."""
    found = described([[process(0.0), process(0.2, calls=2), process(0.4)]])
    assert found is not None
    assert (found.count, found.blocks) == (3, 2)
    assert found.within == pytest.approx(0.02)
    assert found.between == pytest.approx(0.04 - math.pi / 2 * 0.01)
    assert found.beside_s == pytest.approx(8.2)
    assert found.block_s == pytest.approx(math.cosh(0.1) * (1 + 2 * math.exp(0.2) + math.exp(0.4)) / 3)


def test_where_processes_differ_no_more_than_blocks_nothing_is_known() -> None:
    assert described([[process(0.0), process(0.0), process(0.0)]]) is None
    assert described([]) is None


def test_many_short_processes_where_they_differ_more_than_their_blocks() -> None:
    """sqrt(160 * pi / 2 * 1e-3 / 4e-4) is 25.07, so 26 blocks. Three processes take 3 * (16 + 30) s, so there is time
    for 138 / 18.6, which are seven. Their interval: 2.447 * sqrt((4e-4 + 1.571e-3 / 26) / 7), over
    4.303 * sqrt((4e-4 + 1.571e-3 / 300) / 3), so 0.01985 over 0.04998."""
    split = best_split([NOISY_PROCESSES], replicates=3, fewest_blocks=20)
    assert split == Split(replicates=7, blocks=26, width=pytest.approx(0.397, abs=5e-4))


def test_two_frameworks_add_up_and_no_process_has_fewer_blocks_than_the_protocol_allows() -> None:
    """The same for two equal sides; with 40 blocks at least, 138 / 20 are six processes."""
    both = best_split([NOISY_PROCESSES, NOISY_PROCESSES], replicates=3, fewest_blocks=20)
    assert both == Split(replicates=7, blocks=26, width=pytest.approx(0.397, abs=5e-4))
    longer = best_split([NOISY_PROCESSES], replicates=3, fewest_blocks=40)
    assert longer is not None
    assert (longer.replicates, longer.blocks) == (6, 40)


@pytest.mark.parametrize(
    "changes",
    [{"blocks": 26}, {"between": 1e-6, "beside_s": 300.0}, {"beside_s": 1e4}],
    ids=["as it is", "blocks differ more", "a process takes too long"],
)
def test_a_split_that_is_near_the_best_is_left_alone(changes: dict[str, Any]) -> None:
    assert best_split([replace(NOISY_PROCESSES, **changes)], replicates=3, fewest_blocks=20) is None


def write_record(results: Results, log_s: float, number: int, **of_measurement: Any) -> None:
    folder = results.records(CELL, "jax")
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [math.exp(log_s + (-1) ** place * 0.001) for place in range(300)]
    content = {
        "measurement": {"variant": json.loads(VARIANT.model_dump_json()), "quick": False} | of_measurement,
        "result": {"blocks": {"block_times_s": blocks, "calls_per_block": 7}},
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:06:40+00:00",
    }
    (folder / f"record-{number}.json").write_text(json.dumps(content))


def plan(**changes: Any) -> JobPlan:
    whole: dict[str, Any] = {"framework": "jax", "cell": CELL, "variants": (VARIANT,), "settings": {}} | changes
    return JobPlan(protocol=MeasurementSettings(), wandb=WandbSettings(mode="disabled"), **whole)


def test_advice_from_records(tmp_path: Path) -> None:
    """Three processes of 400 s, 300 of them in blocks, which differ by 5 %: of 1200 s each with 20 blocks takes 120."""
    results = Results(root=tmp_path)
    pair = Pair(cell=CELL, jobs=(plan(),))
    assert advice([pair], results) == {}
    for number, log_s in enumerate((-0.05, 0.0, 0.05)):
        write_record(results, log_s, number)
    (results.records(CELL, "jax") / "broken.json").write_text("{")
    write_record(results, 9.0, 7, quick=True)
    write_record(results, 9.0, 8, stage="screening")
    sentence = advice([pair], results)["any/mnist_3"]
    assert sentence.startswith(
        "Of 3 earlier processes equal ones differ by 5.0% and blocks of one by 0.1%, and a process"
    )
    assert "takes 100 s beside its blocks" in sentence
    assert "in the same time `replicates: 10` and `max_blocks: 20` of `protocol` would make intervals" in sentence
    assert advice([Pair(cell=CELL, jobs=(plan(quick=True),))], results) == {}
    both = Pair(cell=CELL, jobs=(plan(), plan(framework="torch")))
    assert advice([both], results) == {}  # PyTorch has no records
