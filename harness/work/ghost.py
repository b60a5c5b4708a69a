"""How the norm of a layer's per-sample weight gradient is computed without keeping that gradient. Numbers only.

A sample's weight gradient is A^T D, from what the layer sees at each position, A [positions, seen], and the gradient of
the loss by its output, D [positions, features]. Its squared norm is also the sum of (A A^T) * (D D^T), which needs no
gradient (ghost norms: Goodfellow 2015, arXiv 1510.01799; Li et al. 2022, arXiv 2110.05679). Which is cheaper depends on
the layer (Bu et al. 2022, arXiv 2205.10683). The forms:

    rank_one        |a|^2 |d|^2: a dense layer with one position
    gram            both Gram matrices, [positions, positions]; of a convolution, A is its patches
    pixel_gram      the same for a convolution of stride 1, without patches: their Gram matrix is a sum of shifted Gram
                    matrices of single pixels (as for convolutional kernels: Arora et al. 2019, arXiv 1904.11955, 4.1)
    instantiated    A^T D for some samples at a time, whose norm is taken before they are dropped
    equal_tokens    of an embedding, the sum of D D^T where the tokens of two positions are the same
    rows            |D|^2: a table with a row for each position
    summed          of a weight for each feature, as LayerNorm has it: the sum over the positions of A * D, element by
                    element

Where a table is the embedding and the output's weight, its gradient is the sum of two, E and H, and its squared norm
|E|^2 + |H|^2 + 2 <E, H>. With D_E of the embedding, and A_H and D_H of the output, <E, H> is the sum over two positions
s and t of (D_E A_H^T)[s, t] D_H[t, token s] (as of Ding et al. 2024, arXiv 2405.18194).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Form = Literal["rank_one", "gram", "pixel_gram", "instantiated", "equal_tokens", "rows", "summed"]

FLOPS_PER_NUMBER = 32
"""What it costs to write a number and to read it again, in floating-point operations of a matrix product. One core of a
server runs some 60 operations in the nanosecond or two that this takes in its cache; a GPU from the main memory 100 and
more. The choices for both networks are the same from 8 to 64."""


class Cost(NamedTuple):
    """For one sample."""

    flops: int
    """Of matrix products."""
    numbers: int
    """That are made and dropped; this is the memory that it takes, too."""

    @property
    def total(self) -> int:
        return self.flops + FLOPS_PER_NUMBER * self.numbers


class Shape(NamedTuple):
    """Of a dense layer, or of a convolution."""

    positions: int
    """Of the output."""
    seen: int
    """Numbers of the input at each of them: its features, or those of a patch."""
    features: int
    """Of the output."""
    window: tuple[int, int] | None = None
    """Of a convolution: its kernel's height and width."""
    pixels: int = 0
    """Of a convolution's input."""
    has_stride: bool = False


def costs(shape: Shape) -> dict[Form, Cost]:
    """Of all forms that there are for it."""
    positions, seen, features, window, pixels, has_stride = shape
    if positions == 1 and window is None:
        return {"rank_one": Cost(2 * (seen + features), 0)}
    patches = positions * seen if window else 0
    both_grams = 2 * positions**2
    found: dict[Form, Cost] = {
        "gram": Cost(both_grams * (seen + features), both_grams + patches),
        "instantiated": Cost(2 * positions * seen * features, seen * features + patches),
    }
    if window and not has_stride:
        channels, shifted = seen // (window[0] * window[1]), sum(window) * positions**2
        found["pixel_gram"] = Cost(
            2 * pixels**2 * channels + both_grams // 2 * 2 * features, pixels**2 + positions**2 + shifted
        )
    return found


def choose(shape: Shape) -> Form:
    """The cheapest."""
    found = costs(shape)
    return min(found, key=lambda form: found[form].total)


def slices(batch_size: int, bytes_of_sample: int, limit: int) -> list[slice]:
    """The batch in parts that take at most `limit` bytes each, or one sample."""
    size = max(1, limit // max(1, bytes_of_sample))
    return [slice(first, first + size) for first in range(0, batch_size, size)]


def described(forms: Sequence[tuple[str, Form]]) -> list[str]:
    """For the record: ['conv1: instantiated', ...]."""
    return [f"{name}: {form}" for name, form in forms]
