"""A kernel that is wrong is found before it is timed, in every use case. One that an autotuner has chosen would be
wrong in one mode and one precision only, so that no parity gate meets it.

tests/made/wrong_kernels.py plants one. Use case 2 has the check of use case 1, which is seen to fail on two devices in
test_several_devices.py.
"""

from typing import Any

import pytest

from harness.errors import CheckFailed
from tests.made.captures import allow_captures
from tests.made.sessions import build, make_session
from tests.made.wrong_kernels import one_tap_left_out

CASES = [
    ("jax", "train", "step.jit", {}),
    ("jax", "train", "scan.jit", {}),
    ("torch", "train", "step.eager", {}),
    ("torch", "train", "step.eager_graph", {}),
    *(
        (framework, "per_sample_gradients", mode, {"output": output})
        for framework, mode, output in [
            ("jax", "batch.jit", "batch_gradient"),
            ("jax", "vmap.jit", "norms"),
            ("jax", "outer_product.jit", "full"),
            ("torch", "batch.eager", "batch_gradient"),
            ("torch", "vmap.eager", "norms"),
            ("torch", "vmap.eager_graph", "clipped_sum"),
            ("torch", "outer_product.eager", "full"),
        ]
    ),
    ("jax", "inference", "forward.jit", {"inputs": "on_host"}),
    ("torch", "inference", "forward.eager", {"inputs": "on_host"}),
    ("torch", "inference", "forward.eager_graph", {"inputs": "on_device"}),
    ("torch", "inference", "forward.eager_nchw", {"inputs": "on_device"}),
    ("jax", "many_models", "vmap.jit", {"models": 3}),
    ("torch", "many_models", "loop.eager", {"models": 3}),
    ("torch", "many_models", "batched.eager_graph", {"models": 3}),
]


@pytest.mark.parametrize(("framework", "use_case", "mode", "options"), CASES)
def test_a_missing_tap_is_caught(
    framework: Any, use_case: str, mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework == "torch":
        allow_captures(monkeypatch)
    session = make_session(framework, use_case, execution_mode=mode, options=options)
    build(session).check()
    with one_tap_left_out(framework):
        program = build(session)
        with pytest.raises(CheckFailed, match="The result is wrong, so it is not timed"):
            program.check()
