"""What a runner builds and what it refuses, beside what harness/work/applies.py says of the same."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from harness.errors import Refused
from harness.plan import Framework
from harness.work.applies import why_not, why_not_model
from harness.work.declared import (
    Benchmark,
    Formulation,
    Layer,
    Model,
    UseCase,
    benchmark,
    benchmark_names,
    use_case,
    use_case_names,
)
from tests.made.sessions import build, made_up, make_session

MODELS = [(name, model.name) for name in benchmark_names() for model in benchmark(name).models]


def cases() -> list[Any]:
    """Return use case, benchmark and model, the smaller models first.

    By day a model is tried if it has a kind of layer that no smaller one of the same use case has, the others by night.
    """
    found = []
    for name in use_case_names():
        seen: set[Layer] = set()
        declared = use_case(name)
        models = [(benchmark(data), benchmark(data).model(model)) for data, model in MODELS]
        for of, model in sorted(models, key=lambda one: one[1].parameter_count or 0):
            if why_not_model(declared, of, model) is None:
                marks = pytest.mark.nightly if model.layers <= seen else ()
                seen |= model.layers
                found.append(pytest.param(declared, of, model, marks=marks, id=f"{name}-{of.name}-{model.name}"))
    return found


def disagreements(framework: Framework, declared: UseCase, of: Benchmark, model: Model) -> dict[str, str]:
    """What is refused and makes sense by the declarations, or the other way round, with the words of the one that
    objects. Each formulation in its first run.

    Args:
        declared, model: the runner has them as they are in harness/work; these may say something else.
    """
    found = {}
    for formulation in declared.formulations[framework]:
        mode = next(mode for mode in declared.modes[framework] if mode.written is formulation)
        for options in choices(declared, formulation):
            if is_for_other_machines(formulation) or declared.why_not_options(of, model, options, 1):
                continue
            reason = why_not(declared, of, model, mode, "fp32", options, devices=1)
            refusal = refusal_of(
                framework, declared, of, model, mode.name, options, traced=formulation.knows is not None
            )
            if (reason is None) != (refusal is None):
                found[f"{mode.name} {options}"] = f"declared: {reason}; refused: {refusal}"
    return found


ON_GPUS = ("cudnn_attention", "flash_attention", "efficient_attention", "streams")


def choices(declared: UseCase, formulation: Formulation) -> Iterator[dict[str, Any]]:
    """Of each option that the formulation is for some values of: one of these, and one of the others."""
    usual = made_up(declared.options) | ({"models": 2} if "models" in declared.options.model_fields else {})
    yield usual | {
        name: usual[name] if usual.get(name) in own else min(own) for name, own in formulation.options.items()
    }
    for name, own in formulation.options.items():
        others = [value for value in get_args(declared.options.model_fields[name].annotation) if value not in own]
        yield from (usual | {name: value} for value in others[:1])


def is_for_other_machines(formulation: Formulation) -> bool:
    return formulation.name in ON_GPUS or formulation.min_devices > 1 or formulation.runs[0].graph != "none"


def refusal_of(
    framework: Framework,
    declared: UseCase,
    of: Benchmark,
    model: Model,
    mode: str,
    options: dict[str, Any],
    *,
    traced: bool,
) -> str | None:
    """The runner's words; None for a program that it builds, of weights that are all one.

    Args:
        traced: and makes a step of, which a layer that the formulation overlooks would stop.
    """
    session = make_session(
        framework, declared.name, benchmark=of.name, model=model.name, execution_mode=mode, options=options
    )
    ones = lambda _seed, _name, shape: np.ones(shape, np.float32)  # noqa: E731
    models = tuple(replace(one, initial_weight=ones) for one in session.benchmark.models)
    session = replace(session, benchmark=replace(session.benchmark, models=models))
    try:
        program: Any = build(session)
    except Refused as refused:
        return str(refused)
    if traced:
        program.lowered() if framework == "jax" else program.step()
    return None


def with_formulation(declared: UseCase, framework: Framework, name: str, **changes: Any) -> UseCase:
    """The use case with this formulation alone, declared in another way."""
    changed = tuple(replace(one, **changes) for one in declared.formulations[framework] if one.name == name)
    return replace(declared, formulations={framework: changed})
