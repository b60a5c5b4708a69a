"""What a model is made of, and what its layers give for one batch, by a plain forward pass (harness/results/
model_trace.py)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp

from harness.measure.program import Session
from harness.results.model_trace import Call, ModelTrace, kept
from harness.work.use_cases.inference import Requests
from jax_runner.device import model_dtypes
from jax_runner.models import make_model
from jax_runner.task import make_task
from jax_runner.weights import arrays_of as state_of
from jax_runner.weights import flattened_of, load_weights, to_neutral


def traced_model(session: Session[Any]) -> ModelTrace:
    """Operator by operator, in fp32, with the weights that the gate draws; BatchNorm as in training unless the use case
    has no gradients."""
    model = make_model(session, model_dtypes("fp32"))
    load_weights(model, session.weights_of("drawn", session.model.initial_weight))
    neutral = to_neutral(state_of(model, nnx.Param), flattened_of(model), in_place=True)
    shapes = {name: one.shape for name, one in neutral.items()}
    calls: list[Call] = []
    called: Any = nnx.view(model, use_running_average=not session.use_case.has_gradients, raise_if_not_found=False)
    names = {id(module): ".".join(map(str, path)) for path, module in nnx.iter_modules(called)}
    error = None
    try:
        inputs = inputs_of(session)
        with noted_calls(names, calls, {type(module) for _, module in nnx.iter_modules(called)}):
            called(inputs)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}".splitlines()[0]
    return ModelTrace(shapes, tuple(calls), error)


@contextmanager
def noted_calls(names: dict[int, str], calls: list[Call], kinds: set[type]) -> Iterator[None]:
    """Inside, each call of a module whose id is among `names` is noted. Python looks `__call__` up in the class, so it
    is replaced there, in the class that defines it."""
    definers: set[Any] = {next((base for base in kind.__mro__ if "__call__" in vars(base)), None) for kind in kinds} - {
        None
    }
    before = {definer: vars(definer)["__call__"] for definer in definers}
    active: set[int] = set()

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, *inputs: Any, **options: Any) -> Any:
            if id(self) not in names or id(self) in active:
                return call(self, *inputs, **options)
            active.add(id(self))
            try:
                outputs = call(self, *inputs, **options)
            finally:
                active.discard(id(self))
            calls.append(Call(names[id(self)], arrays_of(inputs), arrays_of(outputs)))
            return outputs

        return noted

    for definer, call in before.items():
        definer.__call__ = noting(call)
    try:
        yield
    finally:
        for definer, call in before.items():
            definer.__call__ = call


def inputs_of(session: Session[Any]) -> Any:
    requests = Requests.of(session.measurement, session.benchmark, session.dataset)
    task = make_task(session, jnp.float32, requests.given())
    batch = {name: jnp.asarray(array) for name, array in (requests.timed(1)[0] | dict(session.dataset.shared)).items()}
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, task.inputs(batch)
    )


def arrays_of(tree: Any) -> tuple[Any, ...]:
    """The floating-point ones; none of what a transformation inside the model is at work on."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    leaves = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return tuple(kept(np.asarray(leaf, np.float32)) for leaf in leaves if not isinstance(leaf, jax.core.Tracer))
