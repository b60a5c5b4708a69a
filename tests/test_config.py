"""experiments.yaml: what is read, and how every mistake is answered: place, key, value, rule, valid names."""

import shutil
from pathlib import Path

import pytest

from harness.catalog import differences, read_catalog
from harness.config import Config, load_config
from harness.errors import ConfigError, ProjectError
from harness.matrix import expand_variants
from harness.paths import REPOSITORY
from harness.yaml_source import read_source
from tests.config_text import MINIMAL, changed


def load(text: str, folder: Path) -> Config:
    path = folder / "experiments.yaml"
    path.write_text(text)
    return load_config(path)


def complaints(text: str, folder: Path) -> list[str]:
    """The lines of the error, without the folder."""
    with pytest.raises(ConfigError) as caught:
        load(text, folder)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


def test_the_projects_own_file_is_valid() -> None:
    config = load_config(REPOSITORY / "experiments.yaml")
    assert config.project == "jax-vs-torch"
    assert list(config.gpus) == ["any", "rtx2080ti", "rtx3080", "a5000", "a100", "h100", "h200"]
    assert config.matrix.benchmarks == ("mnist", "cifar10")
    assert config.matrix.use_cases == (1, 3)


def test_values_and_defaults(tmp_path: Path) -> None:
    config = load(MINIMAL, tmp_path)
    assert config.cluster.time_limit_minutes == 30
    assert config.cluster.partition is None
    assert config.cluster.frameworks["jax"].python == "/opt/jax/bin/python"
    assert config.gpus["a100"].gres is None
    assert config.use_cases[1].devices == 1
    assert config.measurement.replicates == 3
    # PyYAML alone would read 1e-3 as text.
    assert config.use_cases[1].settings["learning_rate"] == 0.001
    assert config.data_dir == str(REPOSITORY / "data")


def test_a_framework_that_is_left_out_gets_the_default_python(tmp_path: Path) -> None:
    import sys

    config = load(changed("    torch: {python: /opt/torch/bin/python}\n", ""), tmp_path)
    assert config.cluster.frameworks["jax"].python == "/opt/jax/bin/python"
    assert config.cluster.frameworks["torch"].python == sys.executable


def test_data_dir_expands_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    assert load("data_dir: $SCRATCH/sets\n" + MINIMAL, tmp_path).data_dir == "/scratch/me/sets"
    monkeypatch.delenv("SCRATCH")
    assert complaints("data_dir: $SCRATCH/sets\n" + MINIMAL, tmp_path) == [
        "experiments.yaml:1:11: data_dir: $SCRATCH/sets: names an environment variable that is not set"
    ]


def test_settings_the_more_special_wins(tmp_path: Path) -> None:
    text = changed(
        "  mnist: {models: [cnn]}\n",
        "  mnist: {models: [cnn], settings: {train: {epochs: 7, momentum: 0.5}}}\n",
    )
    config = load(text + "quick: {use_cases: {1: {settings: {epochs: 1}}}}\n", tmp_path)
    assert config.settings("cifar10", 1, quick=False)["epochs"] == 2
    assert config.settings("mnist", 1, quick=False)["epochs"] == 7
    assert config.settings("mnist", 1, quick=True)["epochs"] == 1
    assert config.settings("mnist", 1, quick=True)["momentum"] == 0.5


def test_quick_replaces_the_protocol(tmp_path: Path) -> None:
    config = load(MINIMAL + "measurement: {seed: 4}\nquick: {measurement: {replicates: 1}}\n", tmp_path)
    assert config.protocol(quick=False).replicates == 3
    assert config.protocol(quick=True).replicates == 1
    assert config.protocol(quick=True).seed == 4


