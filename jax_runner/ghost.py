"""Norms of per-sample gradients, and their clipped sum, without the gradients (use cases 3 and 4).

One forward pass and one backward pass to the layers' outputs give each layer's input and its output's gradient
(captured.py). From these come each sample's squared norm, layer by layer, in the cheapest of the forms of
harness/work/ghost.py (mixed ghost clipping: Bu et al. 2022, arXiv 2205.10683). The clipped sum is then one ordinary
weight gradient of each layer, whose samples are scaled by their clip factors (book-keeping: Bu et al. 2022, arXiv
2210.00038). What has a size of [samples, *weight] is made for at most SLICE_BYTES at a time, in a layer whose form is
`instantiated`, and dropped.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import numpy as jnp

from harness.errors import Refused
from harness.work.applies import unknown_layer
from harness.work.ghost import Form, Shape, choose, described
from harness.work.use_cases.per_sample_gradients import Settings
from jax_runner.captured import (
    DENSE,
    KNOWN,
    SCALES,
    TABLES,
    Captured,
    Problem,
    bias_gradients,
    by_sample,
    capture_layers,
    kernel_gradient_of_sum,
    uses_of,
)
from jax_runner.graphs import of_rows
from jax_runner.layers import patches_of
from jax_runner.models.gpt import Positions
from jax_runner.models.molpcba import CodeTable
from jax_runner.weights import Params

Arrays = Any
"""A pytree: Params of gradients, or {"norms": [batch]}."""
Function = Callable[[Params, jax.Array, jax.Array], Arrays]
"""(params, inputs [batch, ...], targets [batch, ...]) -> arrays."""
OfSample = Callable[[Any, jax.Array, jax.Array], jax.Array]
"""(layer, its input for one sample, its output's gradient) -> the squared norm of its weight's gradient, a scalar."""

SLICE_BYTES = {"cpu": 2**21, "gpu": 2**28}
"""Memory for what is made of some samples at a time: a CPU core's cache; on a GPU this only bounds the memory."""
MOST_SLICES = 64
"""As many are written out on a GPU, as PyTorch's are, so that a step can be one CUDA graph: of a loop XLA leaves the
condition outside (jaxlib 0.12.0). More are a loop, which is compiled in less time."""


def ghost(problem: Problem, output: str, settings: Settings) -> Function:
    """`norms` or `clipped_sum`; still to be jitted.

    Raises:
        Refused: the model has a layer, or a use of one, whose norms are not known here.
    """
    require_known_layers(problem.model)
    capture, on_gpu = capture_layers(problem, "ghost"), problem.on_gpu

    def compute(params: Params, inputs: jax.Array, targets: jax.Array) -> Arrays:
        layers = capture(params, inputs, targets)
        samples = {path: by_sample(layer) for path, layer in layers.items()}
        flat = flatten_dict(params)
        biases = {path: in_float32(bias_gradients(samples[path[:-1]])) for path in flat if path[-1] == "bias"}
        squares = [squared_norms(layer, form_of(layer), on_gpu=on_gpu) for layer in samples.values()]
        squares += [jnp.sum(bias**2, axis=1) for bias in biases.values()]
        squares += [
            2 * product_of_shared(*uses, on_gpu=on_gpu) for path in samples if len(uses := uses_of(samples, path)) == 2
        ]
        # Rounding can make a Gram form of a sample without a gradient a little less than zero.
        norms = jnp.sqrt(jnp.maximum(sum(squares), 0))
        if output == "norms":
            return {"norms": norms}
        factors = settings.clip_norm / jnp.maximum(norms, settings.clip_norm)
        sums = {
            path: factors @ biases[path] if path in biases else sum_of_uses(uses_of(layers, path[:-1]), factors)
            for path in flat
        }
        return unflatten_dict({path: sums[path].astype(parameter.dtype) for path, parameter in flat.items()})

    return compute


def choices(problem: Problem) -> list[str]:
    """For the record: the form of each layer."""
    require_known_layers(problem.model)
    capture = capture_layers(problem, "ghost")
    found: list[tuple[str, Form]] = []

    def note(inputs: jax.Array, targets: jax.Array) -> None:
        for path, layer in capture(problem.params, inputs, targets).items():
            found.append((".".join(map(str, path)), form_of(by_sample(layer))))

    jax.eval_shape(note, *problem.batch(np.arange(1)))
    return described(found)


# Layers


def require_known_layers(model: nnx.Module) -> None:
    """Raises Refused for a layer that is unknown here, and for weights that two layers share: the norm of a sum of two
    gradients is not made of their norms."""
    weights: list[int] = []
    for path, module in nnx.iter_modules(model):
        own = [value for value in vars(module).values() if isinstance(value, nnx.Param)]
        weights += [id(value) for value in own]
        if own:
            require_known(".".join(map(str, path)) or "model", module)
    if len(set(weights)) < len(weights):
        raise Refused("the formulation ghost knows no weights that two layers share")


def require_known(name: str, module: nnx.Module) -> None:
    """Raises Refused."""
    if type(module) not in KNOWN:
        raise unknown_layer("ghost", KNOWN, type(module), name)
    if not isinstance(module, nnx.Conv):
        return
    is_plain = module.feature_group_count == 1 and module.mask is None
    if not is_plain or pair(module.kernel_dilation) != (1, 1) or pair(module.input_dilation) != (1, 1):
        raise Refused(f"the formulation ghost knows convolutions of one group without dilation, not {name}")
    if len(module.kernel_size) != 2 or pair(module.strides) is None or pair(module.padding) is None:
        raise Refused(f"the formulation ghost knows convolutions over two axes, padded by numbers, not {name}")


def pair(value: Any) -> tuple[int, int] | None:
    """Of a convolution's strides, padding or dilation, by height and width; None where it is something else."""
    if value is None or isinstance(value, int):
        return (1, 1) if value is None else (value, value)
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(one, int) for one in value):
        return value[0], value[1]
    return None


