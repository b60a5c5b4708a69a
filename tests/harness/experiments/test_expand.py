"""From experiments.yaml and a selection to pairs of jobs."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.experiments.expand import Selection, baselines, expand
from harness.experiments.model import Config
from harness.plan import Pair, Screening
from tests.made.config_text import MINIMAL, PRETRAINED, changed, config_of


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(MINIMAL + "measurement: {replicates: 2}\n", tmp_path)


def names(config: Config, selection: Selection) -> list[str]:
    return [job.name for pair in expand(config, selection) for job in pair.jobs]


def keys(pairs: list[Pair]) -> dict[str, list[str]]:
    """Of the variants of each job."""
    return {job.name: [variant.key for variant in job.variants] for pair in pairs for job in pair.jobs}


def test_what_is_selected_in_the_files_order_and_once(config: Config) -> None:
    assert names(config, Selection()) == ["any/jax_mnist_1", "any/torch_mnist_1"]  # the matrix
    outside = Selection(gpus=("a100",), benchmarks=("cifar10",), use_cases=(3,))
    assert names(config, outside) == ["a100/jax_cifar10_3", "a100/torch_cifar10_3"]
    twice = Selection(benchmarks=("cifar10", "mnist", "cifar10"), frameworks=("torch",))
    assert names(config, twice) == ["any/torch_mnist_1", "any/torch_cifar10_1"]


def test_what_a_job_is_given(config: Config) -> None:
    (pair,) = expand(config, Selection(use_cases=(3,), data="sample", force=True))
    jax, torch = pair.jobs
    assert (jax.framework, torch.framework, jax.cell, torch.cell) == ("jax", "torch", pair.cell, pair.cell)
    assert (pair.cell.name, pair.cell.use_case_name, pair.cell.devices) == (*("any/mnist_3", "per_sample_gradients"), 1)
    assert jax.settings == {"chunk_size": 8, "clip_norm": 1.0}
    assert (jax.data, jax.force, jax.quick) == ("sample", True, False)
    assert (jax.wandb, jax.data_dir) == (config.wandb, config.data_dir)
    # 1 model x 2 outputs x 2 batch sizes x 2 precisions x 1 mode; two replicates of each
    assert (len(jax.variants), len(list(jax.measurements()))) == (8, 16)


@pytest.mark.parametrize(
    ("benchmark", "number", "full", "quick"),
    [("mnist", 1, {2, 4}, {1}), ("mnist", 3, {3}, {8}), ("cifar10", 1, {64}, {64}), ("cifar10", 3, {16, 32}, {8})],
)
def test_batch_sizes(benchmark: str, number: int, full: set[int], quick: set[int], tmp_path: Path) -> None:
    """Of the use case, the benchmark, its model and a quick run: the more special one counts."""
    own = "{models: [cnn], batch_sizes: {train: [2, 4], per_sample_gradients: {cnn: [3]}}}"
    text = changed("  mnist: {models: [cnn]}", f"  mnist: {own}")
    text += "quick: {benchmarks: {mnist: {batch_sizes: {train: {cnn: [1]}}}}, use_cases: {3: {batch_sizes: [8]}}}\n"
    asked = Selection(benchmarks=(benchmark,), use_cases=(number,))
    for selection, sizes in ((asked, full), (replace(asked, quick=True), quick)):
        (pair,) = expand(config_of(text, tmp_path), selection)
        assert {variant.batch_size for job in pair.jobs for variant in job.variants} == sizes


def test_quick_replaces_models_and_excludes(tmp_path: Path) -> None:
    quick = "quick: {benchmarks: {mnist: {exclude: [{run: compiled}]}, cifar10: {models: [cnn]}}}\n"
    config = config_of(MINIMAL + quick, tmp_path)
    full = Selection(benchmarks=("mnist", "cifar10"), frameworks=("torch",))
    cnn, resnet18 = ([f"{model}-b64-fp32-step.{run}" for run in ("eager", "compiled")] for model in ("cnn", "resnet18"))
    assert [*keys(expand(config, full)).values()] == [cnn, [*cnn, *resnet18]]
    assert [*keys(expand(config, replace(full, quick=True))).values()] == [cnn[:1], cnn]


def test_a_use_cases_own_protocol(tmp_path: Path) -> None:
    own = "    name: train\n    measurement: {latency_calls: 1000, max_time_s: 9.0}\n"
    text = MINIMAL.replace("    name: train\n", own) + "quick: {measurement: {max_time_s: 1.0}}\n"
    config = config_of(text, tmp_path)
    protocols = {(number, quick): config.protocol(number, quick=quick) for number in (1, 3) for quick in (False, True)}
    found = {of: (protocol.latency_calls, protocol.max_time_s) for of, protocol in protocols.items()}
    assert found == {(1, False): (1000, 9.0), (1, True): (1000, 1.0), (3, False): (200, 12.0), (3, True): (200, 1.0)}
    (pair,) = expand(config, Selection(frameworks=("jax",)))
    assert pair.jobs[0].protocol.latency_calls == 1000


def test_excluded_cells(tmp_path: Path) -> None:
    exclude = "  use_cases: [1]\n  exclude: [{gpu: any, benchmark: [mnist]}, {use_case: 3}]\n"
    config = config_of(MINIMAL.replace("  use_cases: [1]\n", exclude), tmp_path)
    asked = Selection(gpus=("any", "a100"), benchmarks=("mnist", "cifar10"), use_cases=(1, 3), frameworks=("jax",))
    assert names(config, asked) == ["any/jax_cifar10_1", "a100/jax_mnist_1", "a100/jax_cifar10_1"]
    with pytest.raises(ConfigError, match=r"nothing to measure: mnist_3: matrix\.exclude in .* leaves it out"):
        expand(config, Selection(use_cases=(3,)))


def test_cell_that_takes_more_gpus_than_its_nodes_have_is_refused_and_no_other(tmp_path: Path) -> None:
    several = "name: train\n    devices: 8\n"
    config = config_of(MINIMAL.replace("name: train\n", several), tmp_path)
    assert names(config, Selection(frameworks=("jax",))) == ["any/jax_mnist_1_x8"]  # nobody says what `any` has
    assert names(config, Selection(gpus=("a100",), use_cases=(3,), frameworks=("jax",))) == ["a100/jax_mnist_3"]
    where = f"^{config.file}:21:14: a100/mnist_1_x8: use_cases.1 takes 8 GPUs on 1 node"
    with pytest.raises(ConfigError, match=where + ".* `- {gpu: a100, use_case: 1}` under matrix.exclude"):
        expand(config, Selection(gpus=("a100",)))
    on_two = config_of(MINIMAL.replace("name: train\n", several + "    nodes: 2\n"), tmp_path)
    assert names(on_two, Selection(gpus=("a100",), frameworks=("jax",))) == ["a100/jax_mnist_1_x8"]


def test_a_screening_where_there_is_a_choice(config: Config) -> None:
    """The headline and the plain loops go on whatever it finds. JAX has one mode here, a quick run one replicate."""
    (pair,) = expand(config, Selection(use_cases=(3,)))
    jax, torch = pair.jobs
    assert jax.screening is None
    assert torch.screening == Screening(always=("vmap.compiled", "loop.eager"))
    # Two modes at batch 16 alone, for 2 outputs and 2 precisions.
    assert len(torch.screened_variants()) == 8
    assert {variant.batch_size for variant in torch.screened_variants()} == {16}
    (pair,) = expand(config, Selection(use_cases=(1,)))
    assert pair.jobs[1].screening == Screening(always=("step.compiled",), many_steps=("epoch.compiled_graph",))
    for selection in (Selection(use_cases=(3,), full=True), Selection(use_cases=(3,), quick=True)):
        assert [plan.screening for plan in expand(config, selection)[0].jobs] == [None, None]


SEVERAL = """\
  4:
    {name: per_sample_gradients, devices: 2, batch_sizes: [32, 64], precisions: [fp32], options: {output: [full]},
      settings: {chunk_size: 8, clip_norm: 1.0}, formulations: {jax: [vmap], torch: [vmap: [eager]]}}