# Each: what is replaced in MINIMAL, by what, and the one line that must come back.
MISTAKES = {
    "negative number": (
        "time_limit_minutes: 30",
        "time_limit_minutes: -5",
        "experiments.yaml:3:23: cluster.time_limit_minutes: -5: must be at least 1",
    ),
    "text for a number": (
        "time_limit_minutes: 30",
        'time_limit_minutes: "30"',
        'experiments.yaml:3:23: cluster.time_limit_minutes: "30": must be a whole number',
    ),
    "truth for a number": (
        "time_limit_minutes: 30",
        "time_limit_minutes: true",
        "experiments.yaml:3:23: cluster.time_limit_minutes: true: must be a whole number",
    ),
    "nothing for a number": (
        "time_limit_minutes: 30",
        "time_limit_minutes:",
        "experiments.yaml:3:22: cluster.time_limit_minutes: (nothing): must be a whole number",
    ),
    "unknown key": (
        "time_limit_minutes: 30",
        "time_limit_minute: 30",
        "experiments.yaml:3:3: cluster.time_limit_minute: unknown key; valid: partition, account, "
        "time_limit_minutes, cpus_per_task, memory_gb, sbatch_options, max_parallel_jobs, frameworks; "
        "did you mean time_limit_minutes?",
    ),
    "missing key": (
        "    batch_sizes: [64]\n",
        "",
        "experiments.yaml:18:3: use_cases.1.batch_sizes: is missing",
    ),
    "empty list": (
        "batch_sizes: [64]",
        "batch_sizes: []",
        "experiments.yaml:20:18: use_cases.1.batch_sizes: []: must not be empty",
    ),
    "one value for a list": (
        "batch_sizes: [64]",
        "batch_sizes: 64",
        "experiments.yaml:20:18: use_cases.1.batch_sizes: 64: must be a list, such as [a, b]",
    ),
    "entry twice": (
        "batch_sizes: [64]",
        "batch_sizes: [64, 64]",
        "experiments.yaml:20:23: use_cases.1.batch_sizes[1]: 64: listed twice",
    ),
    "key twice": (
        "  a100: {per_node: 4}\n",
        "  a100: {per_node: 4}\n  a100: {}\n",
        "experiments.yaml:10:3: gpus.a100: given twice; the first is in line 9",
    ),
    "number as a key, twice": (
        "  3:\n",
        "  1:\n",
        "experiments.yaml:24:3: use_cases.1: given twice; the first is in line 18",
    ),
    "name where a number is the key": (
        "  3:\n",
        "  three:\n",
        "experiments.yaml:24:3: use_cases.three: must be a whole number",
    ),
    "unknown precision": (
        "precisions: [fp32]",
        "precisions: [fp23]",
        "experiments.yaml:21:18: use_cases.1.precisions[0]: fp23: valid: fp32, tf32, bf16; did you mean fp32?",
    ),
    "list for one value": (
        "epochs: 2",
        "epochs: [2]",
        "experiments.yaml:23:24: use_cases.1.settings.epochs: [2]: "
        "must be one plain value: text, a number, true or false",
    ),
    "infinite number": (
        "clip_norm: 1.0",
        "clip_norm: 1e999",
        "experiments.yaml:30:42: use_cases.3.settings.clip_norm: 1e999: too large for a number",
    ),
    "a name that is no file name": (
        "project: trial",
        "project: my trial",
        "experiments.yaml:1:10: project: my trial: must be of letters, digits, `_`, `.` and `-`: "
        "it becomes part of file names",
    ),
    "an option that the header has": (
        "  time_limit_minutes: 30\n",
        "  time_limit_minutes: 30\n  sbatch_options: [--gres=gpu:2]\n",
        "experiments.yaml:4:20: cluster.sbatch_options[0]: --gres=gpu:2: "
        "--gres is written by templates/job.sh.j2; leave it out here",
    ),
    "exclude of everything": (
        "- {model: resnet18}",
        "- {}",
        "experiments.yaml:32:9: use_cases.3.exclude[0]: would exclude everything; name at least one of "
        "framework, benchmark, model, batch_size, precision, execution_mode, options",
    ),
    "undefined GPU": (
        "gpus: [any]",
        "gpus: [any, a10]",
        "experiments.yaml:11:15: matrix.gpus[1]: a10: not defined; valid: any, a100; did you mean a100?",
    ),
    "benchmark without a file": (
        "  mnist: {models: [cnn]}\n",
        "  mnist: {models: [cnn]}\n  minst: {models: [cnn]}\n",
        "experiments.yaml:16:3: benchmarks.minst: no file minst.py in both runners' benchmarks/; "
        "valid: cifar10, mnist, synthetic; did you mean mnist?",
    ),
    "model that no runner has": (
        "  mnist: {models: [cnn]}\n",
        "  mnist: {models: [cn]}\n",
        "experiments.yaml:15:20: benchmarks.mnist.models[0]: cn: not in both runners' benchmarks/mnist.py; "
        "valid: cnn; did you mean cnn?",
    ),
    "execution mode that the runner has not": (
        "torch: [eager, compiled]",
        "torch: [eager, compile]",
        "experiments.yaml:22:50: use_cases.1.execution_modes.torch[1]: compile: not in "
        "torch_runner/use_cases/train.py; valid: eager, compiled, "
        "compiled_max_autotune, cuda_graphs, cuda_graph_step; did you mean compiled?",
    ),
    "framework without modes": (
        "{jax: [jit], torch: [eager, compiled]}",
        "{jax: [jit]}",
        "experiments.yaml:22:5: use_cases.1.execution_modes.torch: is missing; name one at least",
    ),
    "option value that is not declared": (
        "[norms, full]",
        "[norms, ful]",
        "experiments.yaml:29:31: use_cases.3.options.output[1]: ful: not defined; "
        "valid: norms, full, clipped_sum, batch_gradient; did you mean full?",
    ),
    "option that is not given": (
        "    options: {output: [norms, full]}\n",
        "",
        "experiments.yaml:24:3: use_cases.3.options.output: is missing; list the values to measure",
    ),
    "setting that is not declared": (
        "momentum: 0.9",
        "momentum: 0.9, momentun: 1",
        "experiments.yaml:23:63: use_cases.1.settings.momentun: not a setting of train; valid: epochs, "
        "learning_rate, momentum, weight_decay, target_accuracy; did you mean momentum?",
    ),
    "setting out of its range": (
        "momentum: 0.9",
        "momentum: 1.5",
        "experiments.yaml:23:58: use_cases.1.settings.momentum: 1.5: must be a number from 0 to 1",
    ),
    "fraction of an epoch": (
        "epochs: 2",
        "epochs: 2.5",
        "experiments.yaml:23:24: use_cases.1.settings.epochs: 2.5: must be a whole number of at least 1",
    ),
    "setting that is missing": (
        ", target_accuracy: 0.5",
        "",
        "experiments.yaml:23:5: use_cases.1.settings.target_accuracy: is missing for mnist, cifar10; give "
        "a number from 0 to 1 here or at benchmarks.mnist.settings.train.target_accuracy",
    ),
    "model that the use case refuses": (
        "      - {model: resnet18}\n",
        "",
        "experiments.yaml:25:11: use_cases.3.name: per_sample_gradients: does not go with "
        "resnet18 of cifar10: "
        "BatchNorm mixes the samples of a batch, so a per-sample gradient is not defined; "
        "add `- {model: resnet18}` to use_cases.3.exclude",
    ),
    "exclude of what is on no axis": (
        "execution_mode: loop, batch_size: 32",
        "execution_mode: loop, batch_size: 23",
        "experiments.yaml:33:44: use_cases.3.exclude[1].batch_size: 23: not defined; valid: 16, 32; did you mean 32?",
    ),
    "devices that do not divide": (
        "    name: train\n",
        "    name: train\n    devices: 4\n    nodes: 3\n",
        "experiments.yaml:20:14: use_cases.1.devices: 4: must be divisible by nodes (3): every node takes as many",
    ),
    "batch size that does not divide": (
        "    name: train\n    batch_sizes: [64]\n",
        "    name: train\n    devices: 4\n    batch_sizes: [64, 66]\n",
        "experiments.yaml:21:23: use_cases.1.batch_sizes[1]: 66: must be divisible by devices (4): "
        "a batch size is that of all devices",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_mistake_is_one_line(mistake: str, tmp_path: Path) -> None:
    old, new, complaint = MISTAKES[mistake]
    assert complaints(changed(old, new), tmp_path) == [complaint]


def test_mistakes_under_quick(tmp_path: Path) -> None:
    quick = (
        "quick:\n"
        "  measurement: {replicates: 0, warmup: 1}\n"
        "  use_cases: {1: {execution_modes: {torch: [egaer]}}, 2: {}}\n"
    )
    lines = complaints(MINIMAL + quick, tmp_path)
    assert lines[0] == "experiments.yaml:35:29: quick.measurement.replicates: 0: must be at least 1"
    assert lines[1].startswith("experiments.yaml:35:32: quick.measurement.warmup: unknown key; valid: replicates,")
    assert lines[1].endswith("did you mean warmup_s?")
    assert lines[2:] == [
        "experiments.yaml:36:45: quick.use_cases.1.execution_modes.torch[0]: egaer: not in "
        "torch_runner/use_cases/train.py; valid: eager, compiled, "
        "compiled_max_autotune, cuda_graphs, cuda_graph_step; did you mean eager?",
        "experiments.yaml:36:55: quick.use_cases.2: not one of use_cases; valid: 1, 3",
    ]


def test_all_mistakes_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = changed("time_limit_minutes: 30", "time_limit_minutes: 0")
    text = text.replace("batch_sizes: [64]", "batch_sizes: [0]").replace("  a100: ", "  any: ")
    assert complaints(text, tmp_path) == [
        "experiments.yaml:3:23: cluster.time_limit_minutes: 0: must be at least 1",
        "experiments.yaml:9:3: gpus.any: given twice; the first is in line 8",
        "experiments.yaml:20:19: use_cases.1.batch_sizes[0]: 0: must be at least 1",
    ]


def test_a_use_case_that_leaves_a_framework_nothing(tmp_path: Path) -> None:
    text = changed("- {execution_mode: loop, batch_size: 32}", "- {framework: torch, benchmark: mnist}")
    assert complaints(text, tmp_path) == [
        "experiments.yaml:31:5: use_cases.3.exclude: exclude leaves nothing to measure for torch on mnist",
        "experiments.yaml:31:5: use_cases.3.exclude: "
        "with --quick, exclude leaves nothing to measure for torch on mnist",
    ]


def test_a_use_case_for_one_device_on_several(tmp_path: Path) -> None:
    """Each process would do all of the work, and the throughput would be that of one, times the devices."""
    many_models = (
        "  6:\n    name: many_models\n    devices: 2\n    batch_sizes: [32]\n    precisions: [fp32]\n"
        "    execution_modes: {jax: [vmap], torch: [loop]}\n"
        "    options: {models: [4], batches: [same], learning_rates: [one]}\n"
        "    settings: {learning_rate: 0.1, momentum: 0.9, in_features: 6, hidden_features: 7, out_features: 5,\n"
        "      channels: 2, image_size: 5, hidden_channels: 4, classes: 3}\n"
        "    exclude: [{model: resnet18}]\n"
    )
    rule = "use_cases.6.devices: 2: must be 1: many_models splits no work among devices"
    assert complaints(MINIMAL + many_models, tmp_path) == [f"experiments.yaml:36:14: {rule}"]
    assert load(MINIMAL + many_models.replace("devices: 2", "devices: 1"), tmp_path).use_cases[6].devices == 1


def test_an_excluded_cell_may_be_impossible(tmp_path: Path) -> None:
    text = changed("      - {model: resnet18}\n", "").replace(
        "  use_cases: [1]\n", "  use_cases: [1]\n  exclude: [{benchmark: cifar10, use_case: 3}]\n"
    )
    assert load(text, tmp_path).is_excluded("any", "cifar10", 3)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "experiments.yaml:1:1: the file is empty; copy the project's experiments.yaml and edit that"),
        (
            "# only this\n",
            "experiments.yaml:1:1: the file is empty; copy the project's experiments.yaml and edit that",
        ),
        (
            "- a\n",
            "experiments.yaml:1:1: [a]: must hold the keys project, data_dir, cluster, pairing, gpus, matrix, "
            "benchmarks, use_cases, measurement, quick, wandb",
        ),
        (
            "project: p\ncluster:\n\tpartition: x\n",
            "experiments.yaml:3:1: not valid YAML: found character '\\t' that cannot start any token "
            "(while scanning for the next token); indent with blanks, not with tabs",
        ),
        (
            "project: [p\n",
            "experiments.yaml:2:1: not valid YAML: expected ',' or ']', but got '<stream end>' "
            "(while parsing a flow sequence)",
        ),
        ("project: a\x07b\n", "experiments.yaml:1:11: special characters are not allowed"),
    ],
)
def test_a_file_that_is_no_configuration(text: str, complaint: str, tmp_path: Path) -> None:
    assert complaints(text, tmp_path) == [complaint]


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: no such file; name another with --config FILE"):
        load_config(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"project: \xff\n")
    with pytest.raises(ConfigError, match="byte 9: not UTF-8 text"):
        load_config(binary)


