"""Presets: what they select, what flags make of them, and what is said about a wrong one."""

from collections import Counter
from pathlib import Path

import pytest

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.experiments.narrow import Narrowing
from harness.experiments.presets import expand_preset, preset_of
from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS, Pair, Variant
from harness.work.declared import use_case
from pipeline.measure import must_be_brought
from tests.made.config_text import MINIMAL, config_of

PRESETS = """\
presets:
  headline:
    about: one pair
    parts:
      - {use_cases: [1], models: [cnn], runs: [jit, compiled]}
      - use_cases: [3]
        benchmarks: [cifar10]
        batch_sizes: [20]
        execution_modes: [vmap.jit, vmap.eager]
        options: {output: clipped_sum}
        settings: {replicates: 6, chunk_size: 4}
  short: {about: a look, quick: true, data: sample, parts: [{benchmarks: [mnist]}]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(MINIMAL + PRESETS, tmp_path)


@pytest.fixture(scope="module")
def own() -> Config:
    return load_config(REPOSITORY / "experiments.yaml")


def variants(config: Config, name: str, selection: Selection | None = None) -> dict[str, list[str]]:
    jobs = [job for pair in pairs_of(config, name, selection) for job in pair.jobs]
    assert len({job.name for job in jobs}) == len(jobs)
    return {job.name: [variant.key for variant in job.variants] for job in jobs}


def pairs_of(config: Config, name: str, selection: Selection | None = None) -> list[Pair]:
    return [pair for part in expand_preset(config, name, selection or Selection()) for pair in part.pairs]


def test_its_parts_and_nothing_else(config: Config) -> None:
    parts = expand_preset(config, "headline", Selection())
    assert variants(config, "headline") == {
        "any/jax_mnist_1": ["cnn-b64-fp32-step.jit"],
        "any/torch_mnist_1": ["cnn-b64-fp32-step.compiled"],
        "any/jax_cifar10_1": ["cnn-b64-fp32-step.jit"],
        "any/torch_cifar10_1": ["cnn-b64-fp32-step.compiled"],
        "any/jax_cifar10_3": ["cnn-b20-fp32-clipped_sum-vmap.jit", "cnn-b20-bf16-clipped_sum-vmap.jit"],
        "any/torch_cifar10_3": ["cnn-b20-fp32-clipped_sum-vmap.eager", "cnn-b20-bf16-clipped_sum-vmap.eager"],
    }
    plans = [part.pairs[0].jobs[0] for part in parts]
    assert [plan.protocol.replicates for plan in plans] == [12, 6]
    assert plans[1].settings["chunk_size"] == 4


def test_a_headline_has_the_declared_modes(tmp_path: Path) -> None:
    """Whatever the file chooses for its use cases: it has no vmap.compiled. Flags replace them as all else."""
    parts = "{use_cases: [1], benchmarks: [mnist]}, {use_cases: [3], frameworks: [torch], batch_sizes: [20]}"
    text = f"{MINIMAL}presets: {{short: {{about: x, headline: true, parts: [{parts}]}}}}\n"
    of_loss = Selection(narrowing=Narrowing(precisions=("fp32",), options=(("output", "norms"),)))
    assert variants(config_of(text, tmp_path), "short", of_loss) == {
        "any/jax_mnist_1": ["cnn-b64-fp32-step.jit"],
        "any/torch_mnist_1": ["cnn-b64-fp32-step.compiled"],
        "any/torch_mnist_3": ["cnn-b20-fp32-norms-vmap.compiled"],
        "any/torch_cifar10_3": ["cnn-b20-fp32-norms-vmap.compiled"],
    }
    by_flag = Selection(use_cases=(1,), narrowing=Narrowing(formulations=("step",), runs=("jit_graph", "eager")))
    assert variants(config_of(text, tmp_path), "short", by_flag) == {
        "any/jax_mnist_1": ["cnn-b64-fp32-step.jit_graph"],
        "any/torch_mnist_1": ["cnn-b64-fp32-step.eager"],
    }


def test_flags_choose_its_cells_and_replace_its_axes(config: Config) -> None:
    narrowing = Narrowing(batch_sizes=(7,), precisions=("fp32",), options=(("output", "norms"),))
    selection = Selection(gpus=("a100",), benchmarks=("cifar10",), frameworks=("torch",), narrowing=narrowing)
    assert variants(config, "headline", selection) == {
        "a100/torch_cifar10_1": ["cnn-b7-fp32-step.compiled"],
        "a100/torch_cifar10_3": ["cnn-b7-fp32-norms-vmap.eager"],
    }
    only_one_has_it = Selection(narrowing=Narrowing(models=("resnet18",)))
    assert list(variants(config, "headline", only_one_has_it)) == ["any/jax_cifar10_1", "any/torch_cifar10_1"]


def test_the_headline_is_what_a_command_without_cells_means(config: Config, tmp_path: Path) -> None:
    of_mnist = Selection(benchmarks=("mnist",))
    assert preset_of(config, None, Selection(gpus=("a100",), frameworks=("jax",))) == "headline"
    for cells in (of_mnist, Selection(use_cases=(1,)), Selection(quick=True)):
        assert preset_of(config, None, cells) is None
    assert preset_of(config, "short", of_mnist) == "short"
    assert preset_of(config_of(MINIMAL, tmp_path), None, Selection()) is None


def test_the_headline_has_every_use_case_and_the_same_two_sides(own: Config) -> None:
    pairs = pairs_of(own, "headline")
    assert {pair.cell.use_case for pair in pairs} == set(own.use_cases)
    assert {pair.cell.benchmark for pair in pairs} >= {"mnist", "cifar10", "enwik8", "molpcba", "synthetic"}
    for pair in pairs:
        assert [job.framework for job in pair.jobs] == list(FRAMEWORKS), pair.cell.name
        jax, torch = (Counter(variant.comparison_key for variant in job.variants) for job in pair.jobs)
        assert jax == torch and set(jax.values()) == {1}, pair.cell.name
        assert pair.jobs[0].protocol.replicates == 12


def test_what_several_gpus_are_compared_with_is_in_the_headline_itself(own: Config) -> None:
    pairs = pairs_of(own, "headline")
    measured: dict[tuple[int, str, str], list[Variant]] = {}
    for pair in pairs:
        of_cell = (pair.cell.devices, pair.cell.benchmark, pair.cell.use_case_name)
        measured[of_cell] = [variant for job in pair.jobs for variant in job.variants]
    assert len(measured) == len(pairs)
    for (devices, benchmark, use_case_name), several in measured.items():
        parts = [one.model_copy(update={"batch_size": one.batch_size // devices}) for one in several]
        alone = {variant.key for variant in measured[1, benchmark, use_case_name]}
        assert {variant.key for variant in parts} <= alone, (devices, benchmark, use_case_name)


def test_full_is_everything_and_demo_is_short(own: Config) -> None:
    every_cell = Selection(benchmarks=tuple(own.benchmarks), use_cases=tuple(own.use_cases))
    chosen, everything = (
        {(job.name, variant.key) for pair in pairs for job in pair.jobs for variant in job.variants}
        for pairs in (pairs_of(own, "full"), expand(own, every_cell))
    )
    assert chosen == everything
    assert sum(len(list(pair.measurements())) for pair in pairs_of(own, "demo")) == 4


def test_short_presets_compare_the_declared_pairs_and_nothing_else(own: Config) -> None:
    """One mode of each framework, the declared one, and both compiled: no ratio of a compiler to none."""
    names = {*own.presets} - {"full"}
    assert {"headline", "demo"} <= names
    for pair in (pair for name in names for pair in pairs_of(own, name)):
        declared = use_case(pair.cell.use_case_name)
        modes = {(job.framework, variant.execution_mode) for job in pair.jobs for variant in job.variants}
        assert modes == {(framework, declared.headline[framework]) for framework in FRAMEWORKS}, pair.cell.name
        assert {declared.mode(*mode).run_as for mode in modes} == {"compiled"}, pair.cell.name


def test_demo_measures_these_four_sides_once(own: Config) -> None:
    """The declared modes of both frameworks, quick and on the sample, so that it needs no data and takes minutes."""
    sides = [
        (pair.cell.benchmark, pair.cell.use_case_name, variant.model, job.framework, variant.execution_mode)
        for pair in pairs_of(own, "demo")
        for job in pair.jobs
        for variant in job.variants
    ]
    assert sides == [
        ("mnist", "train", "cnn", "jax", "step.jit"),
        ("mnist", "train", "cnn", "torch", "step.compiled"),
        ("mnist", "per_sample_gradients", "cnn", "jax", "vmap.jit"),
        ("mnist", "per_sample_gradients", "cnn", "torch", "vmap.compiled"),
    ]
    measurements = [one for pair in pairs_of(own, "demo") for one in pair.measurements()]
    assert {(one.quick, one.data, one.replicate) for one in measurements} == {(True, "sample", 0)}


def test_only_imagenet_must_be_brought(own: Config, tmp_path: Path) -> None:
    assert [name for name in own.benchmarks if must_be_brought(name, tmp_path)] == ["imagenet100"]
