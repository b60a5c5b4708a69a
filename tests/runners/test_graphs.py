"""Graphs on both sides, in float64: packed batches by hand, the same numbers in every use case, and mistakes that the
comparison must see."""

from functools import cache
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
import torch

from harness.plan import FRAMEWORKS, Framework
from harness.results.parity import compare, judge
from harness.work.closeness import relative_error
from harness.work.ghost import Shape
from harness.work.graphs import Capacity, places
from harness.work.use_cases.per_sample_gradients import Settings
from jax_runner import ghost as jax_ghost
from jax_runner import graphs as jax_graphs
from jax_runner.use_cases.per_sample_gradients import by_layers
from tests.made.captures import only_trace
from tests.made.numbers import TOLERANCE, Numbers, OneByOne, gated, losses_of, one_by_one, require_same
from tests.made.operators import Operators
from tests.made.sessions import build, make_session, with_first
from torch_runner import ghost as torch_ghost
from torch_runner import graphs as torch_graphs
from torch_runner import task as torch_task
from torch_runner.use_cases.per_sample_gradients import outer_product
from torch_runner.weights import to_neutral

pytestmark = pytest.mark.takes(25)

SMALL = {"width": 8, "layers": 2}
GRAPHS = 6


def session_of(framework: Framework, use_case: str = "train", model: str = "graphnet", **rest: Any) -> Any:
    """With the first graphs of the sample, one without an edge and one of 60 atoms among them."""
    all_of_it = {"batch_size": 8, "precision": "fp64", "sizes": SMALL} | rest
    if use_case == "train":
        all_of_it |= {"learning_rate": 1e-3}
    session = make_session(framework, use_case, benchmark="molpcba", model=model, **all_of_it)
    return with_first(session, train=40, test=20)


@cache
def trained(framework: Framework, model: str, mode: str = "") -> Numbers:
    """The first batch, five steps, and after them the evaluation."""
    program: Any = build(session_of(framework, model=model, execution_mode=mode, weight_decay=1.0))
    numbers = dict(program.parity())
    loss, score, _ = program.evaluate()
    return numbers | {"test loss": np.array(loss), "test score": np.array(score)}


@pytest.mark.parametrize(
    ("framework", "model", "mode"),
    [
        ("jax", "graphnet", "step.jit"),
        ("jax", "gcn", "scan.jit"),
        ("jax", "gcn", "sorted_sums.jit"),
        ("torch", "gcn", "sorted_sums.eager"),
        ("torch", "graphnet", "sorted_sums.eager"),
    ],
)
def test_every_mode_trains_the_same_on_both_sides(framework: Framework, model: str, mode: str) -> None:
    """Logits, losses, gradients, five updates, and the mean average precision afterwards."""
    ours = trained(framework, model, mode)
    require_same(ours, trained("torch", model))
    assert ours["outputs"].shape == (8, 128)
    assert len(set(ours["losses_of_steps"])) == 5
    assert 0 < ours["test score"] < 1


