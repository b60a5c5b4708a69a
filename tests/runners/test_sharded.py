"""Use case 2 with `parameters: sharded`: FSDP2 and JAX's NamedSharding compute what one device computes, on two
processes of the CPU, and each holds half."""

import json
import math
from functools import cache, partial
from typing import Any

import pytest

from harness.plan import FRAMEWORKS, Framework
from harness.results.parity import Judgement, ParityKey, ParityMetadata, ParityNumbers, judge
from harness.work.applies import why_not
from harness.work.declared import benchmark, use_case
from tests.made.numbers import Numbers, require_same
from tests.runners import one_rank
from tests.runners.test_several_devices import ADAMW, Found, Tasks, found_by_ranks, train

pytestmark = pytest.mark.takes(35)

PLAIN = {"jax": "step.jit", "torch": "step.eager"}
MODELS = {"gpt": ("enwik8", "gpt_nano"), "vit": ("imagenet100", "vit_b_16")}
each_model = pytest.mark.parametrize("model", ["gpt", pytest.param("vit", marks=pytest.mark.nightly)])
CASES: dict[str, dict[str, Any]] = {"sgd": {"max_gradient_norm": 0.1}, "adamw": ADAMW | {"warmup_epochs": 0.01}}


def sharded_in(framework: Framework) -> dict[str, Any]:
    return {"options": {"parameters": "sharded"}, "execution_mode": PLAIN[framework]}


def gate_of(model: str, framework: Framework) -> Tasks:
    owner, name = MODELS[model]
    gated = sharded_in(framework) | {"precision": "fp32", "optimizer": "adamw"}
    return {model: train("gate", benchmark=owner, model=name, **gated)}


def tasks_of(framework: Framework) -> Tasks:
    sharded, tasks = sharded_in(framework), gate_of("gpt", framework)
    tasks["gpt-wrong"] = tasks["gpt"] | {"what": "gate_without_a_sum"}
    tasks |= {name: train("parity", **case, **sharded) for name, case in CASES.items()}
    return tasks | ({"collectives": train("collectives", **sharded)} if framework == "jax" else {})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """(framework, task) -> what each of two ranks found. ViT has processes of its own, started by night only."""
    by_day = found_by_ranks(tasks_of, tmp_path_factory)
    by_night = found_by_ranks(partial(gate_of, "vit"), tmp_path_factory)
    return lambda framework, name: (by_night if name == "vit" else by_day)(framework, name)


@cache
def alone(name: str) -> Numbers:
    """Of one device of PyTorch, with whole parameters."""
    task = tasks_of("torch")[name]
    return one_rank.do("torch", task | {"session": task["session"] | {"options": {}, "execution_mode": "step.eager"}})


def left(framework: Framework, model: str, numbers: Numbers) -> ParityNumbers:
    """As the gate reads it from a file."""
    owner, name = MODELS[model]
    of_both: dict[str, Any] = {"benchmark": owner, "use_case_name": "train", "model": name, "devices": 2, "seed": 3}
    key = ParityKey(
        **of_both, framework=framework, execution_mode="step", options={}, settings={}, sizes={}, data="sample"
    )
    kept = {name: value for name, value in numbers.items() if name not in ("shapes", "held_bytes")}
    shapes = json.loads(str(numbers["shapes"]))
    return ParityNumbers(metadata=ParityMetadata(key=key, outcome="ok", shapes=shapes, created_at="now"), kept=kept)


def judged(found: Found, model: str, **tasks: str) -> Judgement:
    ours, theirs = (left(one, model, found(one, tasks.get(one, model))[0]) for one in FRAMEWORKS)
    return judge(ours, theirs)


@each_model
def test_gate_passes(found: Found, model: str) -> None:
    judgement = judged(found, model)
    assert judgement.state == "passed", judgement.sentence


@pytest.mark.parametrize("wrong", FRAMEWORKS)
def test_gate_finds_gradients_that_nobody_sums(found: Found, wrong: Framework) -> None:
    """FSDP2's own gradient shows that. JAX's is taken apart from the step, whose losses and updates show it."""
    judgement = judged(found, "gpt", **{wrong: "gpt-wrong"})
    assert judgement.state == "failed"
    assert ("gradient of" in judgement.sentence) == (wrong == "torch"), judgement.sentence


@each_model
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_rank_holds_half(found: Found, framework: Framework, model: str) -> None:
    """Of parameters and AdamW's two moments, each of 4 bytes. A class token is one row for FSDP2: one rank has it."""
    for rank in found(framework, model):
        shapes = json.loads(str(rank["shapes"]))
        parameters = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("updates/"))
        assert rank["held_bytes"] / (12 * parameters) == pytest.approx(0.5, abs=0.002)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_as_one_device_with_whole_parameters(found: Found, framework: Framework, case: str) -> None:
    """In float64; the clip is by the norm of all shards' gradients together."""
    for rank in found(framework, case):
        require_same(rank, alone(case))


def test_what_moves_in_jax(found: Found) -> None:
    """All 5 parameters are gathered for the forward pass, and the 2 tables and matrices that the backward pass takes
    once more; gradients are reduced. Nothing moves in the control."""
    for rank in found("jax", "collectives"):
        reductions, others = rank["joined"]
        assert reductions >= 1
        assert others == 7
        assert rank["apart"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("owner", "model", "mode", "devices", "words"),
    [
        ("enwik8", "gpt_nano", "step.compiled", 2, None),
        ("enwik8", "gpt_nano", "step.compiled", 1, "is for several devices"),
        ("enwik8", "gpt_nano", "flat.compiled", 2, "flat has no parameters but replicated"),
        ("cifar10", "resnet18", "step.compiled", 2, "without BatchNorm"),
        ("molpcba", "graphnet", "step.compiled", 2, "without graphs"),
    ],
)
def test_refused_before_submission(owner: str, model: str, mode: str, devices: int, words: str | None) -> None:
    declared, of = use_case("train"), benchmark(owner)
    options = {"parameters": "sharded"}
    why = why_not(declared, of, of.model(model), declared.mode("torch", mode), "fp32", options, devices)
    assert (why is None) if words is None else words in str(why)
