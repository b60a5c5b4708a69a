"""`main.py compile`: which programs it takes, what it makes of answers and of a process that dies, what it warns of."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.errors import ProjectError
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.narrow import Narrowing
from harness.paths import REPOSITORY, Results
from harness.plan import Launch, Measurement, Variant
from harness.results.program_facts import ProgramFacts, digest_of, program_key
from harness.work.cards import CARDS, card
from pipeline import compile as module
from pipeline.compile import Compiling, Interpreter, programs_of, usual_variants
from pipeline.compile_words import DOCUMENT, PART, conclusion, fits, foreseen, groups, in_markdown, published_facts
from pipeline.line_process import LineProcess

CONFIG = load_config(REPOSITORY / "experiments.yaml")
VARIANT = Variant(model="cnn", batch_size=256, precision="fp32", execution_mode="step.jit")


def facts(mode: str = "step.jit", *, framework: str = "jax", **changes: object) -> ProgramFacts:
    work = {"framework": framework, "card": "rtx3080", "benchmark": "mnist", "use_case": 1, "outcome": "ok"}
    variant = {"variant": VARIANT.model_copy(update={"execution_mode": mode}), "program": "aaa"}
    counts = {"kernels": 43, "classes": {"product": 11, "layout": 7}, "graphs": 2, "outside_of_graphs": 13}
    calls = {"library_calls": {"convolution": 5, "product": 6}, "layout_bytes": 2_000_000}
    return ProgramFacts.model_validate(
        work | variant | counts | calls | {"peak_bytes": 14_000_000, "compile_s": 3.4} | changes
    )


def programs(card_name: str, benchmark: str, number: int, *, everything: bool = False) -> list[Measurement]:
    pairs = expand(CONFIG, Selection(benchmarks=(benchmark,), use_cases=(number,)))
    return list(programs_of(pairs, usual_variants(CONFIG), card(card_name), everything=everything))


class TestWhichPrograms:
    def test_each_formulation_once_and_the_headline_in_every_way(self) -> None:
        """With its batch, precision and options; a model that the headline has not takes the first of everything."""
        found = programs("h100", "cifar10", 3)
        shapes = {(one.variant.batch_size, one.variant.precision, one.variant.options["output"]) for one in found}
        assert shapes == {(64, "fp32", "clipped_sum")}
        of_resnet = [one.variant for one in programs("h100", "cifar10", 1) if one.variant.model == "resnet18"]
        assert {(one.batch_size, one.precision) for one in of_resnet} == {(256, "fp32")}
        modes = {
            name: [one.variant.execution_mode for one in found if one.framework == name] for name in ("jax", "torch")
        }
        assert modes["jax"] == ["vmap.jit", "grouped.jit", "outer_product.jit", "ghost.jit"]
        headline = ["vmap.eager", "vmap.compiled", "vmap.compiled_graph"]
        assert modes["torch"] == [*headline, "outer_product.eager", "ghost.eager_graph", "loop.eager"]

    def test_no_autotuned_mode_and_no_precision_that_the_card_lacks(self) -> None:
        everything = {
            name: [one.variant for one in programs(name, "cifar10", 1, everything=True)]
            for name in ("rtx2080ti", "a100")
        }
        assert {one.precision for one in everything["rtx2080ti"]} == {"fp32"}
        assert {one.precision for one in everything["a100"]} == {"fp32", "tf32", "bf16"}
        assert not [one for one in everything["a100"] if "tuned" in one.execution_mode or "max" in one.execution_mode]

    def test_the_key_is_of_the_program_and_not_of_the_protocol_or_the_name_of_the_gpu(self) -> None:
        one = programs("h100", "mnist", 1)[0]
        cell = one.cell.model_copy(update={"gpu": "h100"})
        protocol = one.protocol.model_copy(update={"max_time_s": 1.0})
        same = one.model_copy(update={"cell": cell, "protocol": protocol, "replicate": 2})
        other = one.model_copy(update={"settings": dict(one.settings) | {"momentum": 0.8}})
        assert program_key(same) == program_key(one) != program_key(other)


ANSWERS = """
import json, os, sys
facts = json.loads({facts!r})
task = json.load(sys.stdin)
print("noise", file=sys.stderr)
for number, one in enumerate(task["measurements"]):
    mode = one["variant"]["execution_mode"]
    if mode == "step.jit_graph":
        print("it breaks here", file=sys.stderr, flush=True)
        os._exit(7)
    print(json.dumps(facts | {{"card": task["card"], "variant": one["variant"]}}), flush=True)
