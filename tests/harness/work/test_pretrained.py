"""Pretrained weights from files as torchvision publishes them: every value, the rows of the classes, every damage."""

import hashlib
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import models

from harness.errors import DataError, Refused
from harness.results.record import WeightsIdentity
from harness.work import pretrained
from harness.work.benchmarks.imagenet100 import BENCHMARK
from harness.work.datasets import DataFiles, fetch
from harness.work.imagenet_classes import CMC
from harness.work.pretrained import WeightsFiles, fetch_weights, pretrained_weights, verify_weights
from tests.made.image_folders import flip, put_images
from tests.made.originals import put_weights

MODEL = "mobilenet_v3_small"


def files_in(data_dir: Path) -> WeightsFiles:
    return WeightsFiles(data_dir=data_dir, benchmark="imagenet100", model=MODEL)


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    """A state as torchvision saves it: random, also the running statistics."""
    torch.manual_seed(3)
    state = models.get_model(MODEL).state_dict()
    return {name: torch.rand_like(value) if value.is_floating_point() else value for name, value in state.items()}


@pytest.fixture
def data_dir(tmp_path: Path, published: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights are fetched."""
    put_weights(tmp_path, MODEL, published, monkeypatch)
    fetch_weights("imagenet100", MODEL, tmp_path)
    return tmp_path


# What is declared


@pytest.mark.parametrize("model", [model.name for model in BENCHMARK.models])
def test_what_is_declared_is_what_torchvision_has(model: str) -> None:
    declared = BENCHMARK.model(model).published
    weights = models.get_weight(declared.weights)
    assert weights in models.get_model_weights(model)
    assert re.search(r"-[0-9a-f]{8}\.pth$", weights.url)  # by which a file is checked
    with torch.device("meta"):
        classifier = models.get_model(model).get_submodule(declared.classifier)
    assert isinstance(classifier, torch.nn.Linear) and classifier.out_features == 1000


# From the published file to both frameworks


def test_every_value_arrives_and_of_the_classifier_the_rows_of_the_classes(
    data_dir: Path, published: dict[str, Any]
) -> None:
    """Whoever changes what it was given changes nothing."""
    weight_of = pretrained_weights("imagenet100", MODEL, data_dir)
    model = models.get_model(MODEL, num_classes=100)
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            with pytest.raises(DataError, match=f"{MODEL} has no {name} there"):
                weight_of(name, tuple(value.shape))
            continue
        expected = published[name].numpy()
        if name.startswith("classifier.3"):
            expected = np.stack([expected[index] for index in CMC.indices])
        for _ in range(2):
            found = weight_of(name, tuple(value.shape))
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, expected)
            found[:] = -1
    with pytest.raises(DataError, match=r"classifier.3.bias has the shape \(100,\), mobilenet_v3_small needs \(10,\)"):
        weight_of("classifier.3.bias", (10,))


def test_the_manifest_says_what_they_are_and_what_is_whole_is_not_fetched_again(
    data_dir: Path, published: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_in(data_dir)
    (original,) = files.originals.iterdir()
    digest = hashlib.sha256()
    for name in sorted(name for name in published if not name.endswith("num_batches_tracked")):
        digest.update(f"{name} <f4 {tuple(published[name].shape)}\n".encode() + published[name].numpy().tobytes())
    assert json.loads(files.manifest.read_text()) == {
        "version": 1,
        "weights": "MobileNet_V3_Small_Weights.IMAGENET1K_V1",
        "file": original.name,
        "sha256": digest.hexdigest(),
        "top1_of_1000_percent": 67.668,
    }
    made = files.arrays.stat().st_mtime_ns
    original.unlink()
    monkeypatch.setattr(pretrained, "require_torchvision", lambda: pytest.fail("it is needed to fetch only"))
    assert fetch_weights("imagenet100", MODEL, data_dir).top1_of_1000_percent == 67.668
    assert files.arrays.stat().st_mtime_ns == made


def test_names_of_older_files_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of ViT-B/16 has `mlp.linear_1` where the model has `mlp.0`. Shown on a small one."""
    sizes = {"image_size": 32, "patch_size": 16, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
    state = models.VisionTransformer(**sizes, num_classes=1000).state_dict()
    monkeypatch.setattr(models, "get_model", lambda _name: models.VisionTransformer(**sizes, num_classes=1000))
    older = {re.sub(r"mlp\.([03])", lambda m: f"mlp.linear_{int(m[1]) // 3 + 1}", name): v for name, v in state.items()}
    assert older.keys() != state.keys()
    put_weights(tmp_path, "vit_b_16", older, monkeypatch)
    fetch_weights("imagenet100", "vit_b_16", tmp_path)
    weight_of = pretrained_weights("imagenet100", "vit_b_16", tmp_path)
    name = "encoder.layers.encoder_layer_0.mlp.3.weight"
    np.testing.assert_array_equal(weight_of(name, (8, 12)), state[name].numpy())
    with pytest.raises(Refused, match=r"are for image_size 224: encoder.pos_embedding has the shape \(1, 5, 8\)"):
        weight_of("encoder.pos_embedding", (1, 17, 8))


# What a job verifies


def test_a_job_verifies_them_and_knows_which_they_are(data_dir: Path) -> None:
    of_data = DataFiles(data_dir=data_dir, benchmark="imagenet100")
    put_images(of_data.originals, train=1, val=1)
    fetch(BENCHMARK.data, data_dir)
    assert verify_weights("imagenet100", MODEL, data_dir) == WeightsIdentity(
        source="torchvision's MobileNet_V3_Small_Weights.IMAGENET1K_V1",
        sha256=json.loads(files_in(data_dir).manifest.read_text())["sha256"],
        top1_of_1000_percent=67.668,
    )
    of_data.manifest.write_text(of_data.manifest.read_text().replace(CMC.sha256, "5e" * 32))
    with pytest.raises(DataError, match="has other classes than those of CMC's list.*Measure with weights: drawn"):
        verify_weights("imagenet100", MODEL, data_dir)


def change_manifest(files: WeightsFiles, old: str, new: str) -> None:
    files.manifest.write_text(files.manifest.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda files: flip(files.arrays, 50_000), "truncated or corrupt"),
        (lambda files: change_manifest(files, '"sha256": "', '"sha256": "5e'), "its content has the SHA-256"),
        (lambda files: files.arrays.unlink(), "not there"),
        (lambda files: files.manifest.unlink(), f"the weights of {MODEL} are not here"),
        (lambda files: change_manifest(files, '"version": 1', '"version": 0'), "not a manifest: version: Input should"),
    ],
)
def test_damaged_weights_are_found_the_way_out_named_and_fetched_again(
    damage: Callable[[WeightsFiles], object], complaint: str, data_dir: Path
) -> None:
    damage(files_in(data_dir))
    with pytest.raises(DataError) as caught:
        verify_weights("imagenet100", MODEL, data_dir)
    assert str(caught.value).startswith(str(data_dir / "weights" / MODEL))
    assert complaint in str(caught.value) and "main.py data --benchmark imagenet100" in str(caught.value)
    fetch_weights("imagenet100", MODEL, data_dir)
    pretrained.verified_content(files_in(data_dir))


