"""What goes with what: each kind of reason on a declaration made for it, then the project's own declarations."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from harness.experiments.expand import expand_variants
from harness.experiments.load import load_config
from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS, Framework, Frozen
from harness.work.applies import why_not
from harness.work.declared import (
    COMPILED_GRAPH,
    CONVOLUTIONS,
    EAGER,
    PROCESS_PER_NODE,
    Formulation,
    Layer,
    Mode,
    Model,
    Run,
    UseCase,
    benchmark,
    use_case,
)


class Options(Frozen):
    output: str
    work: str = "step"


CASE = UseCase(name="case", about="", formulations={}, options=Options)
MNIST, SYNTHETIC, TEXT, GRAPHS = map(benchmark, ("mnist", "synthetic", "text", "molpcba"))
INFERENCE, MANY_MODELS = use_case("inference"), use_case("many_models")


def way(run: Run = EAGER, **declared: Any) -> Mode:
    declared = {name: frozenset(value) if isinstance(value, set) else value for name, value in declared.items()}
    return Mode(written=Formulation(name="way", runs=(run,), **declared), run=run)


def why(
    *,
    case: UseCase = CASE,
    of: Any = MNIST,
    layers: tuple[Layer, ...] = (Layer.DENSE,),
    mode: Mode = way(),  # noqa: B008
    precision: Any = "fp32",
    options: dict[str, Any] | None = None,
    devices: int = 1,
) -> str | None:
    model = Model(name="net", layers=frozenset(layers))
    return why_not(case, of, model, mode, precision, {"output": "norms"} | (options or {}), devices)


DENSE, GRAPH, DEPTHWISE, BATCH_NORM = Layer.DENSE, Layer.GRAPH, Layer.DEPTHWISE, Layer.BATCH_NORM
CAPTURED = {"mode": way(COMPILED_GRAPH, captures_several_devices=False), "devices": 2}
PER_NODE = {"mode": way(PROCESS_PER_NODE, whole_batch=True), "layers": (GRAPH,), "devices": 2}
KEPT = {"case": INFERENCE, "options": {"batch_norm": "kept", "inputs": "on_device"}}
FROM_HOST = {"case": INFERENCE, "of": GRAPHS, "options": {"batch_norm": "folded", "inputs": "on_host"}}
FORWARD = {"work": "forward", "learning_rates": "separate"}
CUT = {"mode": way(whole_batch=True, chunks_of="other"), "layers": (GRAPH,)}
NO_BATCH_NORM = {"case": replace(CASE, without={BATCH_NORM: "no BatchNorm here"}), "layers": (BATCH_NORM,)}
WORK = {"mode": way(options={"work": {"step"}}), "options": {"work": "forward"}}


@pytest.mark.parametrize(
    ("given", "changed", "reason"),
    [
        ({"mode": way(needs={GRAPH, DEPTHWISE})}, {"layers": (DENSE, GRAPH)}, "way is for models with depthwise conv"),
        ({"mode": way(replace(EAGER, needs=CONVOLUTIONS))}, {"layers": (DEPTHWISE,)}, "eager is for models with conv"),
        (
            {"mode": way(knows={DENSE}), "layers": (Layer.LAYER_NORM, DENSE, Layer.SCALE)},
            {"layers": (DENSE,)},
            "way does not know a scale of each feature, LayerNorm with a shift",
        ),
        ({"mode": way(precisions={"fp16", "bf16"})}, {"precision": "bf16"}, "way is for bf16 and fp16"),
        ({"mode": way(replace(EAGER, precisions=frozenset({"tf32"})))}, {"precision": "tf32"}, "eager is for tf32"),
        (WORK, {"options": {}}, "way has no work but step"),  # an option that is left out has its default
        ({"mode": way(replace(EAGER, min_devices=2))}, {"devices": 2}, "eager is for several devices"),
        ({"case": replace(CASE, one_device=True), "devices": 2}, {"devices": 1}, "case splits no work among devices"),
        (CAPTURED, {"devices": 1}, "way on several devices cannot be captured as a CUDA graph"),
        (CAPTURED, {"mode": way(captures_several_devices=False)}, "way on several devices"),
        (CUT, {"layers": (DENSE,)}, "way.eager would cut a packed batch through its graphs"),
        (PER_NODE, {"mode": way(PROCESS_PER_NODE)}, "way.process_per_node would cut"),
        (NO_BATCH_NORM, {"layers": (DENSE,)}, "no BatchNorm here"),
        ({"case": replace(CASE, needs_data=True), "of": SYNTHETIC}, {"of": MNIST}, "synthetic has no data set, and c"),
        ({"precision": "fp16"}, {"case": replace(CASE, has_gradients=False)}, "gradients below 6e-8 are zero"),
        (KEPT, {"layers": (BATCH_NORM,)}, "net has no BatchNorm that could be kept, "),
        (FROM_HOST, {"of": TEXT}, "inputs on_host: graphs are parts of arrays that lie on the device as a whole"),
        (
            {"case": MANY_MODELS, "options": FORWARD},
            {"options": FORWARD | {"learning_rates": "one"}},
            "work: forward has no learning rates ",
        ),
    ],
)
def test_a_reason_is_given_where_it_holds_and_only_there(
    given: dict[str, Any], changed: dict[str, Any], reason: str
) -> None:
    assert str(why(**given)).startswith(reason)
    assert why(**given | changed) is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_mode_of_the_file_is_measured_for_some_model(framework: Framework) -> None:
    config = load_config(REPOSITORY / "experiments.yaml")
    for number in config.use_cases:
        given, measured = set(), set()
        for name, quick in itertools.product(config.benchmarks, (False, True)):
            given |= {mode.name for mode in config.modes(framework, name, number, quick=quick)}
            variants = expand_variants(config, framework, name, number, quick=quick)
            measured |= {variant.execution_mode for variant in variants}
        assert given == measured, number
