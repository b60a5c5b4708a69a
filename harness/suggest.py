"""What to say about a wrong name: the valid ones and the nearest.

Standard library only, so that main.py starts fast.
"""

import difflib
from collections.abc import Iterable


def nearest(name: object, valid: Iterable[object]) -> str | None:
    """The valid name that looks most like `name`, or None if none does."""
    by_lower_case = {str(choice).lower(): str(choice) for choice in valid}
    found = difflib.get_close_matches(str(name).lower(), list(by_lower_case), n=1, cutoff=0.5)
    return by_lower_case[found[0]] if found else None


def valid_names(name: object, valid: Iterable[object]) -> str:
    """`valid: mnist, cifar10; did you mean cifar10?`"""
    choices = list(valid)
    if not choices:
        return "there is none to choose from"
    listed = f"valid: {', '.join(map(str, choices))}"
    close = nearest(name, choices)
    return f"{listed}; did you mean {close}?" if close else listed