"""


def keys_of_baselines(config: Config, selection: Selection) -> dict[str, list[str]]:
    pairs = baselines(config, expand(config, selection), selection)
    assert {job.screening for pair in pairs for job in pair.jobs} <= {None}  # all of them are wanted
    return keys(pairs)


def test_baselines_have_the_whole_batch_or_a_device_s_part(tmp_path: Path) -> None:
    """Of 32 and 64 on two devices: 32 whole, 16 and 32 as halves. Nothing else of use case 3, and nothing where that is
    asked for or needs none."""
    config = config_of(MINIMAL + SEVERAL, tmp_path)
    assert keys_of_baselines(config, Selection(use_cases=(4,), force=True)) == {
        "any/jax_mnist_3": ["cnn-b16-fp32-full-vmap.jit", "cnn-b32-fp32-full-vmap.jit"],
        "any/torch_mnist_3": ["cnn-b16-fp32-full-vmap.eager", "cnn-b32-fp32-full-vmap.eager"],
    }
    for use_cases in ((3, 4), (1,)):
        assert keys_of_baselines(config, Selection(use_cases=use_cases)) == {}


def test_baselines_of_a_quick_run_are_found_among_its_own_variants_too(tmp_path: Path) -> None:
    """The full run of use case 3 has no batch of 8; the quick one has. Its axes cut no baseline: 16 is of the full."""
    quick = "quick: {use_cases: {3: {batch_sizes: [8]}, 4: {batch_sizes: [8, 16]}}}\n"
    selection = Selection(use_cases=(4,), frameworks=("jax",), quick=True)
    found = keys_of_baselines(config_of(MINIMAL + SEVERAL + quick, tmp_path), selection)
    assert found == {"any/jax_mnist_3": ["cnn-b16-fp32-full-vmap.jit", "cnn-b8-fp32-full-vmap.jit"]}


def test_the_sample_has_no_classes_of_imagenet_so_weights_are_drawn(tmp_path: Path) -> None:
    config = config_of(PRETRAINED, tmp_path)
    weights = {("imagenet100", "real"): "pretrained", ("imagenet100", "sample"): "drawn", ("cifar10", "real"): "drawn"}
    for (benchmark, data), expected in weights.items():
        (pair,) = expand(config, Selection(benchmarks=(benchmark,), use_cases=(5,), data=data))
        assert {one.settings["weights"] for job in pair.jobs for one in job.measurements()} == {expected}
