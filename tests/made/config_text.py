"""A small experiments.yaml for tests, a change to it, and what is read from it."""

import sys
from pathlib import Path

from harness.experiments.load import load_config
from harness.experiments.model import Config

MINIMAL = """\
project: trial
cluster:
  time_limit_minutes: 30
  frameworks:
    jax: {python: /opt/jax/bin/python}
    torch: {python: /opt/torch/bin/python}
gpus:
  any: {}
  a100: {per_node: 4}
matrix:
  gpus: [any]
  benchmarks: [mnist]
  use_cases: [1]
benchmarks:
  mnist: {models: [cnn]}
  cifar10: {models: [cnn, resnet18]}
runs: {jax: [jit], torch: [eager, compiled]}
use_cases:
  1:
    name: train
    batch_sizes: [64]
    precisions: [fp32]
    formulations: {jax: [step], torch: [step]}
    settings: {epochs: 2, learning_rate: 1e-3, momentum: 0.9, weight_decay: 0, target_metric: 0.5}
  3:
    name: per_sample_gradients
    batch_sizes: [16, 32]
    precisions: [fp32, bf16]
    formulations: {jax: [vmap], torch: [vmap: [eager], loop]}
    options: {output: [norms, full]}
    settings: {chunk_size: 8, clip_norm: 1.0}
    exclude:
      - {formulation: loop, batch_size: 32}
"""

TRAIN = """name: train, precisions: [fp32], formulations: {jax: [step], torch: [step]},
    settings: {epochs: 2, learning_rate: 1e-3, momentum: 0.9, weight_decay: 0, target_metric: 0.5}"""
"""Of another use case in MINIMAL that trains, within the brackets of a mapping."""

BEHAVING = """\
project: trial
cluster: {frameworks: {jax: {python: PYTHON}, torch: {python: PYTHON}}, time_limit_minutes: 30, cpus_per_task: 1}
pairing: together
gpus: {any: {}}
matrix: {gpus: [any], benchmarks: [mnist], use_cases: [1]}
benchmarks:
  mnist: {models: [cnn]}
runs: {jax: [eager], torch: [eager]}
use_cases:
  1:
    name: behave
    devices: 1
    nodes: 1
    batch_sizes: [8]
    precisions: [fp32]
    formulations: {jax: [slow], torch: [slow]}
    settings: {gate: nowhere, pid: nowhere}
measurement:
  {replicates: 4, warmup_s: 0.01, block_min_s: 0.1, min_blocks: 3, max_blocks: 6, max_time_s: 1.0, latency_calls: 3,
    latency_max_time_s: 1.0, idle_s: 0, explain: false}
quick: {}
wandb: {mode: disabled, project: trial}
""".replace("PYTHON", sys.executable)
"""Of the fake framework (tests/made/fake_framework), in the full protocol, which takes seconds. What a Python that is
named has is not asked, such as builds for CUDA."""

PRETRAINED = (
    MINIMAL.replace(
        "  cifar10: {models",
        "  imagenet100: {models: [vit_b_16], settings: {inference: {weights: pretrained}}}\n  cifar10: {models",
    )
    + """\
  5:
    name: inference
    batch_sizes: [1]
    precisions: [fp32]
    formulations: {jax: [forward], torch: [forward: [eager]]}
    options: {batch_norm: [folded], inputs: [on_device]}
    settings: {weights: drawn}
"""
)
"""With inference on ImageNet-100, by pretrained weights."""


def changed(old: str, new: str, text: str = MINIMAL) -> str:
    """The text with one piece replaced; the piece must be there, and once."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in it"
    return text.replace(old, new)


def config_of(text: str, folder: Path) -> Config:
    path = folder / "experiments.yaml"
    path.write_text(text)
    return load_config(path)
