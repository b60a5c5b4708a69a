"""What a model's layers see in one forward and one backward pass: their inputs, and the gradients by their outputs.

From these two a layer's weight gradient can be had sample by sample, or its norm without the gradient, or a weighted
sum. The formulations outer_product, grouped and ghost are made of it.

harness/work/graphs.py says what is made of packed graphs, and what `by_sample`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict
from jax import numpy as jnp

from harness.errors import Refused
from harness.work.applies import unknown_layer
from harness.work.graphs import GraphBatch, Places
from harness.work.task_kinds import Inputs
from jax_runner.graphs import places_of, side_by_side
from jax_runner.models.gpt import Embedding, LayerNorm, Positions, TiedHead
from jax_runner.models.molpcba import CodeTable, GraphLinear, GraphNorm, Root
from jax_runner.task import Task
from jax_runner.weights import Params, Path

Product = Callable[[jax.Array, jax.Array], jax.Array]
"""(layer input, weight) -> the layer's output before its bias: a convolution with its stride and padding, a matrix
product, rows of a table, ... Linear in the weight."""


class Problem(Protocol):
    """The model and its loss, as use case 3 has them."""

    model: nnx.Module
    graphdef: Any
    params: Params
    task: Task
    on_gpu: bool

    def batch(self, rows: np.ndarray) -> tuple[jax.Array, jax.Array]: ...


class Captured(NamedTuple):
    """Of one layer, with the whole batch."""

    module: Any
    """One of KNOWN."""
    product: Product
    layer_input: jax.Array
    """As the product takes it, in the layer's dtype: [batch, height, width, channels] or [batch, ..., features]. Of a
    table of tokens or positions: tokens [batch, ...]. Of LayerNorm: normalised. Of packed graphs: [rows, features]."""
    output_gradient: jax.Array
    """Of the losses' sum by the layer's output, in the layer's dtype: [batch, height, width, channels] or
    [batch, ..., features]. Row i belongs to sample i's own loss, as the samples of a batch do not depend on each
    other."""
    weight: Any = None
    """Shape and dtype of the weight, as the product takes it."""
    places: Places | None = None
    """Of the samples' rows, where these are packed."""


Capture = Callable[[Params, jax.Array, jax.Array], dict[Path, Captured]]
"""(params, inputs [batch, ...], targets [batch, ...]) -> by the layer's path; its parameters are `(*path, "kernel")`
and `(*path, "bias")` in `flatten_dict(params)`, or a weight of another name. To be called under jit."""


DENSE = (nnx.Linear, TiedHead)
TABLES = (nnx.Embed, Embedding)
"""Of tokens."""
SCALES = (LayerNorm, GraphNorm, Root)
"""A weight for each feature."""
KNOWN = (nnx.Conv, *DENSE, GraphLinear, *TABLES, CodeTable, Positions, *SCALES)
HOOKS = {nnx.Conv: "conv_general_dilated", nnx.Linear: "dot_general", GraphLinear: "dot_general"}
"""The attributes of Flax's layers that hold their products; those of our own are called `product`."""


