"""A kernel that is wrong is found before it is timed, in every use case. One that an autotuner has chosen would be
wrong in one mode and one precision only, so that no parity gate meets it.

tests/made/wrong_kernels.py plants one. Use case 2 has its test in test_several_devices.py.
"""

from typing import Any

import pytest

from harness.errors import CheckFailed
from tests.made.captures import allow_captures
from tests.made.sessions import build, make_session
from tests.made.wrong_kernels import one_tap_left_out

CASES = [
    ("jax", "train", "jit", {}),
    ("jax", "train", "scan", {}),
    ("torch", "train", "eager", {}),
    ("torch", "train", "eager_graph", {}),
    ("torch", "train", "epoch_graph", {}),
    *(
        (framework, "per_sample_gradients", mode, {"output": output})
        for framework, mode, output in [
            ("jax", "batch", "batch_gradient"),
            ("jax", "vmap", "norms"),
            ("jax", "outer_product", "full"),
            ("torch", "batch_eager", "batch_gradient"),
            ("torch", "vmap_eager", "norms"),
            ("torch", "vmap_eager_graph", "clipped_sum"),
            ("torch", "outer_product_eager", "full"),
        ]
    ),
    *(
        (framework, "inference", mode, {"inputs": inputs})
        for framework, mode in [("jax", "jit"), ("torch", "eager"), ("torch", "eager_graph"), ("torch", "eager_nchw")]
        for inputs in ("on_device", "on_host")
    ),
    ("jax", "many_models", "vmap", {"models": 3}),
    ("jax", "many_models", "unrolled", {"models": 3}),
    ("torch", "many_models", "loop_eager", {"models": 3}),
    ("torch", "many_models", "batched_eager_graph", {"models": 3}),
]


@pytest.mark.parametrize(
    ("framework", "use_case", "mode", "options"),
    [
        pytest.param(*case, marks=pytest.mark.nightly if case[2] in ("epoch_graph", "unrolled") else ())
        for case in CASES
    ],
)
def test_a_missing_tap_is_caught(
    framework: Any, use_case: str, mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework == "torch":
        allow_captures(monkeypatch)
    batch_size = 192 if mode == "epoch_graph" else 8  # 8 steps an epoch, all of them in the graph
    session = make_session(framework, use_case, batch_size=batch_size, execution_mode=mode, options=options)
    build(session).check()
    with one_tap_left_out(framework):
        program = build(session)
        with pytest.raises(CheckFailed, match="The result is wrong, so it is not timed"):
            program.check()
