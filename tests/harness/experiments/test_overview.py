"""What --help and names on the command line take from experiments.yaml, without the check of the file."""

from pathlib import Path

import pytest

from harness.experiments import overview
from harness.experiments.overview import in_words, numbers_of
from tests.made.config_text import MINIMAL


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.yaml"
    path.write_text(MINIMAL + "  7: {name: train, devices: 2}\n  8: {name: train}\n")
    return path


def test_a_line_for_each_use_case_and_all_benchmarks(config: Path) -> None:
    assert in_words(config).splitlines() == [
        "use cases:",
        "  1  train                 train a model, epoch by epoch",
        "  3  per_sample_gradients  the gradient of each single sample",
        "  7  train                 train a model, epoch by epoch, on 2 GPUs",
        "  8  train                 train a model, epoch by epoch",
        "",
        "benchmarks: mnist, cifar10",
    ]


def test_a_name_is_the_use_case_on_the_fewest_devices(config: Path) -> None:
    assert numbers_of(("train",), config) == (1, 8)
    assert numbers_of((7, "per_sample_gradients", 3, 7), config) == (7, 3)
    assert numbers_of((9, 7), Path("/nowhere")) == (9, 7), "numbers need no file"


def test_help_needs_no_sound_file_and_no_sound_declaration(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("USE_CASE = UseCase(")
    monkeypatch.setattr(overview, "DECLARATIONS", tmp_path)
    assert in_words(config).splitlines()[1] == "  1  train"
    for text in ("", "a: ["):
        config.write_text(text)
        assert in_words(config) == ""
    for text in ("use_cases: {x: {}, 1: 2, 2: {name: 3}, 4: {name: a, devices: b}}", "3"):
        config.write_text(text)
        assert in_words(config) == "use cases:\n\nbenchmarks: "
    assert in_words(tmp_path / "nowhere.yaml") == ""
