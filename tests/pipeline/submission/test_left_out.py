"""What `main.py --dry-run --why` says, of a small experiments.yaml and of the project's own."""

from pathlib import Path

import pytest

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.narrow import Narrowing
from harness.experiments.presets import Part
from main import EXPERIMENTS, main
from pipeline.submission.left_out import left_out_in_words
from tests.made.config_text import MINIMAL, config_of


def lines_of(path: Path, text: str = MINIMAL, **selection: object) -> list[str]:
    config = config_of(text, path)
    chosen = Selection(**selection)  # type: ignore[arg-type]
    return list(left_out_in_words([Part(selection=chosen, pairs=expand(config, chosen))], config))


def test_each_reason_stands_once_with_what_it_concerns(tmp_path: Path) -> None:
    # cnn: 2 batch sizes x 2 precisions x 2 outputs of vmap and, in PyTorch, of the loop, whose batch of 32 is excluded.
    assert lines_of(tmp_path, benchmarks=("cifar10",), use_cases=(3,)) == [
        "cifar10_3: 20 of 48 combinations are measured; the others are left out:",
        "  jax    resnet18: BatchNorm mixes the samples of a batch, so a per-sample gradient is not defined",
        f"  torch  cnn; loop; batch size 32: `exclude` in {tmp_path / 'experiments.yaml'}",
        "  torch  resnet18: BatchNorm mixes the samples of a batch, so a per-sample gradient is not defined",
    ]


def test_runs_are_named_where_only_some_of_a_formulations_are_left_out(tmp_path: Path) -> None:
    text = MINIMAL.replace("jax: [step]", "jax: [step: [jit, nhwc]]")
    assert lines_of(tmp_path, text, benchmarks=("mnist",), use_cases=(1,)) == [
        "mnist_1: 3 of 4 combinations are measured; the others are left out:",
        "  jax    cnn; step.nhwc: nhwc is for tf32",
    ]


def test_a_cell_that_is_measured_as_a_whole_or_not_at_all_is_a_line(tmp_path: Path) -> None:
    narrowing = Narrowing(formulations=("vmap",))
    found = lines_of(tmp_path, benchmarks=("mnist",), use_cases=(3,), narrowing=narrowing)
    assert found == ["mnist_3: 16 of 16 combinations are measured"]
    config = load_config(EXPERIMENTS)
    selection = Selection(benchmarks=("synthetic",), use_cases=(1, 5))
    first, second, *_ = left_out_in_words([Part(selection=selection, pairs=expand(config, selection))], config)
    assert first == "synthetic_1: synthetic has no data set, and train needs one: not measured"
    assert second.startswith("synthetic_5: ")


def test_it_belongs_to_a_dry_run_and_wants_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--benchmark", "molpcba", "--use_case", "6", "--why", "--results", str(tmp_path)]
    assert main([*words, "--dry-run"]) == 0
    assert "  jax    gcn, graphnet: side_by_side is for models with convolutions\n" in capsys.readouterr().out
    assert main(words) == 2
    assert "--why goes with --dry-run" in capsys.readouterr().err
