"""A cell's rows shared out over jobs, by hand and for the whole of experiments.yaml."""

from collections import Counter
from pathlib import Path

import pytest

from harness.experiments.expand import Selection
from harness.experiments.load import load_config
from harness.experiments.presets import expand_preset
from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS, JobPlan, Pair, Variant
from pipeline.submission.spread import Share, levelled, rows_of, spread
from tests.made.project import FakeProject, make_project


@pytest.fixture
def project(tmp_path: Path) -> FakeProject:
    return make_project(tmp_path)


def pair_of(project: FakeProject, modes: dict[int, int], use_case: int = 3) -> Pair:
    """`modes`: how many each batch size has, in both frameworks; a replicate takes as long in each."""

    def plan(framework: str) -> JobPlan:
        made = project.plan(framework, use_case=use_case)  # type: ignore[arg-type]
        variants = [
            Variant(model="cnn", batch_size=size, precision="fp32", execution_mode=f"step.{number}")
            for size, count in modes.items()
            for number in range(count)
        ]
        return made.model_copy(update={"variants": tuple(variants)})

    plans = tuple(plan(framework) for framework in FRAMEWORKS)
    return Pair(cell=plans[0].cell, jobs=plans)


def test_next_longest_row_goes_to_the_share_that_has_least() -> None:
    """7 | 5; 7 | 5 + 4; 7 + 3 | 9; 10 | 9 + 2."""
    rows = [(7.0, "a"), (5.0, "b"), (4.0, "c"), (3.0, "d"), (2.0, "e")]
    assert levelled(rows, 2) == [Share(10.0, 0, frozenset("ad")), Share(11.0, 1, frozenset("bce"))]


def test_pair_with_the_longest_job_is_cut_until_the_gpus_are_used(project: FakeProject) -> None:
    """Of 9 and 3 modes on 4 GPUs: rows of 3, 3 and 3 modes in three jobs, and the other pair whole."""
    long, short = pair_of(project, {8: 3, 16: 3, 32: 3}), pair_of(project, {8: 1, 16: 2}, use_case=5)
    found = spread([long, short], 4)
    assert [(one.name, sorted({v.batch_size for v in one.jobs[0].variants})) for one in found] == [
        ("any/pair_mnist_3_part1", [8]),
        ("any/pair_mnist_3_part2", [32]),
        ("any/pair_mnist_3_part3", [16]),
        ("any/pair_mnist_5", [8, 16]),
    ]
    assert found[0].words == "mnist per sample gradients, part 1"
    assert spread([long, short], 2) == [long, short]
    assert spread([long, short], 9, most_jobs=3) == spread([long, short], 3)
    everything = spread([long, short], 9)  # no row is cut
    assert [len(rows_of(one)) for one in everything] == [1] * 5


def test_everything_on_400_gpus() -> None:
    """The same measurements as in one job for each cell, with more than 390 GPUs in use, in less than two hours."""
    config = load_config(REPOSITORY / "experiments.yaml")
    whole = [pair for part in expand_preset(config, "full", Selection(frameworks=FRAMEWORKS)) for pair in part.pairs]
    parts = spread(whole, 400)
    assert 390 < sum(pair.cell.devices for pair in parts) <= 400
    assert max(sum(seconds for seconds, _ in rows_of(pair)) for pair in parts) < 2 * 3600
    assert len({pair.name for pair in parts}) == len(parts)

    def variants(pairs: list[Pair]) -> Counter[tuple[str, str, str]]:
        return Counter((p.cell.name, plan.framework, v.key) for p in pairs for plan in p.jobs for v in plan.variants)

    assert variants(parts) == variants(whole)
