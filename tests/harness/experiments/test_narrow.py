"""Flags that narrow what is measured: what is left, what is left out, and what is said about a wrong one."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.experiments.expand import Selection, baselines, expand
from harness.experiments.flags import add_narrowing_flags
from harness.experiments.model import Config
from harness.experiments.narrow import Narrowing, narrowing_of, take_pairing
from harness.job.main import _parse_arguments, _plan_by_flags
from harness.paths import REPOSITORY
from harness.plan import Pair
from harness.work import declared
from pipeline.submission.render import run_arguments
from tests.made.config_text import MINIMAL, PRETRAINED, TRAIN, config_of

JAX_RUNS, TORCH_RUNS = (tuple(run.name for run in runs) for runs in (declared.JAX_RUNS, declared.TORCH_RUNS))


SEVERAL = MINIMAL + f"  2: {{devices: 2, batch_sizes: [64], {TRAIN}}}\n"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(SEVERAL + "measurement: {replicates: 2}\n", tmp_path)


def asked_for(words: str, **selection: Any) -> Selection:
    """Of use case 1 on CIFAR-10, where `selection` does not say otherwise."""
    return Selection(**{"benchmarks": ("cifar10",), "use_cases": (1,), "narrowing": of_words(words)} | selection)


def expanded(config: Config, words: str, **selection: Any) -> list[Pair]:
    return expand(config, asked_for(words, **selection))


def narrowed(config: Config, words: str, **selection: Any) -> dict[str, list[str]]:
    """The keys of the variants of each job, by the job's name."""
    pairs = expanded(config, words, **selection)
    return {job.name: [variant.key for variant in job.variants] for pair in pairs for job in pair.jobs}


def of_words(words: str) -> Narrowing:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_narrowing_flags(parser.add_argument)
    return narrowing_of(parser.parse_args(words.split()))


def test_flags_become_typed_values_each_once_and_go_back_to_words() -> None:
    words = "--model cnn --batch_size 64 --precision bf16 --formulation vmap --run jit --execution_mode vmap.jit "
    words += "--option output=full --option models=8 --set learning_rate=0.5"
    asked = of_words(f"{words} --model cnn")
    options = (("output", "full"), ("models", 8))
    assert (asked.batch_sizes, asked.options, asked.settings) == ((64,), options, (("learning_rate", 0.5),))
    assert asked.flags() == tuple(words.split())


def test_each_axis_is_narrowed(config: Config) -> None:
    axes = "--batch_size 8 --batch_size 16 --precision tf32"
    modes = {"jax": ["jit"], "torch": ["eager", "compiled"]}
    expected = {
        f"any/{framework}_cifar10_1": [f"resnet18-b{size}-tf32-step.{run}" for size in (8, 16) for run in runs]
        for framework, runs in modes.items()
    }
    assert narrowed(config, f"--model resnet18 {axes}") == expected
    both = ("mnist", "cifar10")
    assert narrowed(config, f"--model cifar10/resnet18 {axes}", benchmarks=both) == expected
    assert len(narrowed(config, f"--model cifar10/resnet18 --model mnist/cnn {axes}", benchmarks=both)) == 4


@pytest.mark.parametrize(
    ("words", "jax", "torch"),
    [
        ("--formulation vmap", ["vmap.jit"], ["vmap.eager"]),  # with the runs that the file has beside it
        ("--formulation ghost", [f"ghost.{run}" for run in JAX_RUNS], [f"ghost.{run}" for run in TORCH_RUNS]),
        ("--formulation loop", ["vmap.jit"], ["loop.eager"]),
        ("--run jit", ["vmap.jit"], ["vmap.compiled"]),
        ("--run eager", ["vmap.jit"], ["vmap.eager", "loop.eager"]),
        ("--formulation vmap --run jit_graph --run compiled", ["vmap.jit_graph"], ["vmap.compiled"]),
        ("--formulation vmap --execution_mode vmap.tuned", ["vmap.tuned"], ["vmap.compiled"]),
    ],
)
def test_formulations_and_runs(words: str, jax: list[str], torch: list[str], config: Config) -> None:
    """Of the modes in the file, where it has any of them; a framework that has none has one to be compared with."""
    axes = "--batch_size 16 --precision fp32 --option output=norms"
    expected = {
        f"any/{framework}_cifar10_3": [f"cnn-b16-fp32-norms-{mode}" for mode in modes]
        for framework, modes in (("jax", jax), ("torch", torch))
    }
    assert narrowed(config, f"{axes} {words}", use_cases=(3,)) == expected


def test_cells_that_have_nothing_of_it_are_left_out(config: Config) -> None:
    everything = {"benchmarks": ("mnist", "cifar10"), "use_cases": (1, 3), "frameworks": ("torch",)}
    assert list(narrowed(config, "--model resnet18", **everything)) == ["any/torch_cifar10_1"]
    loops = ["any/torch_mnist_3", "any/torch_cifar10_3"]
    assert list(narrowed(config, "--execution_mode loop.eager", **everything)) == loops
    # An option or a setting concerns the cells that have it, and leaves out no other.
    assert len(narrowed(config, "--option output=full --set epochs=1", **everything)) == 4


