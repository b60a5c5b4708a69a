"""experiments.yaml: what is read, and how every mistake is answered: place, key, value, rule, valid names."""

import codecs
import os
import re
import sys
from collections import Counter
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
from harness.work.benchmarks.synthetic import Sizes
from harness.work.declared import benchmark_names
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


def test_a_forced_layout_is_planned_for_convolutions_on_tensor_cores_in_32_bits() -> None:
    forced = [one for one in planned(1) if one.execution_mode in ("step.nhwc", "step.nhwc_graph")]
    assert {one.precision for one in forced} == {"tf32"}
    # MNIST's, CIFAR-10's
    convolutional = ["cnn", "cnn", "resnet18", "resnet50", "mobilenet_v3_small", "efficientnet_b0"]
    assert Counter(one.model for one in forced) == Counter(convolutional * 2)


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
# Changes to MINIMAL, with & between them: what is replaced -> by what, + what is added, ^ what comes before it, or = in
# its place. Below them how the lines begin that must come back.
MISTAKES = r"""
? time_limit_minutes: 30 -> time_limit_minutes: true
3:23: cluster.time_limit_minutes: true: must be a whole number
?     batch_sizes: [64]\n ->
19:3: use_cases.1.batch_sizes: is missing
? batch_sizes: [64] -> batch_sizes: []
21:18: use_cases.1.batch_sizes: []: must not be empty
? batch_sizes: [64] -> batch_sizes: [64, 64]
21:23: use_cases.1.batch_sizes[1]: 64: listed twice
?   3:\n ->   three:\n
25:3: use_cases.three: must be a whole number
? precisions: [fp32] -> precisions: [fp16]
22:18: use_cases.1.precisions[0]: fp16: not for train: gradients below 6e-8 are zero in fp16, so training in it needs
? epochs: 2 -> epochs: [2]
24:24: use_cases.1.settings.epochs: [2]: must be one plain value: text, a number, true or false
?   mnist: {models: [cnn]} ->   mnist: {models: [cnn], batch_sizes: {trane: [4]}}
15:40: benchmarks.mnist.batch_sizes.trane: not the name of a use case; valid: per_sample_gradients, train; did you mean
?     name: train\n ->     name: train\n    measurement: {latency_call: 5}\n
21:19: use_cases.1.measurement.latency_call: unknown key; valid: replicates, seed, warmup_s, warmup_min_calls,
? clip_norm: 1.0 -> clip_norm: 1e999
31:42: use_cases.3.settings.clip_norm: 1e999: too large for a number
?   time_limit_minutes: 30\n ->   time_limit_minutes: 30\n  sbatch_options: [--gres=gpu:2]\n
4:20: cluster.sbatch_options[0]: --gres=gpu:2: --gres has a key of its own, gpus.NAME.gres: write it there
?   a100: {per_node: 4} ->   a100: {setup: [if true]}
9:17: gpus.a100.setup: [if true]: must be whole shell commands; bash: line 2: syntax error: unexpected end of file
?   time_limit_minutes: 30\n ->   time_limit_minutes: 30\n  srun_options: [--gres=none]\n
4:18: cluster.srun_options[0]: --gres=none: --gres may hide a node's GPUs from its ranks, which have those of the job;
? - {formulation: loop, batch_size: 32} -> - {}
33:9: use_cases.3.exclude[0]: would exclude everything; name at least one of framework, benchmark, model, batch_size,
? gpus: [any] -> gpus: [any, a10]
11:15: matrix.gpus[1]: a10: not defined; valid: any, a100; did you mean a100?
?   mnist: {models: [cnn]}\n ->   mnist: {models: [cnn]}\n  minst: {models: [cnn]}\n
16:3: benchmarks.minst: no such benchmark in harness/work/benchmarks/; valid: {benchmarks}; did you mean mnist?
?   mnist: {models: [cnn]}\n ->   mnist: {models: [cn]}\n
15:20: benchmarks.mnist.models[0]: cn: not in harness/work/benchmarks/mnist.py; valid: cnn; did you mean cnn?
? torch: [step]} -> torch: [steps]}
23:41: use_cases.1.formulations.torch[0]: steps: not in harness/work/use_cases/train.py for torch; valid: step, unsplit,
? jax: [step], torch: [step] -> jax: [step]
23:5: use_cases.1.formulations.torch: is missing; name at least one
? vmap: [eager], loop -> vmap: [eager], vmap: [compiled], loop
29:56: use_cases.3.formulations.torch[1].vmap: given twice; write all of its runs into one entry
? vmap: [eager], loop -> vmap: , loop
29:47: use_cases.3.formulations.torch[0].vmap: (nothing): must not be empty; name some of its runs, or write `vmap`
? torch: [step]} -> torch: [step, epoch]}
23:47: use_cases.1.formulations.torch[1]: epoch: has none of `runs`; write some beside it, such as `epoch:
? [norms, full] -> [norms, ful]
30:31: use_cases.3.options.output[1]: ful: valid: norms, full, clipped_sum, batch_gradient; did you mean full?
?     options: {output: [norms, full]}\n ->
25:3: use_cases.3.options.output: is missing; list the values to measure
? momentum: 0.9 -> momentum: 0.9, momentun: 1
24:63: use_cases.1.settings.momentun: not a setting of train; valid: epochs, learning_rate, momentum, weight_decay,
? epochs: 2 -> epochs: 2.5
24:24: use_cases.1.settings.epochs: 2.5: must be a whole number of at least 1
? , target_metric: 0.5 ->
24:5: use_cases.1.settings.target_metric: is missing for mnist, cifar10; give a number of at least 0 here or at
?     name: train\n ->     name: trian\n
20:11: use_cases.1.name: trian: no such use case in harness/work/use_cases/; valid: inference, many_models,
?   mnist: {models: [cnn]}\n ->   mnist: {models: [cnn], sizes: {classes: 3}}\n
15:34: benchmarks.mnist.sizes.classes: not a size of mnist; there is none to choose from
? {output: [norms, full]} -> {output: [norms, full], outputs: [full]}
30:38: use_cases.3.options.outputs: not an option of per_sample_gradients; valid: output; did you mean output?
?   time_limit_minutes: 30\n ->   time_limit_minutes: 30\n  sbatch_options: [--hold --array=0-9]\n
4:20: cluster.sbatch_options[0]: --hold --array=0-9: must be one long option of sbatch on one line, such as --exclusive
? {python: /opt/jax/bin/python} -> {python: -c}
5:19: cluster.frameworks.jax.python: -c: must be the path or name of an interpreter; `-` begins an option
? {python: /opt/jax/bin/python} -> {runtime: podman}
5:10: cluster.frameworks.jax: runtime and image go together: name both for a container, or neither
? {python: /opt/jax/bin/python} -> {mounts: [/scratch]}
5:10: cluster.frameworks.jax: mounts and options are of a container; name its runtime and image, or leave them out
? project: trial -> project: !foo trial
1:10: project: !foo: a tag means nothing here; leave it out
? weight_decay: 0 -> weight_decay: 1e300
24:77: use_cases.1.settings.weight_decay: 1e+300: must be at most 1000000000
? batch_size: 32} -> precision: }
33:40: use_cases.3.exclude[0].precision: (nothing): name one, or leave the key out: without a value it would exclude
? {formulation: loop, -> {formulation: [vmap, lop],
33:30: use_cases.3.exclude[0].formulation[1]: lop: not defined; valid: vmap, loop; did you mean loop?
? {formulation: loop, -> {execution_mode: loop.eager,
33:10: use_cases.3.exclude[0].execution_mode: unknown key; valid: framework, benchmark, model, batch_size, precision,
?     name: train\n ->     name: train\n    devices: 4\n    nodes: 3\n
21:14: use_cases.1.devices: 4: must be divisible by nodes (3): every node takes as many
?     name: train\n    batch_sizes: [64]\n ->     name: train\n    devices: 4\n    batch_sizes: [64, 66]\n
22:23: use_cases.1.batch_sizes[1]: 66: must be divisible by devices (4): a batch size is that of all devices
?   any: {}\n ->   any: {}\n  cpu: {gres: epyc}\n
9:9: gpus.cpu.gres: is for GPUs; `cpu` asks for none
? +quick: {benchmarks: {mnst: {models: [cnn]}}}
34:22: quick.benchmarks.mnst: not one of benchmarks; valid: mnist, cifar10; did you mean mnist?
? +quick: {runs: {torch: [egaer]}}
34:24: quick.runs.torch[0]: egaer: not in the runs of torch; valid: eager,
? +quick: {use_cases: {1: {formulations: {torch: [steps]}}}}
34:48: quick.use_cases.1.formulations.torch[0]: steps: not in harness/work/use_cases/train.py for torch
? - {formulation: loop, batch_size: 32} -> - {framework: torch, benchmark: mnist}
32:5: use_cases.3.exclude: exclude leaves nothing to measure for torch on mnist
32:5: use_cases.3.exclude: with --quick, exclude leaves nothing to measure for torch on mnist
? minutes: 30 -> minutes: 0 & sizes: [64] -> sizes: [0] &   a100: {per_node: 4} ->   any: {}
3:23: cluster.time_limit_minutes: 0: must be at least 1
9:3: gpus.any: given twice; the first is in line 8
21:19: use_cases.1.batch_sizes[0]: 0: must be at least 1
? runs: {jax: [jit] -> runs: {jax: [jitt] & [vmap], torch -> [vmap, ghost: [jit]], torch & loop, batch_size: 32 -> ghost
17:14: runs.jax[0]: jitt: not in the runs of jax
? +{many_models} & many_models\n -> many_models\n    devices: 2\n
36:14: use_cases.6.devices: 2: must be 1: many_models splits no work among devices
? precisions: [fp32] -> precisions: [fp23]
22:18: use_cases.1.precisions[0]: fp23: valid: fp64, fp32, tf32, bf16, fp16, default; did you mean fp32?
? +quick: {runs: {jax: [jit_graph]}, benchmarks: {mnist: {runs: {jax: [jit]}}}}
34:68: quick.benchmarks.mnist.runs.jax: [jit]: leaves no execution mode for mnist_1 with --quick
34:68: quick.benchmarks.mnist.runs.jax: [jit]: leaves no execution mode for mnist_3 with --quick
? +quick: {use_cases: {1: {formulations: {jax: [step: [nhwc]]}}}}
19:3: use_cases.1: with --quick, nothing to measure for jax on cifar10: nhwc is for tf32
19:3: use_cases.1: with --quick, nothing to measure for jax on mnist: nhwc is for tf32
? =- a\n
1:1: [a]: must hold the keys project, data_dir, cluster, pairing, gpus, matrix, benchmarks, runs, use_cases,
? =project: p\ncluster:\n\tpartition: x\n
3:1: not valid YAML: found character '\t' that cannot start any token
? =project: [p\n
2:1: not valid YAML: expected ',' or ']', but got '<stream end>' (while parsing a flow sequence)
? =project: a\x07b\n
1:11: the character U+0007: must be removed: YAML takes no control characters
? ^data_dir: ~nosuchuser/x
1:11: data_dir: ~nosuchuser/x: names a user who is not known here, or whose home is not
? ^measurement: {min_time_s: 13}
1:27: measurement.min_time_s: 13: min_time_s must not be above max_time_s: 13 and 12
? ^measurement: {replicates: 5}
1:27: measurement.replicates: 5: 5 replicates are no design: a ratio is looked at after 4, 6, 8, 12, 16 and 20 pairs;
? ^wandb: {tags: ['']}
1:16: wandb.tags[0]: "": must not be empty
?   time_limit_minutes: 30\n ->   time_limit_minutes: 30\n  partition: "x\\n#SBATCH --array=0-9"\n
4:14: cluster.partition: x #SBATCH --array=0-9: must be one line without control characters
?   time_limit_minutes: 30\n ->   time_limit_minutes: 30\n  partition: "a\\ud800"\n
4:14: cluster.partition: a\ud800: must be valid Unicode text; this is half a character
? +presets: {one: {about: x, parts: [{use_cases: [3], benchmarks: [cifar10], frameworks: [jax], models: [resnet18]}]}}
34:35: presets.one.parts[0]: leaves nothing to measure for jax in cifar10_3
? +presets: {one: {about: x, parts: [{benchmarks: [minst]}]}}
34:49: presets.one.parts[0].benchmarks[0]: minst: not defined; valid: mnist, cifar10; did you mean mnist?
? +presets: {one: {about: x, parts: [{models: [cn]}]}}
34:35: presets.one.parts[0]: as flags: --model cn: no model of mnist, cifar10; valid: cnn, resnet18; did you mean cnn?
? +presets: {one: {about: x, parts: [{use_cases: [1]}, {benchmarks: [mnist]}]}}
34:53: presets.one.parts[1]: mnist with use case 1 is in parts[0] already; a preset has one part for each cell
"""


