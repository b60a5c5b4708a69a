"""A training step of ours against the same model and step as one writes them by hand (plain_torch.py, plain_jax.py).

    python -m bench.plain_models torch|jax gpt_nano|graphnet [ROUNDS]

fp32, sample data; AdamW with clipping for the GPT, SGD with momentum for the graphs. Both begin with the same weights
and see the same batches; their first losses are compared. The graphs of the plain step are packed beforehand, where
ours packs them in every step. They take turns in one process; a ratio is the median over rounds of our time over the
plain one's: below 1, ours is faster.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bench.measurement import make_measurement
from bench.turns import rounds_in_turn, with_interval
from harness.measure.clock import time_block
from harness.measure.process import builder, make_session
from harness.plan import Framework
from harness.results.statistics import median
from harness.work.benchmarks import enwik8, molpcba
from harness.work.use_cases.train import Settings

Step = Callable[[], Any]
"""Starts one training step and returns what has to be waited for, the loss last."""


class Work(NamedTuple):
    benchmark: str
    batch_size: int
    settings: dict[str, Any]


WORKS = {
    "gpt_nano": Work(
        "enwik8",
        16,
        {"optimizer": "adamw", "learning_rate": 1e-3, "beta2": 0.99, "weight_decay": 0.1, "max_gradient_norm": 1.0},
    ),
    "graphnet": Work("molpcba", 32, {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.0}),
}
MODES: dict[Framework, tuple[str, ...]] = {"torch": ("step.eager", "step.compiled"), "jax": ("step.jit",)}
CALLS = 3
"""Back to back for one time."""
ROUNDS = 21
MAX_TIME_S = 90.0
"""Of one comparison."""
COMPARED_LOSSES = 3
AGREEMENT = 1e-3
"""Relative, of each loss."""
GOAL = 1.05


def torch_step(program: Any, model_name: str, *, compiled: bool) -> Step:
    import torch
    from torch import nn

    from bench import plain_torch

    settings, data, order = program.settings, program.session.dataset, torch.from_numpy(program.order).long()
    if model_name == "gpt_nano":
        model: nn.Module = plain_torch.Gpt(enwik8.SIZES["gpt_nano"])
        tokens = torch.from_numpy(data.train["tokens"].copy())
        inputs_of: Callable[[int], tuple[Any, ...]] = lambda step: (tokens[order[step]].long(),)  # noqa: E731
    else:
        sizes = molpcba.Sizes()
        model = plain_torch.GraphNet(sizes.width, sizes.layers)
        batches = [packed_batch(program, step) for step in range(len(order))]
        inputs_of = lambda step: batches[step]  # noqa: E731
    model.load_state_dict(program.model.state_dict())
    if settings.optimizer == "adamw":
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        betas = (settings.beta1, settings.beta2)
        optimizer: Any = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)
    else:
        optimizer = torch.optim.SGD(
            model.parameters(), lr=settings.learning_rate, momentum=settings.momentum, fused=True
        )
    loss_of = torch.compile(model, fullgraph=True, dynamic=False) if compiled else model
    done = 0

    def step() -> Any:
        nonlocal done
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*inputs_of(done % len(order)))
        loss.backward()
        if settings.max_gradient_norm:
            nn.utils.clip_grad_norm_(model.parameters(), settings.max_gradient_norm)
        optimizer.step()
        done += 1
        return loss.detach()

    return step


def packed_batch(program: Any, step: int) -> tuple[Any, ...]:
    """Graphs and labels of one step."""
    batch = program.own_batch(step, program.device)
    task = program.problem.task
    return task.inputs(batch), task.targets(batch)


def jax_step(program: Any, model_name: str, *, compiled: bool) -> Step:
    assert compiled
    import jax
    import optax
    from jax import numpy as jnp

    from bench import plain_jax

    settings: Settings = program.settings
    order = [jnp.asarray(rows) for rows in program.order]

    def draw(name: str, shape: tuple[int, ...]) -> Any:
        return jnp.asarray(program.starting_weight(name, shape))

    if model_name == "gpt_nano":
        size = enwik8.SIZES["gpt_nano"]
        params = plain_jax.gpt_params(size, draw)
        tokens = jnp.asarray(program.session.dataset.train["tokens"])

        def loss_of(params: Any, tokens: jax.Array, rows: jax.Array) -> jax.Array:
            return plain_jax.gpt_loss(params, tokens[rows].astype(jnp.int32), size.heads)

        batches: list[tuple[Any, ...]] = [(tokens, rows) for rows in order]
    else:
        sizes = molpcba.Sizes()
        params, loss_of = plain_jax.graphnet_params(sizes.width, sizes.layers, draw), plain_jax.graphnet_loss
        task = program.problem.task
        given = [
            {name: jnp.asarray(array) for name, array in program.own_batches(step)[0].items()}
            for step in range(len(order))
        ]
        batches = [(task.inputs(batch), task.targets(batch)) for batch in given]
    if settings.optimizer == "adamw":
        optimizer = optax.chain(
            optax.clip_by_global_norm(settings.max_gradient_norm),
            optax.adamw(
                settings.learning_rate,
                b2=settings.beta2,
                weight_decay=settings.weight_decay,
                mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim >= 2, tree),
            ),
        )
    else:
        optimizer = optax.sgd(settings.learning_rate, momentum=settings.momentum)

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, opt_state: Any, *batch: Any) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    state, done = (params, optimizer.init(params)), 0

    def step() -> Any:
        nonlocal state, done
        *now, loss = update(*state, *batches[done % len(batches)])
        state, done = tuple(now), done + 1
        return state, loss

    return step


STEPS: dict[Framework, Callable[..., Step]] = {"torch": torch_step, "jax": jax_step}


def first_losses(program: Any, plain: Step) -> np.ndarray:
    """Of both, [steps, 2]."""
    ours = program.losses([program.kept(program.step()) for _ in range(COMPARED_LOSSES)])
    theirs = [plain() for _ in range(COMPARED_LOSSES)]
    return np.stack([ours, [float(one[-1] if isinstance(one, tuple) else one) for one in theirs]], axis=1)


def main(framework: Framework, model: str, rounds: int = ROUNDS) -> int:
    import importlib

    device = importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up("fp32")
    work = WORKS[model]
    for mode in MODES[framework]:
        measurement = make_measurement(
            framework,
            "train",
            benchmark=work.benchmark,
            model=model,
            batch_size=work.batch_size,
            execution_mode=mode,
            settings={"epoch_steps": 16, **work.settings},
        )
        program: Any = builder(measurement)(make_session(measurement, device))
        plain = STEPS[framework](program, model, compiled=mode != "step.eager")
        losses = first_losses(program, plain)
        if (difference := np.abs(losses[:, 0] / losses[:, 1] - 1).max()) > AGREEMENT:
            print(f"{framework}, {model}, {mode}: the losses differ by {difference:.1e}: {losses}", file=sys.stderr)
            return 1
        ours, theirs = (partial(time_block, step, device.wait, CALLS) for step in (program.step, plain))
        found = rounds_in_turn(ours, theirs, rounds=rounds, max_time_s=MAX_TIME_S)
        plain_ms = median([theirs_s for _, theirs_s in found]) / 2 / CALLS * 1e3
        print(
            f"plain models, {framework}, {model}, batch {work.batch_size}: {mode} takes "
            f"{with_interval([ours_s / theirs_s for ours_s, theirs_s in found])} of the plain step's time "
            f"({plain_ms:.1f} ms; goal at most {GOAL})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))  # type: ignore[arg-type]
