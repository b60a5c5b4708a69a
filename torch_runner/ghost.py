"""Norms of per-sample gradients, and their clipped sum, without the gradients (use cases 3 and 4).

One forward pass and one backward pass to the layers' outputs give each layer's input and its output's gradient. From
these come each sample's squared norm, layer by layer, in the cheapest of the forms of harness/work/ghost.py (mixed
ghost clipping: Bu et al. 2022, arXiv 2205.10683). The clipped sum is then one ordinary weight gradient of each layer,
whose samples are scaled by their clip factors (book-keeping: Bu et al. 2022, arXiv 2210.00038). What has a size of
[samples, *weight] is made for at most SLICE_BYTES at a time, in a layer whose form is `instantiated`, and dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from harness.errors import Refused
from harness.work.ghost import Form, Shape, choose, described, slices
from harness.work.graphs import Room
from harness.work.task_kinds import Inputs
from torch_runner.captured import SCALES, Problem, by_sample, capture_layers, patches_of, places_in, weight_of
from torch_runner.captured import require_known as require_known_kind
from torch_runner.graphs import of_rows
from torch_runner.models.gpt import Positions, TiedHead
from torch_runner.models.molpcba import CodeTable, Root

Tensors = dict[str, Tensor]
Function = Callable[[Inputs, Tensor], Tensors]
"""(inputs [batch, ...], targets [batch, ...]) -> tensors by name."""

SLICE_BYTES = {"cpu": 2**21, "cuda": 2**28}
"""Memory for what is made of some samples at a time: a CPU core's cache; on a GPU this only bounds the memory."""
TRACED_SLICE_BYTES = {"cpu": 2**24, "cuda": 2**28}
"""A compiled graph has every slice's operators in it."""


@dataclass(frozen=True)
class Layer:
    """One module with parameters, and how its norms are computed."""

    name: str
    module: nn.Module
    form: Form
    slice_bytes: int


def ghost(problem: Problem, output: str, clip_norm: float, *, traced: bool) -> Function:
    """`norms` or `clipped_sum`. Once for each problem: its model gets hooks.

    `traced`: for torch.compile, which takes no torch.autograd.grad.

    Raises:
        Refused: the model has a layer, or a use of one, whose norms are not known here.
    """
    limits = TRACED_SLICE_BYTES if traced else SLICE_BYTES
    layers = layers_of(problem, limits[problem.device.type])
    capture = capture_layers(problem, {layer.name: layer.module for layer in layers}, traced=traced)

    def compute(inputs: Inputs, targets: Tensor) -> Tensors:
        seen, output_gradients = capture(inputs, targets)
        places = places_in(inputs, problem.task)
        squares, biases = [], {}
        for layer in layers:
            layer_input, gradient = by_sample(layer.module, seen[layer.name], output_gradients[layer.name], places)
            squares.append(squared_norms(layer, layer_input, gradient))
            if has_bias(layer.module):
                biases[layer.name] = bias_gradients(layer.module, gradient)
                squares.append(biases[layer.name].square().sum(1))
        for embedding, head in shared(layers):
            pairs = (
                *(seen[embedding.name], output_gradients[embedding.name]),
                *(seen[head.name], output_gradients[head.name]),
            )
            squares.append(2 * product_of_shared(embedding, *pairs))
        # Rounding can make a Gram form of a sample without a gradient a little less than zero.
        norms = torch.stack(squares).sum(0).clamp(min=0).sqrt()
        if output == "norms":
            return {"norms": norms}
        factors = clip_norm / norms.clamp(min=clip_norm)
        sums: Tensors = {}
        for layer in layers:
            name = layer.name
            of_weight = weight_of(name, layer.module)
            own = places.get(getattr(layer.module, "rows", ""))
            own_factors = factors if own is None else of_rows(factors, own)
            total = weight_sum(layer.module, seen[name], output_gradients[name], own_factors)
            total = total.to(problem.params[of_weight].dtype)
            sums[of_weight] = sums[of_weight] + total if of_weight in sums else total
            if name in biases:
                sums[f"{name}.bias"] = (factors @ biases[name]).to(layer.module.bias.dtype)  # type: ignore[arg-type]
        return sums

    return compute


def choices(problem: Problem) -> list[str]:
    """For the record: the form of each layer."""
    return described([(layer.name, layer.form) for layer in layers_of(problem)])


# Layers


