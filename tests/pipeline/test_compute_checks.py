"""`main.py doctor --compute`: what is made of the lines, and processes that end in every way. What the frameworks
compute is in tests/runners/test_compute_check.py."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from pipeline.compute_checks import TOO_LATE, UNKNOWN, WRONG_NUMBERS, Ran, compute, judge_compute, read_lines
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


@pytest.mark.parametrize(
    ("said", "cause", "fix"),
    [
        ("XlaRuntimeError: INTERNAL: ptxas exited with non-zero error code 65280", "ptxas", "which -a ptxas"),
        ("XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed", "cuDNN", "LD_LIBRARY_PATH"),
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable", "the C compiler", "CC"),
        ("CalledProcessError: main.c:1:10: fatal error: Python.h: No such file", "the C compiler", "python3-dev"),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "the driver", "nvidia-smi"),
        ("ProjectError: PyTorch 2.15.0 for CUDA 13.2 does not see it", "the driver", "nvidia-smi"),
        ("DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, unhandled cuda error", "NCCL", "NCCL_DEBUG"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 MiB", "memory", "nvidia-smi"),
    ],
)
def test_what_is_broken_has_a_name(said: str, cause: str, fix: str) -> None:
    finding = judge_compute("torch", Ran(device="GPU", errors={"gradient": 1e-7}, failed={"convolution": said}))
    assert finding.verdict == "problem"
    assert finding.found.startswith(f"{cause} is broken or missing, or does not fit. convolution: {said[:60]}")
    assert fix in finding.fix


def test_the_log_names_a_cause_that_the_error_does_not() -> None:
    log = "E0 Couldn't find a suitable version of ptxas"
    ran = Ran(device="GPU", failed={"gradient": "XlaRuntimeError: INTERNAL"}, log=log)
    assert judge_compute("jax", ran).found.startswith("ptxas is broken")
    # ... and one that nobody names stays unnamed
    assert judge_compute("jax", Ran(device="GPU", failed={"gradient": "KeyError: 'x'"})).fix == UNKNOWN


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
    found = judge_compute("jax", ran).found
    assert found.startswith("cuDNN is broken or missing, or does not fit. convolution: ended by SIGSEGV")


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
