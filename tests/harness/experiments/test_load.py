"""experiments.yaml: what is read, and how every mistake is answered: place, key, value, rule, valid names."""

import re
import sys
from functools import cache
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.experiments.expand import Selection, expand, expand_variants
from harness.experiments.load import load_config
from harness.experiments.source import read_source
from harness.job.launch import python_of
from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS, Launch, Variant
from tests.made.config_text import MINIMAL, changed, config_of


def complaints(text: str, folder: Path) -> list[str]:
    """The lines of the error, without the file."""
    with pytest.raises(ConfigError) as caught:
        config_of(text, folder)
    start, lines = f"{folder}/experiments.yaml:", str(caught.value).splitlines()
    assert all(line.startswith(start) for line in lines)
    return [line.removeprefix(start).strip() for line in lines]


@cache
def planned(number: int) -> list[Variant]:
    """By the project's own file, of both frameworks."""
    config = load_config(REPOSITORY / "experiments.yaml")
    return [
        variant
        for benchmark in config.benchmarks
        if benchmark != "synthetic"
        for framework in FRAMEWORKS
        for variant in expand_variants(config, framework, benchmark, number, quick=False)
    ]


def test_what_every_device_refuses_is_not_planned() -> None:
    kernels = (
        *("cudnn_attention.jit", "cudnn_attention.jit_graph"),
        *("cudnn_attention.compiled_graph", "flash_attention.compiled_graph"),
    )
    precisions = {mode: {one.precision for one in planned(1) if one.execution_mode == mode} for mode in kernels}
    assert precisions == dict.fromkeys(kernels, {"bf16"})
    of_ghost = {one.model for number in (3, 4) for one in planned(number) if one.execution_mode.startswith("ghost.")}
    assert of_ghost == {"cnn", "mlp", "gpt_nano", "gpt_mini", "gpt2", "gcn", "graphnet"}


def test_values_and_defaults(tmp_path: Path) -> None:
    config = config_of(MINIMAL, tmp_path)
    assert (config.cluster.time_limit_minutes, config.cluster.partition, config.gpus["a100"].gres) == (30, None, None)
    assert (config.measurement.replicates, config.measurement.max_time_s) == (12, 12.0)
    # PyYAML alone would read 1e-3 as text.
    assert config.use_cases[1].settings["learning_rate"] == 0.001
    assert config.data_dir == str(REPOSITORY / "data")


def test_a_framework_that_is_left_out_gets_the_default_python(tmp_path: Path) -> None:
    config = config_of(changed("    torch: {python: /opt/torch/bin/python}\n", ""), tmp_path)
    (pair, *_) = expand(config, Selection())
    assert [python_of(plan.launch) for plan in pair.jobs] == ["/opt/jax/bin/python", sys.executable]
    assert python_of(Launch(runtime="podman", image="pytorch:24.10")) == "python3"


def test_data_dir_expands_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    assert config_of("data_dir: $SCRATCH/sets\n" + MINIMAL, tmp_path).data_dir == "/scratch/me/sets"
    monkeypatch.delenv("SCRATCH")
    assert complaints("data_dir: $SCRATCH/sets\n" + MINIMAL, tmp_path) == [
        "1:11: data_dir: $SCRATCH/sets: names an environment variable that is not set"
    ]


def test_settings_the_more_special_wins(tmp_path: Path) -> None:
    text = changed("mnist: {models: [cnn]}", "mnist: {models: [cnn], settings: {train: {epochs: 7, momentum: 0.5}}}")
    quick = "quick: {use_cases: {1: {settings: {epochs: 1, momentum: 0.25}}}"
    config = config_of(f"{text}{quick}, benchmarks: {{cifar10: {{settings: {{train: {{epochs: 4}}}}}}}}}}\n", tmp_path)
    found = {
        (name, quick): (settings["epochs"], settings["momentum"])
        for name in ("mnist", "cifar10")
        for quick in (False, True)
        if (settings := config.settings(name, 1, quick=quick))
    }
    assert found == {
        ("mnist", False): (7, 0.5),
        ("mnist", True): (1, 0.25),
        ("cifar10", False): (2, 0.9),
        ("cifar10", True): (4, 0.25),
    }


MANY_MODELS = """\
  6:
    name: many_models
    batch_sizes: [32]
    precisions: [fp32]
    formulations: {jax: [vmap], torch: [loop: [eager]]}
    options: {models: [1, 64], batches: [same], learning_rates: [one]}
    settings: {learning_rate: 0.1, momentum: 0.9}
"""


WITH_SYNTHETIC = (
    changed("resnet18]}\n", "resnet18]}\n  synthetic: {models: [linear], sizes: {in_features: 6, classes: 4}}\n")
    + MANY_MODELS
)
"""Benchmark and use case of made-up inputs; the other two use cases need a data set."""


def test_what_a_use_case_cannot_do_is_left_out(tmp_path: Path) -> None:
    """No `exclude` names it, and none may have to. Asked for alone, the reason is told."""
    config = config_of(WITH_SYNTHETIC, tmp_path)
    everything = Selection(benchmarks=("synthetic", "cifar10"), use_cases=(1, 3, 6))
    models = {
        pair.cell.name: {variant.model for job in pair.jobs for variant in job.variants}
        for pair in expand(config, everything)
    }
    assert models == {
        "any/cifar10_1": {"cnn", "resnet18"},
        "any/cifar10_3": {"cnn"},
        "any/cifar10_6": {"cnn"},
        "any/synthetic_6": {"linear"},
    }
    with pytest.raises(ConfigError) as caught:
        expand(config, Selection(benchmarks=("synthetic",), use_cases=(1, 3)))
    assert str(caught.value) == (
        "nothing to measure: synthetic_1: synthetic has no data set, and train needs one; "
        "synthetic_3: synthetic has no data set, and per_sample_gradients needs one"
    )


def test_plain_values_follow_yaml_1_2(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("[1e-3, .5, 5., 1E3, -7, no, on, 1:30, 0x10, 'true', true, ~, .inf, 2026-11-21, \"5\"]")
    assert read_source(path).data == (
        *(0.001, 0.5, 5.0, 1000.0, -7),
        *("no", "on", "1:30", "0x10", "true", True, None, ".inf", "2026-11-21", "5"),
    )


def test_what_would_take_all_memory_is_refused_at_once(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 28))
    assert "more than 30,000 values, counting what aliases repeat" in complaints(bomb, tmp_path)[0]
    answer = "the file is larger than 1 MB, so it is not a configuration of this project"
    assert complaints("#" * 1_000_001, tmp_path) == [answer]
    variants = changed("batch_sizes: [64]", f"batch_sizes: {list(range(1, 10_002))}")
    assert "10,001 variants for jax on mnist; must be at most 10,000" in complaints(variants, tmp_path)[0]


def test_the_documented_use_case_of_eight_gpus_is_valid(tmp_path: Path) -> None:
    """Put into the project's own file, as docs/clusters.md has it."""
    page = (REPOSITORY / "docs/clusters.md").read_text()
    [block] = re.findall(r"^use_cases:\n(  7:\n(?:    .*\n)+)", page, re.MULTILINE)
    text = (REPOSITORY / "experiments.yaml").read_text().replace("\n  3:  ", f"\n{block}  3:  ", 1)
    (pair,) = expand(config_of(text, tmp_path), Selection(gpus=("h100",), benchmarks=("cifar10",), use_cases=(7,)))
    assert (pair.cell.devices, pair.cell.nodes, pair.frameworks) == (8, 1, ("jax", "torch"))
    assert {variant.batch_size for plan in pair.jobs for variant in plan.variants} == {256, 2048}
