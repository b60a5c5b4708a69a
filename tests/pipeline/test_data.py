"""`main.py data`: what it says, what it brings, and that one failure costs nothing else."""

from pathlib import Path
from typing import Any

import pytest
from torchvision import models

from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.paths import REPOSITORY
from harness.work import declared
from harness.work.datasets import DataFiles
from pipeline.data import fetch_command, verify_command
from pipeline.doctor import examine_data
from tests.made.image_folders import put_images
from tests.made.originals import put_weights

MODEL = "mobilenet_v3_small"
NAME = ("imagenet100",)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    found = load_config(REPOSITORY / "experiments.yaml")
    benchmarks = {"text": found.benchmarks["text"], "imagenet100": found.benchmarks["text"]}
    return found.model_copy(update={"data_dir": str(tmp_path), "benchmarks": benchmarks})


def files_in(data_dir: Path) -> DataFiles:
    return DataFiles(data_dir=data_dir, benchmark="imagenet100")


@pytest.fixture
def originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of ImageNet, one image in each class; of the weights those of one model."""
    put_images(files_in(tmp_path).originals, train=1, val=1)
    put_weights(tmp_path, MODEL, models.get_model(MODEL).state_dict(), monkeypatch)
    for model in declared.benchmark("imagenet100").models:
        if model.name != MODEL and model.published:
            weights: Any = models.get_weight(model.published.weights).value
            monkeypatch.setattr(weights, "url", f"http://127.0.0.1:9/{model.name}-12345678.pth")
    return files_in(tmp_path).originals


def test_what_only_the_user_can_bring_is_no_failure_unless_it_is_asked_for(
    tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch_command(config, ()) == 0
    output = capsys.readouterr().out
    assert "text: writing 1,441 to train and 40 to test" in output
    assert "imagenet100: has to be brought by hand; python main.py data --benchmark imagenet100 says how\n" in output
    assert fetch_command(config, NAME) == 1
    assert f"ln -s /path/to/imagenet {files_in(tmp_path).originals}" in capsys.readouterr().out
    assert verify_command(config, NAME) == 1
    assert "the data set imagenet100 is not here" in capsys.readouterr().out


def test_weights_that_cannot_be_had_do_not_cost_the_data(
    tmp_path: Path, config: Config, originals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch_command(config, NAME) == 1
    output = capsys.readouterr().out
    writing = f"imagenet100: writing 100 to train and 100 to test, 0.0393 GB, to {files_in(tmp_path).folder}\n"
    written = "imagenet100: 100 images to train, 100 to test, 256 x 256 x 3; ImageNet"
    assert output.index(writing) < output.index(written)
    assert f"imagenet100: weights of {MODEL}: MobileNet_V3_Small_Weights.IMAGENET1K_V1, 67.67 % top-1" in output
    for name in ("resnet50", "vit_b_16", "efficientnet_b0"):
        path = tmp_path / "originals" / "weights" / f"{name}-12345678.pth"
        assert f"imagenet100: weights of {name}: {path} is missing, and it cannot be downloaded" in output
    assert output.endswith("imagenet100: the data is there all the same; measure it with weights: drawn\n")
    [finding] = examine_data(["imagenet100"], tmp_path)
    assert finding.verdict == "warning"
    assert finding.found == "100 + 100 images, verified; pretrained weights of 1 of 4 models"
    assert "the weights of resnet50 are not here" in finding.fix

    assert verify_command(config, ()) == 0
    output = capsys.readouterr().out
    assert output.startswith("text: is not here\nimagenet100: verifying 0.0393 GB\n")
    assert f"imagenet100: weights of {MODEL}: MobileNet_V3_Small_Weights.IMAGENET1K_V1, all verified\n" in output
    for path in (files_in(tmp_path).array("test", "images"), tmp_path / "weights" / f"{MODEL}.npz"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    assert verify_command(config, NAME) == 1
    output = capsys.readouterr().out
    assert "test.images.npy: the SHA-256 of its block 0 (of 1" in output
    assert f"{MODEL}.npz: truncated or corrupt" in output
