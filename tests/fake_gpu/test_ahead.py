"""What `torch_runner.ahead` reports of programs on a GPU that is not there, as a process of its own."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.fake_gpu.build import FOLDER
from harness.job.children import child_environment
from harness.plan import Measurement, Precision
from harness.results.program_facts import ProgramFacts
from harness.work.cards import CARDS
from harness.work.declared import benchmark
from tests.made.processes import output_of
from tests.made.sessions import make_measurement


def measurement(model: str, mode: str, precision: Precision, **further: Any) -> Measurement:
    """Trains a model of full size with sample data. `model`: its benchmark and its name, `mnist/cnn`."""
    data, _, name = model.partition("/")
    own = {"benchmark": data, "model": name, "execution_mode": mode, "precision": precision, "batch_size": 64}
    return make_measurement("torch", "train", **(own | {"sizes": benchmark(data).sizes().model_dump()} | further))


Ahead = Callable[[str, Sequence[Measurement]], list[ProgramFacts]]


@pytest.fixture(scope="module")
def ahead(library: Path) -> Ahead:
    def facts(card: str, measurements: Sequence[Measurement]) -> list[ProgramFacts]:
        """By a process that is not on the fake, and finds it where these tests keep it."""
        request = {"card": card, "measurements": [one.model_dump(mode="json") for one in measurements]}
        variables = child_environment() | {FOLDER: str(library.parent)}
        output = output_of("-m", "torch_runner.ahead", env=variables, input=json.dumps(request), quiet_s=900)
        return [ProgramFacts.model_validate_json(line) for line in output.splitlines()]

    return facts


ASKED = [
    *(measurement("mnist/cnn", mode, "bf16") for mode in ("step.eager", "step.eager_graph", "step.compiled_graph")),
    measurement("mnist/cnn", "step.eager", "bf16"),
    measurement("mnist/cnn", "step.eager", "bf16", batch_size=32),
    measurement("mnist/cnn", "flat.eager", "bf16"),
    measurement("mnist/cnn", "step.eager", "bf16", batch_size=10**6),
]


@pytest.fixture(scope="module")
def found(ahead: Ahead) -> list[ProgramFacts]:
    return ahead("a100", ASKED)


def test_there_is_an_answer_for_each_program(found: list[ProgramFacts]) -> None:
    assert [one.variant for one in found] == [one.variant for one in ASKED]
    assert all((one.framework, one.card, one.benchmark, one.use_case) == ("torch", "a100", "mnist", 1) for one in found)
    assert [one.outcome for one in found] == ["ok"] * 5 + ["refused", "failed"]
    *_, flat, too_large = found
    assert "is for several devices" in (flat.reason or "") and flat.program is None
    assert "batch size 1000000 is larger than the training set" in (too_large.reason or "")


def test_products_are_counted(found: list[ProgramFacts]) -> None:
    """Of two convolutions and two linear layers: forward, gradient of the weight, gradient of the input, which of the
    first convolution nobody needs."""
    for one in found[:3]:
        assert one.library_calls == {"convolution": 5, "product": 6}
        assert one.products == {"bf16 x bf16 -> f32": 11}
        assert one.classes["product"] == 11
        assert sum(one.classes.values()) == one.kernels


def test_graphs_and_compilers_take_work_from_the_host(found: list[ProgramFacts]) -> None:
    eager, graph, compiled = found[:3]
    assert (eager.graphs, graph.graphs, compiled.graphs) == (0, 1, 1)
    assert (graph.outside_of_graphs, compiled.outside_of_graphs) == (0, 0)
    assert eager.outside_of_graphs >= eager.kernels > compiled.kernels > 0
    assert compiled.compile_s > 1 > eager.compile_s


def test_memory_holds_what_a_step_needs(found: list[ProgramFacts]) -> None:
    """At least 26,010 weights, their gradients and their momentum in float32; less for fewer samples."""
    eager, *others, smaller = (one.peak_bytes or 0 for one in found[:5])
    assert min(eager, *others, smaller) > 3 * 4 * 26_010
    assert smaller < eager


def test_the_same_program_has_the_same_digest(found: list[ProgramFacts]) -> None:
    """Also the one before which others were built."""
    eager, *_, again, smaller = found[:5]
    assert eager == again.model_copy(update={"compile_s": eager.compile_s})
    assert len({one.program for one in found[:5]}) == 4


@pytest.mark.nightly
def test_what_does_not_fit_is_out_of_memory(ahead: Ahead) -> None:
    """16 x 1,024 positions x 50,257 words of logits are 3.3 GB in float32, and their gradient as much, over 7.4 GB. An
    RTX 3080 has too little."""
    adamw = {"optimizer": "adamw", "learning_rate": 1e-3, "beta2": 0.99, "weight_decay": 0.1}
    asked = [measurement("fineweb/gpt2", "step.eager", "bf16", batch_size=16, **adamw)]
    (small,), (large,) = ahead("rtx3080", asked), ahead("a5000", asked)
    assert small.outcome == "out_of_memory"
    assert small.reason and small.reason.startswith("CUDA out of memory. Tried to allocate")
    assert large.outcome == "ok"
    assert large.peak_bytes and CARDS["rtx3080"].memory_bytes < large.peak_bytes < CARDS["a5000"].memory_bytes