def test_settings_of_the_use_case_the_protocol_and_the_sizes(tmp_path: Path) -> None:
    text = MINIMAL.replace("  cifar10: {models", "  imagenet100: {models: [vit_b_16]}\n  cifar10: {models")
    config = config_of(text, tmp_path)
    selection = {"benchmarks": ("imagenet100",), "use_cases": (1, 3), "frameworks": ("jax",)}
    train, per_sample = expanded(config, "--set epochs=7 --set replicates=6 --set image_size=64", **selection)
    for (plan,) in (train.jobs, per_sample.jobs):
        assert (plan.protocol.replicates, plan.sizes["image_size"]) == (6, 64)
    assert train.jobs[0].settings["epochs"] == 7
    assert "epochs" not in per_sample.jobs[0].settings
    assert per_sample.jobs[0].flags == ("--set", "replicates=6", "--set", "image_size=64")
    with pytest.raises(ConfigError, match="--set image_size=65: must be a whole multiple of 16 from 32 to 256"):
        expanded(config, "--set image_size=65", **selection)


def test_the_pairing_is_taken_out_of_the_settings() -> None:
    arguments = argparse.Namespace(set=[("epochs", "2"), ("pairing", "together"), ("pairing", "together")])
    assert (take_pairing(arguments), arguments.set) == ("together", [("epochs", "2")])
    assert (take_pairing(arguments), take_pairing(argparse.Namespace(set=None))) == (None, None)


def test_a_precision_concerns_the_cells_that_take_it(tmp_path: Path) -> None:
    """Training does not take fp16, inference does."""
    config, selection = config_of(PRETRAINED, tmp_path), {"use_cases": (1, 5), "frameworks": ("torch",)}
    words = "--precision fp16 --precision fp32 --model cnn --run eager"
    train, inference = expanded(config, words, **selection)
    assert [variant.precision for variant in train.jobs[0].variants] == ["fp32"]
    assert [variant.precision for variant in inference.jobs[0].variants] == ["fp16", "fp32"]
    (alone,) = expanded(config, "--precision fp16", **selection)
    assert alone.cell.use_case_name == "inference"


def test_an_option_that_the_file_leaves_out(config: Config) -> None:
    """Its default is what the file means without it. Nothing is sharded on one device, so there is no baseline."""
    words = "--model cnn --run jit --option"
    jobs = narrowed(config, f"{words} parameters=replicated", use_cases=(2,))
    assert jobs["any/jax_cifar10_2"] == ["cnn-b64-fp32-step.jit"]
    sharded = asked_for(f"{words} parameters=sharded", use_cases=(2,))
    pairs = expand(config, sharded)
    assert [variant.key for variant in pairs[0].jobs[0].variants] == ["cnn-b64-fp32-sharded-step.jit"]
    assert baselines(config, pairs, sharded) == []


def cells_of(config: Config, words: str, **selection: Any) -> dict[str, tuple[int, int, set[int]]]:
    """Devices, nodes and batch sizes of each cell, by its name."""
    return {
        cell.name: (cell.devices, cell.nodes, {variant.batch_size for job in pair.jobs for variant in job.variants})
        for pair in expanded(config, words, **{"benchmarks": ("mnist",), "use_cases": (2,)} | selection)
        for cell in (pair.cell,)
    }


def test_devices_take_the_use_case_on_one_or_on_several_and_the_nodes_that_they_need(config: Config) -> None:
    """On a100 with 4 GPUs in a node; of `any` nothing is known, so all are of one node."""
    of_any = {"1": (1, 1, {64}), "2": (2, 1, {64}), "2_x4": (4, 1, {64}), "2_x16": (16, 1, {64})}
    by_gpu = {"any": of_any, "a100": of_any | {"2_x16": (16, 4, {64})}}
    expected = {f"{gpu}/mnist_{cell}": found for gpu, of_gpu in by_gpu.items() for cell, found in of_gpu.items()}
    assert cells_of(config, "--devices 1,2,4,16", gpus=("any", "a100")) == expected
    weak = "--devices 2,4 --batch per_device"
    assert cells_of(config, weak, use_cases=(1,)) == {"any/mnist_2": (2, 1, {128}), "any/mnist_2_x4": (4, 1, {256})}
    assert cells_of(config, weak + " --batch_size 10") == {"any/mnist_2": (2, 1, {20}), "any/mnist_2_x4": (4, 1, {40})}
    with pytest.raises(ConfigError, match="--devices 5: takes 2 nodes with 4 GPUs each"):
        cells_of(config, "--devices 5 --batch_size 5", gpus=("a100",))


def test_devices_of_the_file_are_the_measurements_of_the_file(tmp_path: Path) -> None:
    config = config_of(MINIMAL + f"  2: {{devices: 4, nodes: 2, batch_sizes: [64], {TRAIN}}}\n", tmp_path)
    of_file, asked = (
        [one.id for pair in expanded(config, words, use_cases=(2,)) for one in pair.measurements()]
        for words in ("", "--devices 4")
    )
    assert of_file and asked == of_file


def test_the_script_and_run_py_make_the_same_plan(tmp_path: Path) -> None:
    """`eager` is no run of JAX: its script names its own mode, and that of both frameworks names both."""
    paths = {"config_path": tmp_path / "experiments.yaml", "results": tmp_path, "repository": REPOSITORY}
    config = config_of(SEVERAL, tmp_path)
    (pair,) = expanded(config, "--model cnn --batch_size 12 --run eager --set epochs=1")
    for framework, jobs in (("jax", pair.jobs[:1]), ("torch", pair.jobs[1:]), (None, pair.jobs)):
        part = pair.model_copy(update={"jobs": jobs})
        parsed = _parse_arguments(framework, run_arguments(part, **paths))
        modes = {"jax": "step.jit", "torch": "step.eager"}
        assert parsed.execution_mode == [modes[plan.framework] for plan in jobs]
        assert _plan_by_flags(framework, parsed) == part
    (pair,) = expanded(config, "--devices 4 --batch per_device", use_cases=(2,))
    assert _plan_by_flags(None, _parse_arguments(None, run_arguments(pair, **paths))) == pair
