"""What to say about a wrong name: the valid ones and the nearest.

Standard library only, so that main.py starts fast.
"""

import difflib
from collections.abc import Iterable

SYNONYMS = {
    **dict.fromkeys(("float32", "single", "float", "f32", "32"), "fp32"),
    **dict.fromkeys(("float16", "half", "f16", "16"), "fp16"),
    **dict.fromkeys(("bfloat16", "brain", "bfp16"), "bf16"),
    **dict.fromkeys(("float64", "double", "f64", "64"), "fp64"),
    **dict.fromkeys(("tensorfloat32", "tensor_float32", "tfloat32"), "tf32"),
}
"""Names of precisions elsewhere. By their letters, `float32` looks most like `tf32`, which is other arithmetic."""
UNSUPPORTED = frozenset({"fp8", "float8", "e4m3", "e5m2", "fp4", "float4", "int8", "int4"})
"""Precisions that look like others, and are none of this project."""


def nearest(name: object, valid: Iterable[object]) -> str | None:
    """The valid name that looks most like `name`, or None if none does."""
    by_lower_case = {str(choice).lower(): str(choice) for choice in valid}
    if (synonym := SYNONYMS.get(str(name).lower())) in by_lower_case:
        return synonym
    if _is_unsupported(name, by_lower_case):
        return None
    found = difflib.get_close_matches(str(name).lower(), list(by_lower_case), n=1, cutoff=0.5)
    return by_lower_case[found[0]] if found else None


def _is_unsupported(name: object, valid: Iterable[str]) -> bool:
    return str(name).lower() in UNSUPPORTED and "fp32" in valid


def valid_names(name: object, valid: Iterable[object]) -> str:
    """`valid: mnist, cifar10; did you mean cifar10?`"""
    choices = list(valid)
    if not choices:
        return "there is none to choose from"
    listed = f"valid: {', '.join(map(str, choices))}"
    if _is_unsupported(name, map(str, choices)):
        return f"{listed}; {name} is not supported"
    close = nearest(name, choices)
    return f"{listed}; did you mean {close}?" if close else listed