def capture_layers(problem: Problem, formulation: str) -> Capture:
    """One forward pass, and one backward pass to the layers' outputs only: the weights' own gradients, which are in an
    ordinary backward pass, are never computed.

    The gradient by an output is the gradient by a zero that is added to it, through the hooks that layers have for
    their product.

    Args:
        formulation: for the words of a refusal.

    Raises:
        Refused: the model has parameters in other layers.
    """
    with_parameters = {path[:-1] for path in flatten_dict(problem.params)}
    layers: dict[Path, Any] = {
        path: module
        for path, module in nnx.iter_modules(problem.model)
        if path in with_parameters or isinstance(module, TiedHead)
    }
    for path, module in layers.items():
        if not isinstance(module, KNOWN):
            raise unknown_layer(formulation, KNOWN, type(module), ".".join(map(str, path)))

    def forward(params: Params, inputs: jax.Array, seen: "Seen") -> jax.Array:
        model = nnx.merge(problem.graphdef, params)
        for path, module in nnx.iter_modules(model):
            if path in layers and isinstance(module, nnx.Embed):
                embed: Any = module
                embed.__class__ = HookedEmbed
                embed.look_up = seen.hook(path, rows_of)
            elif path in layers:
                hook = HOOKS.get(type(module), "product")
                setattr(module, hook, seen.hook(path, getattr(module, hook)))
        return model(inputs)

    def capture(params: Params, inputs: jax.Array, targets: jax.Array) -> dict[Path, Captured]:
        def shapes_of_outputs() -> dict[Path, jax.Array]:
            seen = Seen(None)
            forward(params, inputs, seen)
            return seen.outputs

        shapes = jax.eval_shape(shapes_of_outputs)
        zeros = {path: jnp.zeros(shape.shape, shape.dtype) for path, shape in shapes.items()}
        products: dict[Path, Product] = {}
        weights: dict[Path, jax.ShapeDtypeStruct] = {}

        def loss(zeros: dict[Path, jax.Array]) -> tuple[jax.Array, dict[Path, jax.Array]]:
            seen = Seen(zeros)
            outputs = forward(params, inputs, seen)
            products.update(seen.products)
            weights.update(seen.weights)
            return problem.task.losses(outputs, targets).sum(), seen.inputs

        output_gradients, layer_inputs = jax.grad(loss, has_aux=True)(zeros)
        places = places_in(inputs, problem.task)

        def captured(path: Path, module: Any) -> Captured:
            kind = getattr(module, "rows", "")
            # Behind the graphs there may be one more, that of the padding.
            of_samples = slice(len(targets) if kind == "graphs" else None)
            seen, gradient = layer_inputs[path][of_samples], output_gradients[path][of_samples]
            return Captured(module, products[path], seen, gradient, weights[path], places.get(kind))

        return {path: captured(path, module) for path, module in layers.items()}

    return capture


def places_in(inputs: Inputs, task: Task) -> Mapping[str, Places]:
    """Of the rows of packed graphs; of other inputs there are none."""
    return places_of(inputs, task.room) if isinstance(inputs, GraphBatch) and task.room else {}


def by_sample(layer: Captured) -> Captured:
    """With a first axis of samples, also of packed graphs. A table of codes is then a dense layer, which sees how often
    each code is there."""
    if layer.places is None:
        return layer
    seen, gradient = (side_by_side(rows, layer.places) for rows in (layer.layer_input, layer.output_gradient))
    if isinstance(layer.module, CodeTable):
        seen = jax.nn.one_hot(seen, layer.weight.shape[0], dtype=gradient.dtype).sum(-2)
    return layer._replace(layer_input=seen, output_gradient=gradient, places=None)


def uses_of(layers: Mapping[Path, Captured], path: Path) -> list[Captured]:
    """Of the weight of the layer at `path`: the layer itself, and those that share it."""
    sharing = (layer for layer in layers.values() if isinstance(layer.module, TiedHead))
    return [layers[path], *(layer for layer in sharing if layer.module.shares == path)]