def test_what_cannot_be_had_is_named(
    tmp_path: Path, published: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No network, a file that holds something else or is not what its name says, and a model that has none."""
    original = put_weights(tmp_path, MODEL, published, monkeypatch)
    original.unlink()
    with pytest.raises(DataError) as caught:
        fetch_weights("imagenet100", MODEL, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{original} is missing, and it cannot be downloaded: http://127.0.0.1:9/{original.name}")
    assert f"copy it to {tmp_path / 'originals' / 'weights'}/" in message and "weights: drawn" in message
    assert not (tmp_path / "weights").exists()
    for state in ({"features.0.0.weight": torch.ones(1)}, SimpleNamespace(no="weights")):
        original = put_weights(tmp_path, MODEL, state, monkeypatch)
        with pytest.raises(DataError, match=re.escape(f"{original}: cannot be read (")):
            fetch_weights("imagenet100", MODEL, tmp_path)
    flip(original)
    with pytest.raises(DataError, match=r"its SHA-256 begins with [0-9a-f]{8} and not, as its name says, with"):
        fetch_weights("imagenet100", MODEL, tmp_path)
    for function in (fetch_weights, verify_weights, pretrained_weights):
        with pytest.raises(DataError, match="cifar10: there are no pretrained weights of resnet18"):
            function("cifar10", "resnet18", tmp_path)


def test_download_of_weights_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float | None] = []

    def hangs(*_: Any, **__: Any) -> None:
        limits.append(socket.getdefaulttimeout())
        raise TimeoutError("timed out")

    monkeypatch.setattr(models.WeightsEnum, "get_state_dict", hangs)
    with pytest.raises(DataError, match="timed out"):
        fetch_weights("imagenet100", MODEL, tmp_path)
    assert limits == [30.0]