@pytest.mark.parametrize("mode", ["step.compiled", "sorted_sums.compiled"])
def test_a_compiled_step_does_the_same(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one graph, collation included; batches of other graphs compile nothing more."""
    only_trace(monkeypatch)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    program: Any = build(session_of("torch", model="gcn", execution_mode=mode, weight_decay=1.0))
    losses = losses_of(program, 5)
    np.testing.assert_allclose(losses, trained("torch", "gcn")["losses_of_steps"], rtol=TOLERANCE)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


def test_the_gate_passes_with_adamw() -> None:
    """As experiments.yaml has it, in fp32, and far from the tolerances: no parameter's gradient is all rounding."""
    found = [
        gated(session_of(framework, model="gcn", precision="fp32", optimizer="adamw", weight_decay=0.0))
        for framework in FRAMEWORKS
    ]
    judgement = judge(*found)
    assert judgement.state == "passed", judgement.sentence
    updates = [check for check in compare(*found) if check.name.startswith("updates")]
    assert len(updates) > 10 and max(check.error for check in updates) < 1e-3


# Packing

TWO_GRAPHS = {
    **places(np.array([2, 1, 3]), np.array([2, 0, 4])),
    "atoms": np.array([[1], [2], [3], [4], [5], [6]], np.uint8),
    "bonds": np.array([[0], [1], [2], [3], [4], [5]], np.uint8),
    "senders": np.array([1, 0, 1, 0, 2, 1], np.int16),
    "receivers": np.array([0, 1, 0, 1, 1, 2], np.int16),
}


def packed(framework: Framework, rows: list[int], capacity: Capacity) -> Any:
    batch = {name: array[rows] if "_" in name else array for name, array in TWO_GRAPHS.items()}
    if framework == "jax":
        found = jax_graphs.packed({name: jax.numpy.asarray(array) for name, array in batch.items()}, capacity)
        return jax_graphs.GraphBatch(*map(np.asarray, found))
    found = torch_graphs.packed(torch_task.to_device(batch, torch.device("cpu")), capacity)
    return torch_graphs.GraphBatch(*(tensor.numpy() for tensor in found))


def test_jax_packs_without_a_sort_a_scatter_or_a_loop() -> None:
    """Each is several kernels of a step."""
    batch = {name: jax.numpy.asarray(array) for name, array in TWO_GRAPHS.items()}
    program = jax_graphs.packed.lower(batch, Capacity(9, 10)).as_text()
    assert "stablehlo.gather" in program
    assert [name for name in ("sort", "scatter", "while") if f"stablehlo.{name}" in program] == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_packing_by_hand(framework: Framework) -> None:
    """The third graph, the second, which has no edge, the first: 6 of 9 nodes and 6 of 10 edges. Of the four padded
    edges, two each are on the first two of the three padded nodes."""
    found = packed(framework, [2, 1, 0], Capacity(9, 10))
    assert found.atoms[:6, 0].tolist() == [4, 5, 6, 3, 1, 2]
    assert found.graph_of_node.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 3]
    assert found.bonds[:6, 0].tolist() == [2, 3, 4, 5, 0, 1]
    assert found.graph_of_edge.tolist() == [0] * 4 + [2] * 2 + [3] * 4
    assert found.senders.tolist() == [1, 0, 2, 1, 5, 4, 6, 6, 7, 7]
    assert found.receivers.tolist() == [0, 1, 1, 2, 4, 5, 6, 6, 7, 7]
    assert found.node_count.tolist() == [3, 1, 2]
    # Padding stays among itself, however much of it there is, and receivers stay sorted.
    for capacity in (Capacity(7, 6), Capacity(7, 70), Capacity(200, 7)):
        found = packed(framework, [0, 1, 2], capacity)
        assert (found.senders[6:] >= 6).all() and (found.receivers[6:] >= 6).all()
        assert (found.receivers < capacity.nodes).all() and (np.diff(found.receivers) >= 0).all()


@pytest.mark.parametrize(("framework", "model"), [("jax", "gcn"), ("torch", "graphnet")])
def test_capacity_changes_nothing(framework: Framework, model: str) -> None:
    """A batch that has 128 nodes and 256 edges more than it needs, and the usual one."""
    program: Any = build(session_of(framework, model=model))
    task, usual = program.problem.task, program.first_batch()["outputs"]
    task.capacities = {count: Capacity(c.nodes + 128, c.edges + 256) for count, c in task.capacities.items()}
    np.testing.assert_allclose(program.first_batch()["outputs"], usual, rtol=0, atol=1e-12)


# Sums over sorted rows


def test_sums_over_sorted_rows_are_in_the_record() -> None:
    """By XLA's program, and by what PyTorch calls. Sums over senders are never sorted."""
    found: dict[str, tuple[str, bool, bool]] = {}
    for mode in ("step.jit", "sorted_sums.jit"):
        program: Any = build(session_of("jax", execution_mode=mode))
        text = program.lowered().as_text()
        is_told, is_not = ("indices_are_sorted = true" in text, "indices_are_sorted = false" in text)
        found[mode] = program.details["aggregation"], is_told, is_not
    for mode in ("step.eager", "sorted_sums.eager"):
        program = build(session_of("torch", execution_mode=mode))
        with mock.patch.object(torch, "segment_reduce", wraps=torch.segment_reduce) as reduce:
            program.step()
        found[mode] = program.details["aggregation"], reduce.called, True
    assert found == {
        "step.jit": ("scatter", False, True),
        "sorted_sums.jit": ("sorted_scatter", True, True),
        "step.eager": ("index_add", False, True),
        "sorted_sums.eager": ("segment_reduce", True, True),
    }


