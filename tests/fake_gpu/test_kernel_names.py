"""harness/results/kernel_names.py knows every kernel that the eager modes start on a GPU."""

from typing import Any

from harness.fake_gpu.calls import Call
from harness.results.kernel_names import class_of


def test_no_kernel_is_of_an_unknown_class(by_day: dict[str, Any]) -> None:
    kernels = {
        call.what
        for found in by_day.values()
        for call in (Call(*parts) for parts in found.get("executed", []))
        if call.kind == "kernel"
    }
    assert len(kernels) > 100
    assert sorted(name for name in kernels if class_of(name) == "other") == []
