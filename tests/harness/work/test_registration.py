"""What is fixed before anything is measured, and what changes its checksum."""

import pytest

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config, PartialCell, PartialVariant
from harness.paths import REPOSITORY
from harness.plan import Registration
from harness.results import flags, statistics
from harness.results.thresholds import NEWEST
from harness.work import registration as module
from harness.work.registration import (
    RULES,
    _digest,
    headline_of,
    is_as_registered,
    registration,
    thresholds_by_name,
)

NO_BF16 = {"precision": ["bf16"]}
NO_TEXT = {"benchmark": ["text"], "use_case": None}


def test_thresholds_of_all_kinds_count_and_rules_have_a_version_and_a_checksum() -> None:
    """Both are in published records: with another checksum these were not registered any more."""
    found = thresholds_by_name()
    assert found["CRITICAL_VALUES"]["6"] == {"4": 5.339, "6": 3.55}
    assert found["HARMLESS_CLOCK_REASONS"] == ["applications_clocks_setting", "gpu_idle"]
    now = registration("train", [])
    assert now.rules_version == NEWEST == 3 and list(RULES) == [3]
    assert _digest(found) == "d2e0b3a70924e91c", "a changed threshold is a new version of the rules"


def test_order_of_the_exclusions_is_no_change_and_the_exclusions_are() -> None:
    first = registration("train", [NO_BF16, NO_TEXT])
    assert registration("train", [NO_TEXT, NO_BF16]) == first
    other = registration("train", [NO_TEXT])
    assert other.checksum != first.checksum and other.exclusions != first.exclusions
    assert headline_of("of_long_ago") == {}  # a use case that is gone
    assert is_as_registered(registration("of_long_ago", []), "of_long_ago")


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (statistics, "SAME_WITHIN", 1.02),
        (flags, "WORTHLESS", ("recompiled",)),
        (module, "headline_of", lambda _: {"jax": "scan.jit", "torch": "step.compiled"}),
    ],
)
def test_a_changed_threshold_is_found(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, value: object) -> None:
    monkeypatch.setattr(module, "checksum", module.checksum.__wrapped__)  # which remembers nothing
    before = registration("train", [NO_BF16])
    assert is_as_registered(before, "train") and not is_as_registered(before, "inference")
    monkeypatch.setattr(owner, name, value)
    assert not is_as_registered(before, "train")
    assert registration("train", [NO_BF16]).exclusions == before.exclusions


def of_plans(config: Config) -> dict[str, Registration | None]:
    selection = Selection(benchmarks=("mnist", "text"), use_cases=(1, 6))
    return {job.name: job.registration for pair in expand(config, selection) for job in pair.jobs}


def with_line(config: Config, use_case: int, line: dict[str, object]) -> Config:
    before = config.use_cases[use_case]
    after = before.model_copy(update={"exclude": (*before.exclude, PartialVariant.model_validate(line))})
    return config.model_copy(update={"use_cases": config.use_cases | {use_case: after}})


def test_every_plan_has_it_and_only_a_line_that_concerns_its_cell_changes_it() -> None:
    config = load_config(REPOSITORY / "experiments.yaml")
    before = of_plans(config)
    assert len(before) == 8 and None not in before.values()
    assert before["any/jax_mnist_1"] == before["any/torch_mnist_1"]
    assert before["any/jax_mnist_1"] != before["any/jax_mnist_6"]

    one_cell_less = PartialCell.model_validate({"benchmark": "molpcba", "use_case": 6})
    matrix = config.matrix.model_copy(update={"exclude": (*config.matrix.exclude, one_cell_less)})
    assert of_plans(config.model_copy(update={"matrix": matrix})) == before

    def changed(line: dict[str, object]) -> set[str]:
        after = of_plans(with_line(config, 6, line))
        return {name for name in before if after[name] != before[name]}

    of_text = {"any/jax_text_6", "any/torch_text_6"}
    assert changed({"batch_size": 32, "formulation": "map"}) == {"any/jax_mnist_6", "any/torch_mnist_6"} | of_text
    assert changed({"model": ("mlp", "gcn"), "formulation": "map"}) == of_text
    assert changed({"benchmark": "molpcba", "precision": "tf32"}) == set()
    # A benchmark or model that joins a line changes no other one's registration.
    line = {"benchmark": "text", "model": "mlp", "precision": "tf32"}
    joined = line | {"benchmark": ("text", "molpcba"), "model": ("gcn", "mlp")}
    assert of_plans(with_line(config, 6, line)) == of_plans(with_line(config, 6, joined)) != before