def known_pair(value: Any) -> tuple[int, int]:
    found = pair(value)
    assert found is not None  # require_known
    return found


def form_of(layer: Captured) -> Form:
    """By its shapes."""
    module, (_, *of_output, features) = layer.module, layer.output_gradient.shape
    if isinstance(module, TABLES):
        return "equal_tokens"
    if isinstance(module, Positions):
        return "rows"
    if isinstance(module, SCALES):
        return "summed"
    positions = int(np.prod(of_output))
    if isinstance(module, (*DENSE, CodeTable)):
        return choose(Shape(positions, layer.layer_input.shape[-1], features))
    height, width = module.kernel_size
    _, *pixels, channels = layer.layer_input.shape
    shape = Shape(
        positions=positions,
        seen=channels * height * width,
        features=features,
        window=(height, width),
        pixels=int(np.prod(pixels)),
        has_stride=pair(module.strides) != (1, 1),
    )
    return choose(shape)


# Norms


def squared_norms(layer: Captured, form: Form, *, on_gpu: bool) -> jax.Array:
    """[batch], of the weight's gradients, in float32 at least."""
    module = layer.module
    layer_input, gradient = layer.layer_input, layer.output_gradient
    if not on_gpu:
        # Without this, jaxlib 0.10.2 gave wrong numbers in float32 for gram_of_pixels, in the last layer of CIFAR-10's
        # network with a batch of 64 (8 samples were right).
        layer_input, gradient = jax.lax.optimization_barrier((layer_input, gradient))
    if form == "rank_one":
        return squares_of(layer_input) * squares_of(gradient)
    if isinstance(module, nnx.Conv):
        of_convolution = {
            "gram": gram_of_patches,
            "pixel_gram": gram_of_pixels,
            "instantiated": convolution_instantiated,
        }
        of_sample: OfSample = of_convolution[form]
    else:
        of_sample = OF_POSITIONS[form]
        own_axes = () if jnp.issubdtype(layer_input.dtype, jnp.integer) else layer_input.shape[-1:]
        layer_input = layer_input.reshape(len(layer_input), -1, *own_axes)
        gradient = gradient.reshape(len(gradient), -1, gradient.shape[-1])

    def of_one(sample: tuple[jax.Array, jax.Array]) -> jax.Array:
        return of_sample(module, *sample)

    bytes_of_sample = numbers_of_sample(layer, form) * gradient.dtype.itemsize
    return in_slices(of_one, (layer_input, gradient), bytes_of_sample, on_gpu=on_gpu)


