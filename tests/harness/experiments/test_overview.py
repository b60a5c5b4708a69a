"""What --help and names on the command line take from experiments.yaml, without the check of the file."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.experiments import overview
from harness.experiments.load import load_config
from harness.experiments.overview import in_words, numbers_of
from harness.paths import REPOSITORY
from harness.work.declared import use_case
from tests.made.config_text import MINIMAL

SEVERAL = """\
  7: {like: 1, devices: 2, batch_sizes: [128]}
  8: {like: 1}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.yaml"
    path.write_text(MINIMAL + SEVERAL)
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


def test_the_projects_own_in_the_words_of_their_declarations() -> None:
    path = REPOSITORY / "experiments.yaml"
    config = load_config(path)
    lines = in_words(path).splitlines()
    for number, of_it in config.use_cases.items():
        about = use_case(of_it.name).about
        assert 0 < len(about.split()) <= 6, of_it.name
        assert [line for line in lines if line.split()[:2] == [str(number), of_it.name] and about in line], lines
    assert lines[-1] == f"benchmarks: {', '.join(config.benchmarks)}"


def test_a_name_is_the_use_case_on_the_fewest_devices(config: Path) -> None:
    assert numbers_of(("train",), config) == (1, 8)
    assert numbers_of((7, "per_sample_gradients", 3, 7), config) == (7, 3)
    assert numbers_of((9, 7), Path("/nowhere")) == (9, 7), "numbers need no file"
    with pytest.raises(ConfigError) as caught:
        numbers_of((1, "trian"), config)
    words = "not defined in .*; valid: 1, 3, 7, 8, train, per_sample_gradients; did you mean train"
    assert caught.match(f"--use_case trian: {words}")


@pytest.mark.parametrize("text", ["", "a: [", "use_cases: {1: {like: 4}}"])
def test_help_needs_no_sound_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "experiments.yaml"
    assert in_words(path) == ""
    path.write_text(text)
    assert in_words(path) == ""


@pytest.mark.parametrize(
    "text", ["3", "use_cases: 1", "use_cases: {x: {}, 1: 2, 2: {name: 3}, 4: {name: a, devices: b}}"]
)
def test_what_is_odd_in_the_file_is_left_out(text: str, tmp_path: Path) -> None:
    path = tmp_path / "experiments.yaml"
    path.write_text(text)
    assert in_words(path).splitlines() == ["use cases:", "", "benchmarks: "]


def test_a_declaration_that_is_half_written_has_no_words(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("USE_CASE = UseCase(")
    (tmp_path / "per_sample_gradients.py").write_text('USE_CASE = UseCase(name="x", modes={})')
    monkeypatch.setattr(overview, "DECLARATIONS", tmp_path)
    assert in_words(config).splitlines()[1:3] == ["  1  train", "  3  per_sample_gradients"]