# Loss


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_loss_by_hand(framework: Framework) -> None:
    """Over the labels that are there, by the number of all questions, graph by graph."""
    program: Any = build(session_of(framework))
    task = program.problem.task
    place = torch.tensor if framework == "torch" else jax.numpy.asarray
    outputs, labels = (
        np.array([[0.5, -2.0, 3.0, 1.0], [4.0, 0.0, -1.0, 0.0]]),
        np.array([[1, 0, -1, -1], [-1, -1, 0, 1]]),
    )
    own = [[-np.log(1 / (1 + np.exp(-0.5))), np.log(1 + np.exp(-2.0))], [np.log(1 + np.exp(-1.0)), np.log(2)]]
    placed = place(outputs), place(labels.astype(np.int8))
    np.testing.assert_allclose(np.asarray(task.losses(*placed)), np.sum(own, 1) / 4, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(task.mean_loss(*placed)), np.sum(own) / 8, rtol=1e-12)
    # A fifth of each label is given to both answers alike: each loss takes a tenth of that of the other label.
    other = [[np.log(1 + np.exp(0.5)), np.log(1 + np.exp(2.0))], [np.log(1 + np.exp(1.0)), np.log(2)]]
    smoothed = 0.9 * np.sum(own) / 8 + 0.1 * np.sum(other) / 8
    np.testing.assert_allclose(np.asarray(task.mean_loss(*placed, 0.2)), smoothed, rtol=1e-12)
    assert np.asarray(task.answers(placed[0])).tolist() == [[1, 0, 1, 1], [1, 0, 0, 0]]


# The other use cases


@cache
def output_of(framework: Framework, use_case: str, mode: str, model: str = "gcn", **options: Any) -> Numbers:
    session = session_of(framework, use_case, model, batch_size=6, execution_mode=mode, options=options)
    return dict(build(session).parity())


@pytest.mark.parametrize(
    ("framework", "mode", "model"), [("jax", "vmap.jit", "gcn"), ("torch", "vmap.eager", "graphnet")]
)
def test_per_graph_gradients(framework: Framework, mode: str, model: str) -> None:
    """Each graph in a batch of its own; their mean is the gradient of the packed batch."""
    full = output_of(framework, "per_sample_gradients", mode, model, output="full")
    of_batch = output_of("torch", "per_sample_gradients", "batch.eager", model, output="batch_gradient")
    for name, value in of_batch.items():
        if name.startswith("gradients/"):
            mean = full[f"per_sample_{name}"].mean(0)
            assert relative_error({name: mean}, {name: value}) < TOLERANCE


@pytest.mark.parametrize(("use_case", "model"), [("per_sample_gradients", "graphnet"), ("many_models", "gcn")])
def test_vmap_starts_as_many_operations_whatever_it_maps_over(use_case: str, model: str) -> None:
    """Samples, or models: `index_add` would be a loop over them."""
    counts = []
    for mapped in (2, 4):
        own = {"batch_size": mapped} if use_case == "per_sample_gradients" else {"options": {"models": mapped}}
        program: Any = build(session_of("torch", use_case, model, execution_mode="vmap.eager", **own))
        program.step()
        with Operators() as seen:
            program.step()
        counts.append(len(seen.calls))
        assert program.details.get("aggregation", "scatter_add") == "scatter_add"
    assert counts[0] == counts[1] > 100


def problem_of(framework: Framework, model: str) -> Any:
    """Of graphs of 24 to 60 atoms, one without an edge among them."""
    mode = {"jax": "vmap.jit", "torch": "loop.eager"}[framework]
    return build(session_of(framework, "per_sample_gradients", model, batch_size=GRAPHS, execution_mode=mode)).problem


@cache
def loop_over_graphs(model: str) -> OneByOne:
    return one_by_one(problem_of("torch", model), GRAPHS)