@pytest.mark.parametrize("mistake", MISTAKES.split("\n? ")[1:], ids=lambda mistake: mistake.splitlines()[0])
def test_each_mistake_is_one_line(mistake: str, tmp_path: Path) -> None:
    changes, *expected = mistake.splitlines()
    text = MINIMAL
    for change in changes.split(" & "):
        new = codecs.decode(change, "unicode_escape").replace("{many_models}", MANY_MODELS)
        match new[0]:
            case "+":
                text += new[1:].removesuffix("\n") + "\n"
            case "^":
                text = f"{new[1:]}\n{text}"
            case "=":
                text = new[1:]
            case _:
                old, new = f"{new} ".split(" -> ")
                text = changed(old, new.removesuffix(" "), text)
    lines = complaints(text, tmp_path)
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start.replace("{benchmarks}", ", ".join(benchmark_names()))), line


def test_the_whole_of_a_message(tmp_path: Path) -> None:
    """Place, key, value, rule, all valid names in their order, and the nearest."""
    assert complaints(changed("time_limit_minutes: 30", "time_limit_minute: 30"), tmp_path) == [
        "3:3: cluster.time_limit_minute: unknown key; valid: partition, account, qos, constraint, "
        "time_limit_minutes, cpus_per_task, memory_gb, sbatch_options, setup, requeue, srun_options, cpu_bind, "
        "whole_nodes, frameworks; did you mean time_limit_minutes?"
    ]
    assert complaints(changed("[vmap: [eager], loop]", "[vmap: [eagr], loop]"), tmp_path) == [
        "29:48: use_cases.3.formulations.torch[0].vmap[0]: eagr: not in the runs of vmap in "
        "harness/work/use_cases/per_sample_gradients.py for torch; valid: eager, eager_graph, compiled, "
        "compiled_graph, max_autotune, max_autotune_graph; did you mean eager?"
    ]
    assert complaints(changed("{formulation: loop, ", "{model: mnist/resnet18, "), tmp_path) == [
        "33:17: use_cases.3.exclude[0].model: mnist/resnet18: not defined; valid: cnn, resnet18, "
        "mnist/cnn, cifar10/cnn, cifar10/resnet18; did you mean resnet18?"
    ]