def in_slices(of_one: Callable[[Any], jax.Array], arrays: Any, bytes_of_sample: int, *, on_gpu: bool) -> jax.Array:
    """[batch], from some samples at a time.

    Args:
        of_one: from the arrays of one sample, a scalar.
    """
    limit = SLICE_BYTES["gpu" if on_gpu else "cpu"]
    size, samples = max(1, limit // bytes_of_sample), len(jax.tree.leaves(arrays)[0])
    if size >= samples:
        return jax.vmap(of_one)(arrays)
    if on_gpu and samples <= MOST_SLICES * size:
        slices = (itemgetter(slice(first, first + size)) for first in range(0, samples, size))
        return jnp.concatenate([jax.vmap(of_one)(jax.tree.map(some, arrays)) for some in slices])
    return jax.lax.map(of_one, arrays, batch_size=size)


def product_of_shared(embedding: Captured, head: Captured, *, on_gpu: bool) -> jax.Array:
    """[batch]: the inner product of the two gradients of a table that is an embedding and the output's weight
    (harness/work/ghost.py)."""

    def of_one(sample: tuple[jax.Array, ...]) -> jax.Array:
        tokens, of_embedding, hidden, of_logits = sample
        pairs = product(head.module, of_embedding, hidden.T)
        return jnp.sum(pairs * of_logits[:, tokens].T)

    arrays = (embedding.layer_input, embedding.output_gradient, head.layer_input, head.output_gradient)
    return in_slices(of_one, arrays, arrays[0].shape[1] ** 2 * arrays[1].dtype.itemsize, on_gpu=on_gpu)


def numbers_of_sample(layer: Captured, form: Form) -> int:
    """The largest of the arrays that the form makes of one sample."""
    module, (_, *of_output, features) = layer.module, layer.output_gradient.shape
    positions = int(np.prod(of_output))
    if form in ("equal_tokens", "rows", "summed"):
        return positions**2 if form == "equal_tokens" else positions * features
    seen = layer.layer_input.shape[-1]
    if isinstance(module, nnx.Conv):
        seen = int(np.prod(module.kernel[...].shape[:-1]))
    made = [seen * features] if form == "instantiated" else [positions**2]
    if isinstance(module, nnx.Conv) and form != "pixel_gram":
        made.append(seen * positions)
    return max(made)


def gram(module: Any, seen: jax.Array, gradient: jax.Array) -> jax.Array:
    """From [positions, numbers]."""
    return jnp.sum(product(module, seen, seen.T) * product(module, gradient, gradient.T))


def instantiated(module: Any, seen: jax.Array, gradient: jax.Array) -> jax.Array:
    """From [positions, numbers]."""
    return jnp.sum(product(module, gradient.T, seen) ** 2)


def equal_tokens(module: Any, tokens: jax.Array, gradient: jax.Array) -> jax.Array:
    """From [positions] and [positions, features]: the rows of equal tokens add up."""
    are_equal = tokens[:, None] == tokens[None, :]
    return jnp.sum(jnp.where(are_equal, product(module, gradient, gradient.T), 0))


def rows(_module: Any, _tokens: jax.Array, gradient: jax.Array) -> jax.Array:
    """From [positions, features]: no two positions have the same row."""
    return jnp.sum(in_float32(gradient) ** 2)


def summed(_module: Any, normalised: jax.Array, gradient: jax.Array) -> jax.Array:
    """From [positions, features]."""
    return jnp.sum(jnp.sum(in_float32(normalised) * in_float32(gradient), axis=0) ** 2)


OF_POSITIONS: dict[Form, OfSample] = {
    "gram": gram,
    "instantiated": instantiated,
    "equal_tokens": equal_tokens,
    "rows": rows,
    "summed": summed,
}
"""Of all layers but convolutions."""


def gram_of_patches(module: nnx.Conv, image: jax.Array, gradient: jax.Array) -> jax.Array:
    """From [height, width, channels]."""
    return gram(module, patches_in_rows(module, image), in_rows(gradient))


def convolution_instantiated(module: nnx.Conv, image: jax.Array, gradient: jax.Array) -> jax.Array:
    """From [height, width, channels]."""
    return instantiated(module, patches_in_rows(module, image), in_rows(gradient))


def gram_of_pixels(module: nnx.Conv, image: jax.Array, gradient: jax.Array) -> jax.Array:
    """From [height, width, channels].

    The inner product of two patches is the sum over the window of those of their pixels: the Gram matrix of the pixels
    [height, width, height, width], shifted along both heights, or both widths, at once.
    """
    (height, width, _), rows = image.shape, in_rows(image)
    grams = product(module, rows, rows.T).reshape(height, width, height, width)
    for axis in (0, 1):
        window, padding = module.kernel_size[axis], known_pair(module.padding)[axis]
        grams = sum_of_shifted(grams, axis, window, padding, gradient.shape[axis])
    of_gradient = product(module, in_rows(gradient), in_rows(gradient).T)
    return jnp.sum(grams.reshape(of_gradient.shape) * of_gradient)


def sum_of_shifted(grams: jax.Array, axis: int, window: int, padding: int, positions: int) -> jax.Array:
    """`grams` with `positions` instead of pixels along this axis and the one behind the next. Pixels outside the image
    are zero."""
    both = (axis, axis + 2)
    padded = jnp.pad(grams, [(padding, padding) if at in both else (0, 0) for at in range(4)])

    def shifted(offset: int) -> jax.Array:
        return padded[tuple(slice(offset, offset + positions) if at in both else slice(None) for at in range(4))]

    return sum((shifted(offset) for offset in range(1, window)), shifted(0))


def product(module: Any, left: jax.Array, right: jax.Array) -> jax.Array:
    """In the layer's precision, added up and kept in float32 at least: products of Gram matrices cancel each other, so
    bfloat16 would not do."""
    precision = getattr(module, "precision", None)
    return jnp.matmul(left, right, precision=precision, preferred_element_type=wide(left.dtype))


def squares_of(rows: jax.Array) -> jax.Array:
    """[batch] from [batch, ...]."""
    return jnp.sum(in_float32(rows) ** 2, axis=range(1, rows.ndim))


def patches_in_rows(module: nnx.Conv, image: jax.Array) -> jax.Array:
    """[positions, window * channels] from [height, width, channels]."""
    padding = [(side, side) for side in known_pair(module.padding)]
    return in_rows(patches_of(image, module.kernel_size, known_pair(module.strides), padding))


def in_rows(image: jax.Array) -> jax.Array:
    """[positions, channels] from [height, width, channels]."""
    return image.reshape(-1, image.shape[-1])


# Sums


def sum_of_uses(uses: Sequence[Captured], factors: jax.Array) -> jax.Array:
    """Of all layers that share a weight, in float32 at least."""
    sums = [in_float32(weight_sum(layer, factors)) for layer in uses]
    return sum(sums[1:], sums[0])


def weight_sum(layer: Captured, factors: jax.Array) -> jax.Array:
    """The sum over the samples of their weight gradients times their factors: one ordinary weight gradient."""
    layer_input, gradient = layer.layer_input, layer.output_gradient
    if layer.places is not None:
        factors = of_rows(factors, layer.places)
    if isinstance(layer.module, (nnx.Conv, *DENSE)) and layer_input.size < gradient.size:
        return kernel_gradient_of_sum(layer._replace(layer_input=times(factors, layer_input)), gradient)
    return kernel_gradient_of_sum(layer, times(factors, gradient))


def times(factors: jax.Array, values: jax.Array) -> jax.Array:
    """Each sample, or row, by its own factor, in the values' precision."""
    return values * factors.astype(values.dtype).reshape(-1, *(1 for _ in values.shape[1:]))


def wide(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def in_float32(values: jax.Array) -> jax.Array:
    """At least."""
    return values.astype(wide(values.dtype))
