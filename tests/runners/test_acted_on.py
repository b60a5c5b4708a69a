"""A runner refuses a mode of which its program ignores a part: nothing is timed under a name that is not its own."""

from dataclasses import replace
from typing import Any

import pytest

from harness.errors import Refused
from harness.plan import FRAMEWORKS, Framework
from harness.work.declared import Formulation, Noting, Run
from tests.made.sessions import build, make_session, with_variant

PLANTED: dict[str, tuple[Framework, str, dict[str, Any], dict[str, Any], str]] = {
    "channels first": ("torch", "train", {}, {"run_as": "eager", "layout": "nchw"}, "layout='nchw'"),
    "channels last, as ever": ("torch", "inference", {}, {"run_as": "eager", "layout": "nhwc"}, "layout='nhwc'"),
    "overlap": ("torch", "train", {}, {"run_as": "eager", "overlaps": True}, "overlaps=True"),
    "eager JAX": ("jax", "inference", {}, {"run_as": "eager"}, "run_as='eager'"),
    "parts of a graph": ("jax", "train", {}, {"graph": "parts"}, "graph='parts'"),
    "nobody's formulation": ("torch", "train", {"name": "faster"}, {"run_as": "eager"}, "formulation='faster'"),
    "chunks": ("torch", "train", {"chunks_of": "step"}, {"run_as": "eager"}, "chunks_of='step'"),
}
"""Framework, use case, what the formulation and the run have, and what the refusal names."""


@pytest.mark.parametrize("planted", PLANTED)
def test_a_mode_of_which_a_part_is_ignored_is_refused(planted: str) -> None:
    framework, use_case, of_formulation, of_run, words = PLANTED[planted]
    session = make_session(framework, use_case)
    declared = session.use_case
    plain, *_ = declared.formulations[framework]
    written = Formulation(**({"name": plain.name, "runs": (Run(name="planted", **of_run),)} | of_formulation))
    formulations = {framework: (*declared.formulations[framework], written)}
    mode = f"{written.name}.planted"
    session = replace(with_variant(session, execution_mode=mode), use_case=replace(declared, formulations=formulations))
    with pytest.raises(Refused, match=f"^execution mode {mode}: {framework}_runner/use_cases/{use_case}.py do") as is_:
        build(session)
    assert f"does nothing with {words}, so" in str(is_.value)


@pytest.mark.parametrize("use_case", ["train", "per_sample_gradients", "inference", "many_models"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_timed_step_reads_nothing_of_its_mode(
    framework: Framework, use_case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was all read when the program was built, or each step would pay for the notes."""
    program = build(make_session(framework, use_case))
    program.step()  # a first call may trace

    def read(_: Noting, name: str) -> Any:
        raise AssertionError(f"{name} was read in a step")

    monkeypatch.setattr(Noting, "__getattr__", read)
    program.step()
    program.step()
