"""GPT and GraphNet in JAX as one writes them by hand: functions of a dict of arrays."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax import numpy as jnp

from harness.work.benchmarks.molpcba import ATOM_CODES, BOND_CODES, TASKS
from harness.work.gpt import GptSize

Params = Any
Draw = Callable[[str, tuple[int, ...]], Any]
"""(neutral name, PyTorch's shape) -> the initial values."""


def gpt_params(size: GptSize, draw: Draw) -> Params:
    width = size.width
    kernels = {
        "attn.c_attn": (width, 3 * width),
        "attn.c_proj": (width, width),
        "mlp.c_fc": (width, 4 * width),
        "mlp.c_proj": (4 * width, width),
    }

    def of_layer(index: int) -> Params:
        drawn = {name: draw(f"h.{index}.{name}.weight", shape[::-1]).T for name, shape in kernels.items()}
        return drawn | {"ln_1": jnp.ones(width), "ln_2": jnp.ones(width)}

    return {
        "wte": draw("wte.weight", (size.vocabulary, width)),
        "wpe": draw("wpe.weight", (size.positions, width)),
        "layers": [of_layer(index) for index in range(size.layers)],
        "ln_f": jnp.ones(width),
    }


def gpt_loss(params: Params, window: jax.Array, heads: int) -> jax.Array:
    """The mean over windows [batch, positions + 1]."""
    inputs, targets = window[:, :-1], window[:, 1:]
    x = params["wte"][inputs] + params["wpe"][: inputs.shape[1]]
    for layer in params["layers"]:
        projected = norm(x, layer["ln_1"]) @ layer["attn.c_attn"]
        q, k, v = (part.reshape(*x.shape[:2], heads, -1) for part in jnp.split(projected, 3, -1))
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.reshape(x.shape) @ layer["attn.c_proj"]
        x = x + jax.nn.gelu(norm(x, layer["ln_2"]) @ layer["mlp.c_fc"]) @ layer["mlp.c_proj"]
    logits = norm(x, params["ln_f"]) @ params["wte"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def norm(x: jax.Array, scale: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + epsilon) * scale


def graphnet_params(width: int, layers: int, draw: Draw) -> Params:
    def dense(name: str, features: int, outputs: int) -> Params:
        return {"kernel": draw(f"{name}.weight", (outputs, features)).T, "bias": jnp.zeros(outputs)}

    def of_step(index: int) -> Params:
        of_graph = width if index else TASKS
        features = {"edge": 3 * width + of_graph, "node": 3 * width + of_graph, "graph": 2 * width + of_graph}
        return {
            name: dense(f"steps.{index}.{name}.dense", count, width)
            | {"scale": jnp.ones(width), "shift": jnp.zeros(width)}
            for name, count in features.items()
        }

    return {
        "atom": draw("atom.weight", (sum(ATOM_CODES), width)),
        "bond": draw("bond.weight", (sum(BOND_CODES), width)),
        "steps": [of_step(index) for index in range(layers)],
        "output": dense("output", width, TASKS),
    }


def graphnet_loss(params: Params, batch: Any, labels: jax.Array) -> jax.Array:
    """The mean over a packed batch; labels [graphs, TASKS] are 1, 0 or -1."""
    nodes, edges = params["atom"][batch.atoms].sum(1), params["bond"][batch.bonds].sum(1)
    graphs = jnp.zeros((len(labels) + 1, TASKS))
    for step in params["steps"]:
        ends = [nodes[batch.senders], nodes[batch.receivers]]
        edges = mlp(step["edge"], [edges, *ends, graphs[batch.graph_of_edge]])
        sent, received = (jax.ops.segment_sum(edges, index, len(nodes)) for index in (batch.senders, batch.receivers))
        nodes = mlp(step["node"], [nodes, sent, received, graphs[batch.graph_of_node]])
        of_nodes = jax.ops.segment_sum(nodes, batch.graph_of_node, len(graphs))
        of_edges = jax.ops.segment_sum(edges, batch.graph_of_edge, len(graphs))
        graphs = mlp(step["graph"], [of_nodes, of_edges, graphs])
    logits = graphs[:-1] @ params["output"]["kernel"] + params["output"]["bias"]
    losses = optax.sigmoid_binary_cross_entropy(logits, jnp.maximum(labels, 0))
    return jnp.where(labels >= 0, losses, 0).mean()


def mlp(layer: Params, parts: list[jax.Array]) -> jax.Array:
    hidden = jnp.concatenate(parts, 1) @ layer["kernel"] + layer["bias"]
    return jax.nn.relu(norm(hidden, layer["scale"], 1e-6) + layer["shift"])