@pytest.mark.parametrize(("model", "form"), [("gcn", "gram"), ("gcn", "instantiated"), ("graphnet", "gram")])
def test_ghost_norms_of_packed_graphs_are_the_loop(model: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all layers in the one form or in the other; with the sizes of this test the cheaper one is mostly the second.
    A packed batch has more room than graphs."""

    def chosen(shape: Shape) -> str:
        return "rank_one" if shape.positions == 1 else form

    for runner in (jax_ghost, torch_ghost):
        monkeypatch.setattr(runner, "choose", chosen)
    loop, rows = loop_over_graphs(model), np.arange(GRAPHS)
    clip_norm = float(np.median(loop.norms))
    wanted = loop.output("clipped_sum", clip_norm)
    of_torch, of_jax = problem_of("torch", model), problem_of("jax", model)
    batch = of_jax.batch(rows)
    settings = Settings(chunk_size=1, clip_norm=clip_norm)
    clipped = jax.jit(jax_ghost.ghost(of_jax, "clipped_sum", settings))(of_jax.params, *batch)
    assert relative_error(of_jax.to_neutral(clipped), wanted) < TOLERANCE
    for traced in (False, True):
        of_torch = problem_of("torch", model)
        compute = torch_ghost.ghost(of_torch, "clipped_sum", clip_norm, traced=traced)
        assert relative_error(to_neutral(compute(*of_torch.batch(rows))), wanted) < TOLERANCE


@pytest.mark.parametrize("model", ["gcn", "graphnet"])
def test_outer_products_of_packed_graphs_are_the_loop(model: str) -> None:
    wanted, rows = loop_over_graphs(model).full, np.arange(GRAPHS)
    of_jax = problem_of("jax", model)
    full = jax.jit(by_layers(of_jax, "outer_product"))(of_jax.params, *of_jax.batch(rows))
    assert relative_error(of_jax.to_neutral(full, leading_axes=1), wanted) < TOLERANCE
    for traced in (False, True):
        of_torch = problem_of("torch", model)
        actual = outer_product(of_torch, traced=traced)(*of_torch.batch(rows))
        assert relative_error(to_neutral(actual), wanted) < TOLERANCE


def test_large_graphs_are_left_out_of_per_sample_gradients() -> None:
    """The second graph of the sample has 60 atoms."""
    session = session_of("torch", "per_sample_gradients", "gcn", options={"output": "norms"}, max_nodes=40)
    program: Any = build(session)
    assert program.problem.train["node_count"].max() <= 40
    assert len(program.problem.train["node_count"]) < 40
    assert program.details["capacity"]["nodes"] >= 41
    assert program.units == {"edges": pytest.approx(program.problem.train["edge_count"][:8].mean())}


MODELS_APART = {"models": 2, "batches": "different", "learning_rates": "one"}


@pytest.mark.parametrize(
    ("use_case", "framework", "mode", "plain", "options"),
    [
        ("many_models", "jax", "vmap.jit", "loop.eager", MODELS_APART),
        ("many_models", "torch", "vmap.eager", "loop.eager", MODELS_APART),
        ("inference", "jax", "forward.jit", "forward.eager", {}),
    ],
)
def test_other_use_cases_are_the_same(
    use_case: str, framework: Framework, mode: str, plain: str, options: dict[str, Any]
) -> None:
    require_same(output_of(framework, use_case, mode, **options), output_of("torch", use_case, plain, **options))


def test_given_batches_of_inference_are_those_that_come() -> None:
    """No batch of the predictions, of the check or of the timed ones is larger than the room that was made."""
    program: Any = build(session_of("torch", "inference", "gcn", batch_size=6))
    test = program.requests.dataset.test
    timed, others = program.requests.given()
    room = program.prepare.task.capacity(6)
    came = [rows for rows, _ in program.requests.predicted()]
    assert all(test["node_count"][rows].sum() < room.nodes for rows in came)
    assert len(timed.batches) == 1 and len(others.batches) == 2 + len(came)
    assert program.units == {"edges": pytest.approx(test["edge_count"][:6].mean())}
