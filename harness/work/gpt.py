"""The sizes of a GPT, and what follows from them: its counts and its initial weights.

The architecture is GPT-2's (Radford et al. 2019) as nanoGPT has it (karpathy/nanoGPT, model.py), without biases, which
is nanoGPT's own choice for training: the gradient of a bias of the keys is zero but for rounding, and an optimizer that
divides gradients by their size would train on that rounding. The output's weight is the embedding's.
"""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.work.declared import Layer, Model

WEIGHT_STD = 0.02
"""Of all matrices; of those whose output is added to the residual stream, over the root of how many there are."""
INTO_RESIDUAL = ".c_proj.weight"
"""How their names end: two in each layer."""
TABLES = ("wte.weight", "wpe.weight")
EPSILON = 1e-5
"""Added to the variance by LayerNorm."""


LAYERS = frozenset({Layer.TABLE, Layer.SCALE, Layer.DENSE_WITHOUT_BIAS, Layer.ATTENTION, Layer.TIED_HEAD})


@dataclass(frozen=True, kw_only=True)
class GptSize:
    layers: int
    width: int
    """Features of a token."""
    heads: int
    positions: int
    """Tokens that it predicts in each sample."""
    vocabulary: int

    def model(self, name: str) -> Model:
        """As a benchmark declares it."""
        return Model(
            name=name,
            words=f"a GPT of {self.parameter_count / 1e6:.3g} M parameters",
            layers=LAYERS,
            parameter_count=self.parameter_count,
            multiply_adds=self.multiply_adds,
            initial_weight=self.initial_weight,
            gate_weight=self.gate_weight,
        )

    @property
    def parameter_count(self) -> int:
        """Of a layer: 3 w^2 into attention, w^2 out of it, 4 w^2 into and out of the wide layer, two LayerNorms."""
        of_layer = 12 * self.width**2 + 2 * self.width
        return (self.vocabulary + self.positions) * self.width + self.layers * of_layer + self.width

    @property
    def multiply_adds(self) -> int:
        """Of all tokens of a sample. Attention counts all pairs of positions, though half of them are masked, as in
        Chowdhery et al. 2022, "PaLM", appendix B."""
        of_token = self.layers * 12 * self.width**2 + self.vocabulary * self.width
        of_attention = self.layers * 2 * self.positions**2 * self.width
        return self.positions * of_token + of_attention

    def initial_weight(self, seed: int, name: str, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        """N(0, WEIGHT_STD), less for those that end in INTO_RESIDUAL; ones for LayerNorm."""
        is_added = name.endswith(INTO_RESIDUAL)
        return _drawn(seed, name, shape, WEIGHT_STD / math.sqrt(2 * self.layers) if is_added else WEIGHT_STD)

    def gate_weight(self, seed: int, name: str, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        """As large in the layers as leaves what goes in and what comes out of one size: N(0, 1 / features in). With
        initial weights what GELU and softmax are given is so small that another GELU, or scores that are not scaled,
        would make no difference. The tables stay as they are."""
        return _drawn(seed, name, shape, WEIGHT_STD if name in TABLES else 1 / math.sqrt(shape[-1]))


def _drawn(seed: int, name: str, shape: tuple[int, ...], std: float) -> NDArray[np.floating[Any]]:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return (std * generator.standard_normal(shape)).astype(np.float32)
