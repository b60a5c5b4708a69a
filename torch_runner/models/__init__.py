"""The models of each benchmark, a file for each: `make_model(name, sizes)`; weights are overwritten later."""

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.errors import Refused
from harness.measure.program import Session
from harness.work.applies import require_layers
from torch_runner.device import Device, compute_dtype
from torch_runner.graphs import use_scatter_sums
from torch_runner.models.gpt import CausalSelfAttention
from torch_runner.task import Task

ATTENTION = (nn.MultiheadAttention, CausalSelfAttention)
KERNELS = {
    "flash_attention": SDPBackend.FLASH_ATTENTION,
    "cudnn_attention": SDPBackend.CUDNN_ATTENTION,
    "efficient_attention": SDPBackend.EFFICIENT_ATTENTION,
}
"""By the formulation that asks for it. In others PyTorch chooses, by device, dtype and shape, or there is none."""
PROBED_POSITIONS = 64


def make_model(session: Session[Any], dtype: torch.dtype) -> nn.Module:
    """The variant's model, on the CPU. `dtype`: see torch_runner/device.py::model_dtype."""
    measurement, benchmark = session.measurement, session.benchmark
    module = importlib.import_module(f"torch_runner.models.{benchmark.name}")
    sizes = benchmark.sizes.model_validate(measurement.sizes)
    with session.named_model(f"torch_runner/models/{benchmark.name}.py"):
        model: nn.Module = module.make_model(measurement.variant.model, sizes)
    session.require_declared(any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in model.modules()))
    return model.to(dtype)


def for_vmap(model: nn.Module) -> None:
    """From now on its layers are those that vmap makes one call of. Of others it makes one for each sample or model, in
    a loop: of a fused kernel of attention, and of a sum over rows by `index_add`."""
    write_out_attention(model)
    use_scatter_sums(model)


def write_out_attention(model: nn.Module) -> None:
    """From now on its attention is products and a softmax, with the scores in memory. SDPBackend.MATH would not do: in
    half precision its products are in float32, and under autocast its gradient by torch.func fails
    (docs/known-issues.md)."""
    modules: Any = model.modules()
    for layer in modules:
        if isinstance(layer, ATTENTION):
            layer.written_out = True
        if isinstance(layer, nn.MultiheadAttention):
            layer.register_forward_pre_hook(asked_for_weights, with_kwargs=True)


def asked_for_weights(_layer: nn.Module, arguments: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The softmax, which PyTorch's layer returns where it has written attention out (torch/nn/functional.py)."""
    return arguments, options | {"need_weights": True, "average_attn_weights": False}


def with_attention(formulation: str) -> AbstractContextManager[Any]:
    """For a forward pass: the kernel of attention that the formulation names, or PyTorch's own choice."""
    return sdpa_kernel(KERNELS[formulation]) if formulation in KERNELS else nullcontext()


def details_of(model: nn.Module, task: Task, session: Session[Device]) -> dict[str, Any]:
    """For the record: of the task, and what computes the attention and the sums over rows, where there are any. Raises
    Refused, as `attention_of`."""
    dtype = compute_dtype(session.measurement.variant.precision)
    attention = attention_of(model, session.mode.formulation, dtype, session.device.device)
    return {**task.details, **attention, **aggregation_of(model)}


def attention_of(model: nn.Module, formulation: str, dtype: torch.dtype, device: torch.device) -> dict[str, str]:
    """Which kernel computes the attention; empty where the model has none.

    By what PyTorch says that it chooses for queries of this model, forward and backward.

    Args:
        dtype: in which the model computes.

    Raises:
        Refused: the formulation names a kernel that this device, dtype or release does not have, or there is nothing
            to compute with it.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, ATTENTION)]
    if formulation in (*KERNELS, "plain_attention"):
        require_layers(formulation, len(layers))
    if not layers:
        return {}
    if getattr(layers[0], "written_out", False):
        return {"attention": "written out"}
    layer, causal = layers[0], isinstance(layers[0], CausalSelfAttention)
    heads = layer.heads if isinstance(layer, CausalSelfAttention) else layer.num_heads
    width = layer.c_proj.in_features if isinstance(layer, CausalSelfAttention) else layer.embed_dim
    queries = torch.zeros(1, heads, PROBED_POSITIONS, width // heads, dtype=dtype, device=device, requires_grad=True)
    try:
        with with_attention(formulation):
            F.scaled_dot_product_attention(queries, queries, queries, is_causal=causal).sum().backward()
            chosen = torch._fused_sdp_choice(queries, queries, queries, is_causal=causal)
    except RuntimeError as error:
        if formulation not in KERNELS or isinstance(error, torch.OutOfMemoryError):
            raise
        words = str(error).strip().splitlines()[0]
        raise Refused(f"{formulation} of {str(dtype).removeprefix('torch.')} on {device.type}: {words}") from error
    return {"attention": SDPBackend(chosen).name.lower()}


def aggregation_of(model: nn.Module) -> dict[str, str]:
    """What sums over sorted rows, such as a node's edges; empty where the model has no such sums."""
    modules: Any = model.modules()
    layers = [module.sums for module in modules if hasattr(module, "sums")]
    return {"aggregation": layers[0].of_sorted} if layers else {}
