"""What is fixed before anything is measured, and what changes its checksum."""

from collections.abc import Iterator

import pytest

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.paths import REPOSITORY
from harness.plan import Registration
from harness.results import flags, screening, statistics, thresholds
from harness.work import registration as module
from harness.work.registration import headline_of, is_as_registered, registration, thresholds_by_name

NO_BF16 = {"precision": ["bf16"]}
NO_TEXT = {"benchmark": ["text"], "use_case": None}


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    module.checksum.cache_clear()
    yield
    module.checksum.cache_clear()


def test_thresholds_and_exclusions_of_all_kinds_count() -> None:
    found = thresholds_by_name()
    expected = {"SAME_WITHIN": 1.01, "ENOUGH_REPLICATES": 3, "NOISE": 0.02, "UNSTABLE_SPREAD": 0.25, "DECIDES": 0.15}
    assert found.items() >= expected.items()
    assert found["WORTHLESS"] == ("recompiled", "mixed_gpus", "known_slow_jaxlib")
    assert found["ON_GPU"] == (1.02, 0.05, 0.05)


def test_order_of_the_exclusions_is_no_change_and_the_exclusions_are() -> None:
    first = registration("train", [NO_BF16, NO_TEXT])
    assert registration("train", [NO_TEXT, NO_BF16]) == first
    other = registration("train", [NO_TEXT])
    assert other.checksum != first.checksum and other.exclusions != first.exclusions


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (statistics, "SAME_WITHIN", 1.02),
        (screening, "MISSED", 0.1),
        (flags, "WORTHLESS", ("recompiled",)),
        (thresholds, "WORTH_TELLING", 0.2),
    ],
)
def test_a_changed_threshold_is_found(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, value: object) -> None:
    before = registration("train", [NO_BF16])
    assert is_as_registered(before, "train")
    monkeypatch.setattr(owner, name, value)
    module.checksum.cache_clear()
    assert not is_as_registered(before, "train")
    assert registration("train", [NO_BF16]).exclusions == before.exclusions


def test_rules_have_a_version_that_older_plans_do_not_say() -> None:
    """The constants of the first version are those of the second: their checksum tells nothing."""
    now = registration("train", [])
    assert now.rules_version == 2
    before = Registration.model_validate_json(now.model_dump_json(exclude={"rules_version"}))
    assert (before.rules_version, is_as_registered(before, "train")) == (1, True)


def test_another_headline_pair_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = registration("train", [])
    assert headline_of("train") == {"jax": "jit", "torch": "compiled"}
    assert not is_as_registered(before, "inference") or headline_of("inference") == headline_of("train")
    monkeypatch.setattr(module, "headline_of", lambda _: {"jax": "scan", "torch": "compiled"})
    module.checksum.cache_clear()
    assert not is_as_registered(before, "train")


def test_a_use_case_that_is_gone_has_no_headline() -> None:
    assert headline_of("of_long_ago") == {}
    assert is_as_registered(registration("of_long_ago", []), "of_long_ago")


def test_every_plan_has_it_and_an_exclusion_of_its_own_changes_it() -> None:
    config = load_config(REPOSITORY / "experiments.yaml")
    selection = Selection(benchmarks=("mnist", "cifar10"), use_cases=(1, 3))

    def of_plans(config: object) -> dict[str, Registration | None]:
        return {job.name: job.registration for pair in expand(config, selection) for job in pair.jobs}

    before = of_plans(config)
    assert len(before) == 8 and None not in before.values()
    without = config.model_copy(update={"matrix": config.matrix.model_copy(update={"exclude": ()})})
    assert all(before[name] != after for name, after in of_plans(without).items())
    assert before["any/jax_mnist_1"] == before["any/torch_mnist_1"]
    assert before["any/jax_mnist_1"] != before["any/jax_mnist_3"]
