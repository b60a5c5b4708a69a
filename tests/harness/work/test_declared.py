"""The declarations: whole and consistent, and a name that is not among them is answered with the nearest."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.errors import ConfigError
from harness.plan import FRAMEWORKS
from harness.work.declared import benchmark, benchmark_names, use_case, use_case_names


@pytest.mark.parametrize("name", use_case_names())
def test_the_modes_of_a_use_case(name: str) -> None:
    """Both frameworks have some, no two are the same thing under two names, and nothing eager is a CUDA graph of what
    a compiler has compiled."""
    found = use_case(name)
    assert found.name == name
    assert found.modes.keys() == found.headline.keys() == set(FRAMEWORKS)
    for framework in FRAMEWORKS:
        modes = found.modes[framework]
        assert modes and len({mode.name for mode in modes}) == len(modes)
        for one in found.formulations[framework]:
            assert len({replace(run, name="") for run in one.runs}) == len(one.runs)
        assert not [mode for mode in modes if mode.run_as == "eager" and mode.graph == "parts"]
        assert not found.mode(framework, found.headline[framework]).several_steps
        assert not found.one_device or not [mode for mode in modes if mode.run.process_per_node]


@pytest.mark.parametrize("name", benchmark_names())
def test_a_benchmark_has_a_data_set_or_draws_its_inputs_and_its_sample_has_the_arrays_of_its_task(name: str) -> None:
    found = benchmark(name)
    assert found.name == name
    assert (found.data is None) != (found.drawn is None)
    assert found.models and len({model.name for model in found.models}) == len(found.models)
    if found.data:
        assert found.data.benchmark == name
        sample = found.data.sample()
        assert tuple(sample.train) == tuple(sample.test) == found.task.arrays
        assert sample.train_count > sample.test_count > 0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: benchmark("cifar"), "cifar: there is no such benchmark; valid: cifar10, enwik8, "),
        (lambda: use_case("trian"), "trian: there is no such use case; valid: inference, many_models, per_sample_grad"),
        (lambda: benchmark("mnist").model("cn"), "cn: mnist has no such model; valid: cnn; did you mean cnn?"),
        # Of the other framework
        (
            lambda: use_case("train").mode("torch", "scan.jit"),
            "scan.jit: train has no such execution mode in torch; v",
        ),
        # No file of that name may be imported by accident
        (lambda: benchmark("__init__"), "__init__: there is no such benchmark"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ask()
    assert str(caught.value).startswith(message)