class Seen:
    """What the hooks of one forward pass have seen, by layer."""

    def __init__(self, zeros: dict[Path, jax.Array] | None) -> None:
        """`zeros`: what is added to each layer's output; None for nothing."""
        self.zeros = zeros
        self.inputs: dict[Path, jax.Array] = {}
        self.outputs: dict[Path, jax.Array] = {}
        self.products: dict[Path, Product] = {}
        self.weights: dict[Path, jax.ShapeDtypeStruct] = {}

    def hook(self, path: Path, of_layer: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """`of_layer`: what the layer calls for its product, with its strides, padding and precision."""

        def hooked(layer_input: jax.Array, kernel: jax.Array, *arguments: Any, **keywords: Any) -> jax.Array:
            if path in self.inputs:
                raise Refused(f"per-sample gradients are not made of layers that are used twice, as {path} is")
            product: Product = lambda layer_input, kernel: of_layer(layer_input, kernel, *arguments, **keywords)  # noqa: E731
            self.products[path] = product
            self.weights[path] = jax.ShapeDtypeStruct(kernel.shape, kernel.dtype)
            self.inputs[path], self.outputs[path] = layer_input, product(layer_input, kernel)
            return self.outputs[path] if self.zeros is None else self.outputs[path] + self.zeros[path]

        return hooked


class HookedEmbed(nnx.Embed):
    """nnx.Embed has no hook of its own."""

    look_up: Product

    def __call__(self, inputs: jax.Array, *_: Any, **__: Any) -> jax.Array:
        (table,) = self.promote_dtype((self.embedding[...],), dtype=self.dtype, inexact=False)
        return self.look_up(inputs, table)

    def attend(self, *_: Any, **__: Any) -> jax.Array:
        raise Refused("per-sample gradients are not made of an Embed that is the output's weight too")


def rows_of(tokens: jax.Array, table: jax.Array) -> jax.Array:
    return jnp.take(table, tokens, axis=0)


def kernel_gradient_of_sum(layer: Captured, output_gradient: jax.Array) -> jax.Array:
    """[*kernel]: the ordinary weight gradient, of all samples together, which a GPU has in its libraries.

    Args:
        output_gradient: as the layer's, or its rows scaled by one factor for each sample.
    """
    (gradient,) = jax.linear_transpose(lambda kernel: layer.product(layer.layer_input, kernel), layer.weight)(
        output_gradient
    )
    return gradient


def kernel_gradients_by_outer_product(layer: Captured) -> jax.Array:
    """[batch, *kernel], of a layer `by_sample`: one batched product, summed over positions. Of a convolution: its
    patches (im2col) times the output's gradient. Of what is no product of matrices: its transpose, sample by sample."""
    if isinstance(layer.module, (*DENSE, CodeTable)):
        subscripts = "b...o,b...i->boi" if isinstance(layer.module, TiedHead) else "b...o,b...i->bio"
        precision = getattr(layer.module, "precision", None)
        return jnp.einsum(subscripts, layer.output_gradient, layer.layer_input, precision=precision)
    if not isinstance(layer.module, nnx.Conv):

        def of_one(layer_input: jax.Array, output_gradient: jax.Array) -> jax.Array:
            return kernel_gradient_of_sum(layer._replace(layer_input=layer_input[None]), output_gradient[None])

        return jax.vmap(of_one)(layer.layer_input, layer.output_gradient)
    precision = layer.module.precision
    return jnp.einsum("bhwklc,bhwo->bklco", patches_of(layer), layer.output_gradient, precision=precision)


def kernel_gradients_by_group(layer: Captured) -> jax.Array:
    """[batch, *kernel]: the transpose of a convolution that has a kernel for each sample.

    vmap of a convolution's weight gradient gives a convolution with `feature_group_count` = batch, which XLA takes for
    a forward convolution whose window is the whole output; the transpose of a vmapped convolution has
    `batch_group_count` = batch, which XLA maps to cuDNN's grouped weight gradient. A dense layer's is a batched product
    in any case.
    """
    if not isinstance(layer.module, nnx.Conv):
        return kernel_gradients_by_outer_product(layer)
    kernel, batch = layer.weight, len(layer.layer_input)

    def over_samples(kernels: jax.Array) -> jax.Array:
        of_one = lambda image, kernel: layer.product(image[None], kernel)[0]  # noqa: E731
        return jax.vmap(of_one)(layer.layer_input, kernels)

    kernels = jax.ShapeDtypeStruct((batch, *kernel.shape), kernel.dtype)
    (gradients,) = jax.linear_transpose(over_samples, kernels)(layer.output_gradient)
    return gradients


def bias_gradients(layer: Captured) -> jax.Array:
    """[batch, features]"""
    return layer.output_gradient.sum(range(1, layer.output_gradient.ndim - 1))


def patches_of(layer: Captured) -> jax.Array:
    """Of a convolution, what its kernel sees at each position: [batch, height, width, kernel height, kernel width,
    channels]."""
    module = layer.module
    assert isinstance(module, nnx.Conv)
    kernel_height, kernel_width = module.kernel_size
    stride, pad = int(module.strides), int(module.padding)  # type: ignore[arg-type]
    padded = jnp.pad(layer.layer_input, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    height, width = layer.output_gradient.shape[1:3]

    def seen_by(row: int, column: int) -> jax.Array:
        rows = slice(row, row + stride * (height - 1) + 1, stride)
        columns = slice(column, column + stride * (width - 1) + 1, stride)
        return padded[:, rows, columns]

    return jnp.stack(
        [jnp.stack([seen_by(row, column) for column in range(kernel_width)], axis=3) for row in range(kernel_height)],
        axis=3,
    )
