"""What goes with what: why a use case, a formulation or a run makes no sense for a model, or cannot do it.

The only place that decides. Plans, the check of experiments.yaml, flags, the job and the tests ask
here, and the answer follows from what is declared. What only a machine shows, such as a GPU that lacks a precision, is
refused in the job. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from harness.errors import Refused
from harness.plan import Precision
from harness.work.declared import CONVOLUTIONS, Benchmark, Layer, Mode, Model, UseCase

LESS_COMMON = CONVOLUTIONS - {Layer.CONVOLUTION}
"""Not named where any convolution would do."""


def why_not(
    use_case: UseCase,
    benchmark: Benchmark,
    model: Model,
    mode: Mode,
    precision: Precision,
    options: Mapping[str, Any],
    devices: int,
) -> str | None:
    """A sentence; None where it makes sense and can be done.

    Args:
        options: a value for each option of the use case.
        devices: over all nodes.
    """
    return (
        why_not_model(use_case, benchmark, model)
        or why_not_precision(use_case, precision)
        or use_case.why_not_options(benchmark, model, options, devices)
        or _why_not_layers(mode, model)
        or _why_not_precision_of(mode, precision)
        or why_not_besides_layers(use_case, model, mode, options, devices)
    )


def why_not_besides_layers(
    use_case: UseCase, model: Model, mode: Mode, options: Mapping[str, Any], devices: int
) -> str | None:
    """What the mode cannot do with a model whose layers it knows."""
    is_cut = mode.written.chunks_of or mode.run.process_per_node
    if mode.written.whole_batch and is_cut and model.of_graphs:
        return f"{mode.name} would cut a packed batch through its graphs"
    return _why_not_options_of(use_case, mode, options) or why_not_devices(use_case, mode, devices)


def why_not_benchmark(use_case: UseCase, benchmark: Benchmark) -> str | None:
    if use_case.needs_data and benchmark.data is None:
        return f"{benchmark.name} has no data set, and {use_case.name} needs one"
    return None


def why_not_model(use_case: UseCase, benchmark: Benchmark, model: Model) -> str | None:
    unwanted = (reason for layer, reason in use_case.without.items() if layer in model.layers)
    return why_not_benchmark(use_case, benchmark) or next(unwanted, None)


def why_not_precision(use_case: UseCase, precision: str) -> str | None:
    if precision == "fp16" and use_case.has_gradients:
        return (
            "gradients below 6e-8 are zero in fp16, so training in it needs loss scaling, which this project does "
            "not have; bf16 needs none, and inference takes fp16"
        )
    return None


def why_not_devices(use_case: UseCase, mode: Mode, devices: int) -> str | None:
    if devices > 1 and use_case.one_device:
        return f"{use_case.name} splits no work among devices"
    for name, declared in ((mode.formulation, mode.written), (mode.run.name, mode.run)):
        if devices < declared.min_devices:
            return f"{name} is for several devices"
    if devices > 1 and mode.graph != "none" and not mode.written.captures_several_devices:
        return f"{mode.formulation} on several devices cannot be captured as a CUDA graph"
    return None


def require_layers(formulation: str, count: int) -> None:
    """For a runner, which knows the model as it was built. Raises Refused where a formulation is about layers of which
    it has none."""
    if not count:
        raise Refused(f"the formulation {formulation} is about layers that this model does not have")


def unknown_layer(formulation: str, known: Iterable[type], kind: type, where: str) -> Refused:
    """For a runner, of a layer that a formulation does not know. Of two classes of one name it says the modules."""
    known = list(known)

    def named(one: type) -> str:
        is_ambiguous = one.__name__ == kind.__name__ and kind.__name__ in {other.__name__ for other in known}
        return f"{one.__module__}.{one.__name__}" if is_ambiguous else one.__name__

    listed = ", ".join(sorted({named(one) for one in known}))
    return Refused(f"the formulation {formulation} knows {listed}, not {named(kind)} ({where})")


def _why_not_layers(mode: Mode, model: Model) -> str | None:
    written = mode.written
    for name, declared in ((written.name, written), (mode.run.name, mode.run)):
        if declared.needs and not declared.needs & model.layers:
            named = declared.needs - LESS_COMMON if Layer.CONVOLUTION in declared.needs else declared.needs
            return f"{name} is for models with {' or '.join(_sorted(named))}"
    unknown = model.layers - written.knows if written.knows is not None else set()
    if unknown:
        return f"{written.name} does not know {', '.join(_sorted(unknown))}"
    return None


def _why_not_precision_of(mode: Mode, precision: str) -> str | None:
    for name, declared in ((mode.formulation, mode.written), (mode.run.name, mode.run)):
        if declared.precisions is not None and precision not in declared.precisions:
            return f"{name} is for {' and '.join(_sorted(declared.precisions))}"
    return None


def _why_not_options_of(use_case: UseCase, mode: Mode, options: Mapping[str, Any]) -> str | None:
    for name, able in mode.written.options.items():
        value = options.get(name, use_case.options.model_fields[name].default)
        if value not in able:
            return f"{mode.formulation} has no {name} but {', '.join(_sorted(able))}"
    return None


def _sorted(values: Iterable[Any]) -> list[str]:
    """Layers in the order of their declaration, others by their text."""
    order = {layer: index for index, layer in enumerate(Layer)}
    return [str(value) for value in sorted(values, key=lambda one: (order.get(one, 0), str(one)))]