WITH_SYNTHETIC = (
    changed("resnet18]}\n", "resnet18]}\n  synthetic: {models: [linear], sizes: {in_features: 6, classes: 4}}\n")
    + MANY_MODELS
)
"""Benchmark and use case of made-up inputs; the other two use cases need a data set."""


def test_sizes_that_are_left_out_have_their_defaults(tmp_path: Path) -> None:
    config = config_of(WITH_SYNTHETIC, tmp_path)
    assert config.sizes("synthetic", quick=False) == Sizes(in_features=6, classes=4).model_dump()
    assert config.sizes("mnist", quick=False) == {}


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


def test_what_would_take_all_memory_is_refused_at_once(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 28))
    assert "more than 30,000 values, counting what aliases repeat" in complaints(bomb, tmp_path)[0]
    rule = "1:4: a.b: an alias (*name) must not stand inside what it names"
    assert rule in complaints("a: &a\n  b: *a\n", tmp_path)
    for depth in (900, 1_000, 100_000):
        (line,) = complaints("project: " + "[" * depth + "]" * depth, tmp_path)
        assert "nested too deep" in line or "exceeded maximum nesting depth" in line  # libyaml has a limit of its own
    answer = "the file is larger than 1 MB, so it is not a configuration of this project"
    assert complaints("#" * 1_000_001, tmp_path) == [answer]
    variants = changed("batch_sizes: [64]", f"batch_sizes: {list(range(1, 10_002))}")
    assert "10,001 variants for jax on mnist; must be at most 10,000" in complaints(variants, tmp_path)[0]
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="not a regular file"):
            load_config(path)


def test_the_documented_use_case_of_eight_gpus_is_valid(tmp_path: Path) -> None:
    """Put into the project's own file, as docs/clusters.md has it."""
    page = (REPOSITORY / "docs/clusters.md").read_text()
    [block] = re.findall(r"^use_cases:\n(  7:\n(?:    .*\n)+)", page, re.MULTILINE)
    text = (REPOSITORY / "experiments.yaml").read_text().replace("\n  3:  ", f"\n{block}  3:  ", 1)
    (pair,) = expand(config_of(text, tmp_path), Selection(gpus=("h100",), benchmarks=("cifar10",), use_cases=(7,)))
    assert (pair.cell.devices, pair.cell.nodes, pair.frameworks) == (8, 1, ("jax", "torch"))
    assert {variant.batch_size for plan in pair.jobs for variant in plan.variants} == {256, 2048}