def layers_of(problem: Problem, slice_bytes: int = 0) -> list[Layer]:
    """All modules with parameters of their own, in the order of their use. Runs the model for one sample, for the
    shapes.

    Raises Refused for a layer that is unknown here, and for weights that are used twice: the norm of a sum of two
    gradients is not made of their norms."""
    modules = {
        name: module
        for name, module in problem.model.named_modules()
        if list(module.parameters(False)) or isinstance(module, TiedHead)
    }
    for name, module in modules.items():
        require_known(name, module)
    owners = [parameter for module in modules.values() for parameter in module.parameters(False)]
    if len({id(parameter) for parameter in owners}) < len(owners):
        raise Refused("the formulation ghost knows no weights that two layers share")
    layers: dict[str, Layer] = {}

    def note_shapes(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            if name in layers:
                raise Refused(f"the formulation ghost knows no layer that is used twice, as {name} is")
            form = form_of(module, arguments[0], output, problem.task.room)
            layers[name] = Layer(name, module, form, slice_bytes)

        return hook

    handles = [module.register_forward_hook(note_shapes(name)) for name, module in modules.items()]
    try:
        with torch.no_grad():
            problem.apply(problem.params, problem.batch(np.arange(1))[0])
    finally:
        for handle in handles:
            handle.remove()
    return list(layers.values())


def shared(layers: list[Layer]) -> list[tuple[Layer, Layer]]:
    """Each embedding that is the output's weight, too, with that output."""
    by_name = {layer.name: layer for layer in layers}
    return [(by_name[layer.module.shares], layer) for layer in layers if isinstance(layer.module, TiedHead)]


def require_known(name: str, module: nn.Module) -> None:
    """Raises Refused."""
    require_known_kind("ghost", name, module)
    if isinstance(module, nn.Embedding):
        if (module.padding_idx, module.max_norm, module.scale_grad_by_freq) == (None, None, False):
            return
        raise Refused(f"the formulation ghost knows a plain Embedding, without padding and norms, not {name}")
    if not isinstance(module, nn.Conv2d):
        return
    if module.groups != 1 or module.dilation != (1, 1) or module.padding_mode != "zeros":
        raise Refused(f"the formulation ghost knows convolutions of one group without dilation, not {name}")
    if isinstance(module.padding, str):
        raise Refused(f"the formulation ghost knows convolutions whose padding is a number, not {name}")


def form_of(module: nn.Module, layer_input: Tensor, output: Tensor, room: Room | None = None) -> Form:
    """By its input and output for one sample.

    Args:
        room: that each sample has `by_sample`, where these are packed.
    """
    if isinstance(module, (*SCALES, Root)):
        return "summed"
    kind = getattr(module, "rows", "")
    if kind and room:
        seen = module.num_embeddings if isinstance(module, CodeTable) else layer_input.shape[-1]
        return choose(Shape(1 if kind == "graphs" else getattr(room, kind), seen, output.shape[-1]))
    if isinstance(module, nn.Embedding):
        return "equal_tokens"
    if isinstance(module, Positions):
        return "rows"
    if isinstance(module, nn.Linear | TiedHead):
        positions = output[0, ..., 0].numel()
        return choose(Shape(positions, layer_input.shape[-1], output.shape[-1]))
    assert isinstance(module, nn.Conv2d)
    height, width = module.kernel_size
    shape = Shape(
        positions=output[0, 0].numel(),
        seen=module.in_channels * height * width,
        features=module.out_channels,
        window=(height, width),
        pixels=layer_input[0, 0].numel(),
        has_stride=module.stride != (1, 1),
    )
    return choose(shape)


def has_bias(module: nn.Module) -> bool:
    return getattr(module, "bias", None) is not None


# Norms


def squared_norms(layer: Layer, layer_input: Tensor, gradient: Tensor) -> Tensor:
    """[batch], of the weight's gradients, in float32 at least."""
    module = layer.module
    if layer.form == "rank_one":
        return (row_norms(layer_input.flatten(1)) * row_norms(gradient.flatten(1))).square()
    if isinstance(module, nn.Conv2d):
        of_slice = {"gram": gram_of_patches, "pixel_gram": gram_of_pixels, "instantiated": convolution_instantiated}
        return in_slices(layer, of_slice[layer.form], layer_input.to(gradient.dtype), gradient)
    by_position = gradient.unsqueeze(1).flatten(1, -2)
    if layer.form == "equal_tokens":
        return in_slices(layer, equal_tokens, layer_input.flatten(1), by_position)
    if isinstance(module, Positions):
        return row_norms(by_position.flatten(1)).square()
    if isinstance(module, SCALES):
        return row_norms((module.normalised(layer_input).view_as(by_position) * by_position).sum(1)).square()
    if isinstance(module, Root):
        return row_norms(by_position.sum(1)).square()
    seen = layer_input.to(gradient.dtype).flatten(1, -2)
    return in_slices(layer, {"gram": gram, "instantiated": instantiated}[layer.form], seen, by_position)


def product_of_shared(
    embedding: Layer, tokens: Tensor, of_embedding: Tensor, hidden: Tensor, of_logits: Tensor
) -> Tensor:
    """[batch]: the inner product of the two gradients of a table that is an embedding and the output's weight
    (harness/work/ghost.py).

    Args:
        tokens: [batch, positions].
        of_embedding: the gradient by what was looked up, [batch, positions, features].
        hidden: what the output's product takes, of the same shape.
        of_logits: [batch, positions, vocabulary].
    """
    positions, wide_of = tokens.shape[1], wide(of_logits.dtype)
    found = []
    for some in slices(len(tokens), positions**2 * of_embedding.element_size(), embedding.slice_bytes):
        pairs = wide_products(of_embedding[some], hidden[some])
        places = tokens[some].unsqueeze(1).expand(-1, positions, -1)
        of_tokens = of_logits[some].gather(2, places).to(wide_of).transpose(1, 2)
        found.append((pairs * of_tokens).flatten(1).sum(1))
    return torch.cat(found)


def in_slices(
    layer: Layer, of_slice: Callable[[Any, Tensor, Tensor], Tensor], layer_input: Tensor, gradient: Tensor
) -> Tensor:
    """[batch], from some samples at a time."""
    rows = slices(
        len(gradient),
        numbers_of_sample(layer, layer_input.shape[-1], gradient) * gradient.element_size(),
        layer.slice_bytes,
    )
    return torch.cat([of_slice(layer.module, layer_input[some], gradient[some]) for some in rows])


def numbers_of_sample(layer: Layer, seen_features: int, gradient: Tensor) -> int:
    """The largest of the tensors that its form makes of one sample.

    Args:
        seen_features: of what a dense layer sees at each position.
    """
    module = layer.module
    if not isinstance(module, nn.Conv2d):
        positions = gradient[0, ..., 0].numel()
        return seen_features * gradient.shape[-1] if layer.form == "instantiated" else positions**2
    positions = gradient[0, 0].numel()
    made = [module.weight.numel()] if layer.form == "instantiated" else [positions**2]
    if layer.form != "pixel_gram":
        made.append(module.weight[0].numel() * positions)
    return max(made)


def gram(_module: nn.Module, seen: Tensor, gradient: Tensor) -> Tensor:
    """[samples] from [samples, positions, numbers]."""
    return inner_products(gram_matrices(seen), gram_matrices(gradient))


def instantiated(_module: nn.Module, seen: Tensor, gradient: Tensor) -> Tensor:
    """[samples] from [samples, positions, numbers]."""
    return row_norms(torch.bmm(seen.transpose(1, 2), gradient).flatten(1)).square()


def equal_tokens(_module: nn.Module, tokens: Tensor, gradient: Tensor) -> Tensor:
    """[samples] from [samples, positions] and [samples, positions, features]: the rows of equal tokens add up."""
    are_equal = tokens.unsqueeze(2) == tokens.unsqueeze(1)
    return inner_products(gram_matrices(gradient), are_equal)


def gram_of_patches(module: nn.Conv2d, images: Tensor, gradient: Tensor) -> Tensor:
    """[samples] from [samples, channels, height, width]."""
    return gram(module, patches_of(module, images).transpose(1, 2), gradient.flatten(2).transpose(1, 2))


def convolution_instantiated(module: nn.Conv2d, images: Tensor, gradient: Tensor) -> Tensor:
    """[samples] from [samples, channels, height, width]."""
    product = torch.bmm(patches_of(module, images), gradient.flatten(2).transpose(1, 2))
    return row_norms(product.flatten(1)).square()


def gram_of_pixels(module: nn.Conv2d, images: Tensor, gradient: Tensor) -> Tensor:
    """[samples] from [samples, channels, height, width].

    The inner product of two patches is the sum over the window of those of their pixels: the Gram matrix of the pixels
    [height, width, height, width], shifted along both heights, or both widths, at once.
    """
    size, (above, beside) = images.shape[2:], padding_of(module)
    grams = gram_matrices(images.flatten(2).transpose(1, 2)).unflatten(2, size).unflatten(1, size)
    height, width = gradient.shape[2:]
    grams = sum_of_shifted(grams, 1, module.kernel_size[0], above, height)
    grams = sum_of_shifted(grams, 2, module.kernel_size[1], beside, width)
    return inner_products(grams.flatten(3, 4).flatten(1, 2), gram_matrices(gradient.flatten(2).transpose(1, 2)))


def sum_of_shifted(grams: Tensor, axis: int, window: int, padding: int, positions: int) -> Tensor:
    """`grams` with `positions` instead of pixels along this axis and the one behind the next. Pixels outside the image
    are zero."""
    shape, pixels = list(grams.shape), grams.shape[axis]
    shape[axis] = shape[axis + 2] = positions
    total = grams.new_zeros(shape)
    for offset in range(window):
        first = max(0, padding - offset)
        length = min(positions, pixels + padding - offset) - first
        if length > 0:
            to, shifted = first, first + offset - padding
            total.narrow(axis, to, length).narrow(axis + 2, to, length).add_(
                grams.narrow(axis, shifted, length).narrow(axis + 2, shifted, length)
            )
    return total


def gram_matrices(rows: Tensor) -> Tensor:
    """[samples, positions, positions] from [samples, positions, numbers], in float32 at least."""
    return wide_products(rows, rows)


def wide_products(rows: Tensor, others: Tensor) -> Tensor:
    """[samples, positions, positions], of rows [samples, positions, numbers] with each other, in float32 at least: what
    is made of them cancels, so bfloat16 would not do.

    Source: docs.pytorch.org/docs/stable/generated/torch.bmm.html, for `out_dtype`, which is CUDA's only.
    """
    columns = others.transpose(1, 2)
    if rows.dtype != torch.bfloat16:
        return torch.bmm(rows, columns)
    if rows.is_cuda:
        return torch.bmm(rows, columns, out_dtype=torch.float32)
    return torch.bmm(rows.float(), columns.float())


def inner_products(grams: Tensor, others: Tensor) -> Tensor:
    """[samples]. Overwrites the first."""
    return grams.mul_(others).flatten(1).sum(1)


def row_norms(rows: Tensor) -> Tensor:
    """[samples] from [samples, numbers], in float32 at least."""
    return torch.linalg.vector_norm(rows, dim=1, dtype=wide(rows.dtype))


def padding_of(module: nn.Conv2d) -> tuple[int, int]:
    assert not isinstance(module.padding, str)  # require_known
    above, beside = module.padding
    return above, beside


# Sums


def bias_gradients(module: nn.Module, gradient: Tensor) -> Tensor:
    """[batch, features], in float32 at least."""
    if isinstance(module, nn.Conv2d):
        return gradient.flatten(2).sum(2, dtype=wide(gradient.dtype))
    if gradient.dim() == 2:
        return gradient.to(wide(gradient.dtype))
    return gradient.flatten(1, -2).sum(1, dtype=wide(gradient.dtype))


def weight_sum(module: nn.Module, layer_input: Tensor, gradient: Tensor, factors: Tensor) -> Tensor:
    """The sum over the samples of their weight gradients times their factors: one ordinary weight gradient."""
    if isinstance(module, nn.Embedding):
        scaled = times(factors, gradient if isinstance(module, CodeTable) else gradient.to(module.weight.dtype))
        if isinstance(module, CodeTable):  # the row of each of the codes that were added up
            scaled = scaled.unsqueeze(1).expand(*layer_input.shape, -1)
        return torch.ops.aten.embedding_dense_backward(scaled, layer_input, module.num_embeddings, -1, False)
    if isinstance(module, Positions):
        rows = times(factors, gradient).sum(0)
        return F.pad(rows, (0, 0, 0, len(module.weight) - len(rows)))
    if isinstance(module, SCALES):
        return (times(factors, gradient) * module.normalised(layer_input)).flatten(0, -2).sum(0)
    if isinstance(module, Root):
        return times(factors, gradient).sum(0, keepdim=True)
    layer_input = layer_input.to(gradient.dtype)
    if layer_input.numel() < gradient.numel():
        layer_input = times(factors, layer_input)
    else:
        gradient = times(factors, gradient)
    if isinstance(module, nn.Conv2d):
        return conv2d_weight(layer_input, module.weight.shape, gradient, module.stride, module.padding, module.dilation)
    return gradient.flatten(0, -2).t() @ layer_input.flatten(0, -2)


def times(factors: Tensor, values: Tensor) -> Tensor:
    """Each sample, or row, by its own factor, in the values' precision."""
    return values * factors.to(values.dtype).view(-1, *(1 for _ in range(values.dim() - 1)))


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