def test_plain_values_follow_yaml_1_2(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("[1e-3, .5, 5., 1E3, -7, no, on, 1:30, 0x10, 'true', true, ~, .inf, 2026-11-21, \"5\"]")
    assert read_source(path).data == (
        *(0.001, 0.5, 5.0, 1000.0, -7),
        *("no", "on", "1:30", "0x10", "true", True, None, ".inf", "2026-11-21", "5"),
    )


def test_an_alias_inside_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.write_text("a: &a\n  b: *a\n")
    source = read_source(path)
    assert [problem.text("f") for problem in source.problems] == [
        "f:1:4: a.b: an alias (*name) must not stand inside what it names"
    ]


def test_the_two_runners_agree() -> None:
    assert differences(read_catalog()) == []


@pytest.fixture
def runners(tmp_path: Path) -> Path:
    """A copy of both runners' files, to be changed."""
    for framework in ("jax", "torch"):
        for folder in ("benchmarks", "use_cases", "parity"):
            source = REPOSITORY / f"{framework}_runner" / folder
            shutil.copytree(source, tmp_path / f"{framework}_runner" / folder)
    return tmp_path


def test_differences_are_named(runners: Path) -> None:
    (runners / "jax_runner/benchmarks/nlp.py").write_text("MODELS = ('gpt',)\n")
    (runners / "jax_runner/benchmarks/mnist.py").write_text("MODELS = ('mlp',)\n")
    (runners / "jax_runner/use_cases/train.py").unlink()
    assert differences(read_catalog(runners)) == [
        "benchmarks/mnist.py: MODELS differs: jax ('mlp',), torch ('cnn',)",
        "torch_runner/benchmarks/nlp.py is missing; the other runner has it",
        "jax_runner/use_cases/train.py is missing; the other runner has it",
    ]


def test_parity_numbers_of_one_side_or_of_nothing_are_named(runners: Path) -> None:
    (runners / "torch_runner/parity/train.py").unlink()
    for framework in ("jax", "torch"):
        (runners / f"{framework}_runner/parity/no_such.py").write_text("")
    assert differences(read_catalog(runners)) == [
        "torch_runner/parity/train.py is missing; the other runner has it",
        "parity/no_such.py belongs to no use case; use_cases/no_such.py is missing",
    ]


def test_a_new_benchmark_needs_only_its_files(runners: Path) -> None:
    for framework in ("jax", "torch"):
        (runners / f"{framework}_runner/benchmarks/nlp.py").write_text("import absent\nMODELS = ('gpt',)\n")
    path = runners / "experiments.yaml"
    path.write_text(changed("  mnist: {models: [cnn]}\n", "  mnist: {models: [cnn]}\n  nlp: {models: [gpt]}\n"))
    assert load_config(path, repository=runners).benchmarks["nlp"].models == ("gpt",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("MODELS = tuple('ab')\n", "mnist.py:1: MODELS must be a literal, as the file is not run"),
        ("MODEL = ('cnn',)\n", "mnist.py: MODELS: Field required"),
        ("MODELS = (\n", "mnist.py:1: not valid Python: '(' was never closed"),
    ],
)
def test_a_runners_file_without_its_constants(runners: Path, text: str, complaint: str) -> None:
    (runners / "jax_runner/benchmarks/mnist.py").write_text(text)
    with pytest.raises(ProjectError) as caught:
        read_catalog(runners)
    assert str(caught.value) == f"{runners}/jax_runner/benchmarks/{complaint}"


