"""`main.py doctor --compute`: what is made of the lines, and processes that end in every way. What the frameworks
compute is in tests/runners/test_compute_check.py."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from pipeline.compute_checks import BROKEN, TOO_LATE, WRONG_NUMBERS, Ran, compute, judge_compute, read_lines
from pipeline.finding import Finding
from tests.made.patience import slowdown


def test_the_lines_of_a_good_run() -> None:
    product = [{"begun": "product"}, {"done": "product", "relative_error": 2.5e-7}]
    gradient = [{"begun": "gradient"}, {"done": "gradient", "relative_error": 0}]
    told = [json.dumps(one) for one in ({"device": "NVIDIA A100"}, *product, *gradient)]
    ran = read_lines("\n".join(["a library greets", *told]))
    assert ran == Ran(device="NVIDIA A100", errors={"product": 2.5e-7, "gradient": 0})
    words = "product, gradient on NVIDIA A100: as numpy, to 2e-07"
    assert judge_compute("jax", ran) == Finding("jax computes", "ok", words)


def test_a_check_that_fails_is_named_with_the_frameworks_words() -> None:
    words = "XlaRuntimeError: INTERNAL: ptxas exited with non-zero error code 65280"
    finding = judge_compute("jax", Ran(device="GPU", errors={"product": 1e-7}, failed={"convolution": words}))
    assert finding == Finding("jax computes", "problem", f"convolution: {words}", BROKEN)


@pytest.mark.parametrize(("error", "words"), [(1e-3, "1.0e-03"), (None, "not finite")])
def test_wrong_numbers(error: float | None, words: str) -> None:
    """1e-3 is what TF32 makes of these sums: it is not fp32."""
    finding = judge_compute("jax", Ran(device="GPU", errors={"product": error, "gradient": 1e-7}))
    assert (finding.verdict, finding.fix) == ("problem", WRONG_NUMBERS)
    assert finding.found.startswith(f"product: {words}") and "gradient" not in finding.found


def run(code: str, timeout_s: float = 60.0) -> Ran:
    return compute([sys.executable, "-c", textwrap.dedent(code)], timeout_s=timeout_s)


def test_a_process_that_hangs_is_ended_with_all_that_it_has_started() -> None:
    timeout_s = round(slowdown())
    ran = run(
        """
        import subprocess
        print('{"device": "GPU"}\\n{"begun": "all-reduce"}', flush=True)
        subprocess.run(["sleep", "infinity"])
        """,
        timeout_s=timeout_s,
    )
    finding = judge_compute("torch", ran)
    assert (finding.found, finding.fix) == (f"all-reduce: no answer in {timeout_s} s", TOO_LATE)


def test_a_crash_names_the_check_and_the_signal() -> None:
    ran = run(
        """
        import os, signal, sys
        print('{"begun": "convolution"}', flush=True)
        print("Could not load library libcudnn_cnn.so.9", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
        """
    )
    finding = judge_compute("jax", ran)
    assert finding.found == "convolution: ended by SIGSEGV; it said last: Could not load library libcudnn_cnn.so.9"
    assert finding.fix == BROKEN


def test_a_framework_that_does_not_start() -> None:
    finding = judge_compute("jax", run("raise RuntimeError('no backend')"))
    assert finding.verdict == "problem"
    assert finding.found == "the start: exit status 1; it said last: RuntimeError: no backend"
    assert judge_compute("jax", run("pass")).found == "no check was made"


def test_caches_are_empty_and_gone_afterwards(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = f"import os, pathlib; pathlib.Path({str(said)!r}).write_text(os.environ['TRITON_CACHE_DIR'])"
    compute([sys.executable, "-c", code], timeout_s=60)
    folder = Path(said.read_text())
    assert folder.name == "triton" and not folder.parent.exists()