"""


@pytest.fixture
def compiling(tmp_path: Path) -> Compiling:
    """With a stand-in for `ahead.py` that dies of every `step.jit_graph`."""

    class Fake(Interpreter):
        def command(self, *arguments: str) -> list[str]:
            return [sys.executable, "-c", ANSWERS.format(facts=facts().model_dump_json())]

    interpreter = Fake(launch=Launch(), packages={"jax": "0.12.0"})
    made = Compiling({"jax": interpreter}, Results(root=tmp_path), Console(quiet=True), anew=False)
    made._commit = "abc"
    return made


class TestProcesses:
    WORK = [one for one in programs("h100", "mnist", 1) if one.framework == "jax"]

    def test_what_failed_or_is_of_other_code_is_compiled_again_and_nothing_else(
        self, compiling: Compiling, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program that ends the process costs itself alone."""
        first = compiling.run({"h100": self.WORK})
        outcomes = {one.variant.execution_mode: one.outcome for one in first}
        assert outcomes == {"step.jit": "ok", "step.jit_graph": "failed", "scan.jit": "ok"}
        [broken] = [one for one in first if one.outcome == "failed"]
        assert broken.reason == "the process ended with status 7: it breaks here"
        compiled: list[str] = []

        def noted(*command: Any, task: str, **more: Any) -> LineProcess:
            compiled.extend(one["variant"]["execution_mode"] for one in json.loads(task)["measurements"])
            return LineProcess(*command, task=task, **more)

        monkeypatch.setattr(module, "LineProcess", noted)
        assert compiling.run({"h100": self.WORK}) == first
        compiling._commit = "another"
        compiling.run({"h100": self.WORK[:1]})
        assert compiled == ["step.jit_graph", "step.jit"]

    def test_an_answer_that_is_none_is_a_failure_in_words(self, compiling: Compiling, tmp_path: Path) -> None:
        class Talks(Interpreter):
            def command(self, *arguments: str) -> list[str]:
                return [sys.executable, "-c", "import sys; sys.stdin.read(); print('{\"kernels\": 3}')"]

        talks = Compiling({"jax": Talks(launch=Launch())}, Results(root=tmp_path), Console(quiet=True), anew=True)
        [one] = talks.run({"h100": self.WORK[:1]})
        assert one.outcome == "failed" and "its answer is no description of a program: framework" in str(one.reason)


def test_jax_without_its_plugin_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "packages_of", lambda interpreter: {"jax": "0.10.2", "torch": "2.14.1"})
    with pytest.raises(ProjectError, match="`make gpu-compile` makes an environment"):
        module.interpreters(CONFIG, ["jax"])
    assert module.interpreters(CONFIG, ["torch"])["torch"].packages["torch"] == "2.14.1"


class TestWords:
    def test_what_is_refused_says_why_and_a_double_is_named(self) -> None:
        refused = facts(outcome="refused", reason="needs compute capability 8.0", program=None)
        [group] = groups([facts(), facts("step.jit_graph"), refused], [card("rtx3080")])
        assert next(group.rows()) == ("jax step.jit", "43", "11", "7", "2", "13", "14 MB", "3 s")
        double = "jax: step.jit_graph is the same program as step.jit"
        assert list(group.remarks()) == ["jax step.jit: needs compute capability 8.0", double]

    def test_nine_tenths_of_the_memory_fit_and_no_more(self) -> None:
        there = CARDS["rtx3080"].memory_bytes
        assert fits(facts(peak_bytes=int(0.9 * there)), CARDS["rtx3080"])
        too_large = facts(peak_bytes=int(0.9 * there) + 1)
        assert not fits(too_large, CARDS["rtx3080"])
        assert list(conclusion([too_large]))[1].startswith("Do not fit: rtx3080 jax mnist cnn-b256-fp32-step.jit")
        assert "does not fit" in in_markdown([too_large], [card("rtx3080")])

    def test_equal_programs_have_equal_digests_and_an_order_counts(self) -> None:
        assert digest_of(["a f32[8]", "b"]) == digest_of(iter(["a f32[8]", "b"]))
        assert len({digest_of(["a", "b"]), digest_of(["b", "a"]), digest_of(["ab"]), digest_of([])}) == 4


def test_a_submission_warns_of_what_does_not_fit(tmp_path: Path) -> None:
    narrowing = Narrowing(execution_modes=("step.jit", "step.compiled"), precisions=("fp32",))
    of_mnist = Selection(gpus=("rtx3080", "a100"), benchmarks=("mnist",), use_cases=(1,), narrowing=narrowing)
    pairs, results = expand(CONFIG, of_mnist), Results(root=tmp_path)
    assert foreseen(pairs, results) == []
    measurement = next(pairs[0].jobs[0].replicates())
    path = results.compiled("rtx3080") / f"{program_key(measurement)}.json"
    path.parent.mkdir(parents=True)
    path.write_text(facts(peak_bytes=12_300_000_000).model_dump_json())
    assert foreseen(pairs, results) == [
        "rtx3080/jax_mnist_1: cnn-b256-fp32-step.jit: by `main.py compile`: needs at least 12,300 MB"
    ]
    for text in (facts().model_dump_json(), '{"kernels": 3}'):  # another release costs no submission
        path.write_text(text)
        assert foreseen(pairs, results) == []


def test_the_page_is_made_of_what_is_published() -> None:
    published = published_facts()
    cards = [card(name) for name in dict.fromkeys(one.card for one in published)]
    assert [one.name for one in cards] == ["rtx2080ti", "rtx3080", "a5000", "a100", "h100", "h200"]
    assert PART.replaced(text := DOCUMENT.read_text(), in_markdown(published, cards), "compiled.md") == text