def test_a_setting_needs_a_known_rule(runners: Path) -> None:
    path = runners / "torch_runner/use_cases/train.py"
    lines = 'EXECUTION_MODES = ("eager",)\nOPTIONS = {}\nREFUSED_MODELS = {}\nSETTINGS = {"epochs": "big"}\n'
    path.write_text(lines)
    with pytest.raises(ProjectError) as caught:
        read_catalog(runners)
    assert str(caught.value) == (
        f"{path}: SETTINGS: epochs: big: must be one of "
        "positive integer, positive number, non-negative number, fraction"
    )


def test_an_option_may_take_any_value_that_fits_its_rule(runners: Path) -> None:
    """Read from the constants of both files; the words are those of settings."""
    for framework in ("jax", "torch"):
        path = runners / f"{framework}_runner/use_cases/per_sample_gradients.py"
        before = path.read_text()
        line = next(line for line in before.splitlines() if line.startswith("OPTIONS"))
        path.write_text(before.replace(line, 'OPTIONS = {"output": "positive integer"}'))
    path = runners / "experiments.yaml"
    path.write_text(changed("options: {output: [norms, full]}", "options: {output: [7, 4096]}"))
    variants = expand_variants(load_config(path, repository=runners), "jax", "mnist", 3, quick=False)
    assert {variant.options["output"] for variant in variants} == {7, 4096}
    path.write_text(changed("options: {output: [norms, full]}", "options: {output: [7, 0]}"))
    with pytest.raises(ConfigError) as caught:
        load_config(path, repository=runners)
    assert (
        str(caught.value)
        .splitlines()[0]
        .endswith("use_cases.3.options.output[1]: 0: must be a whole number of at least 1")
    )


def test_an_option_needs_a_known_rule(runners: Path) -> None:
    path = runners / "torch_runner/use_cases/train.py"
    path.write_text('EXECUTION_MODES = ("eager",)\nOPTIONS = {"n": "many"}\nREFUSED_MODELS = {}\nSETTINGS = {}\n')
    with pytest.raises(ProjectError, match="train.py: OPTIONS: n: many: must be one of positive integer"):
        read_catalog(runners)
