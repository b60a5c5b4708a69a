"""What a record keeps of a traced window."""

from harness.measure.explain import _added_up
from harness.results.record import KernelTime


def test_kernels_that_are_too_many_to_name_keep_their_class() -> None:
    kernels = [
        KernelTime(name="sgemm_128x64_nn", count=3, busy_s=0.5),
        KernelTime(name="fusion.7", count=2, busy_s=0.25, content="layout"),
        KernelTime(name="gemv2T_kernel_val", count=1, busy_s=0.125),
        KernelTime(name="what_is_this", count=5, busy_s=1.0),
    ]
    assert [(one.name, one.count, one.busy_s, one.content) for one in _added_up(kernels)] == [
        ("(all others of class product)", 4, 0.625, "product"),
        ("(all others of class layout)", 2, 0.25, "layout"),
        ("(all others of class other)", 5, 1.0, "other"),
    ]
