"""`like: 1` in a use case: what is absent there is taken from use case 1."""

from typing import Any

from harness.experiments.source import Source
from harness.suggest import valid_names


def fill_in(source: Source) -> None:
    """Before the shape is checked: what is taken over may well be what must not be missing.

    Raises:
        ConfigError: the number of no use case, or of one that is like another itself.
    """
    use_cases = source.data.get("use_cases") if isinstance(source.data, dict) else None
    if not isinstance(use_cases, dict):
        return
    likes = {
        number: given["like"] for number, given in use_cases.items() if isinstance(given, dict) and "like" in given
    }
    written_out = [number for number in use_cases if number not in likes]
    problems = [
        source.problem(("use_cases", number, "like"), rule)
        for number, like in likes.items()
        if (rule := _broken_rule(number, like, likes, written_out))
    ]
    if problems:
        raise source.error([*source.problems, *problems])
    for number, like in likes.items():
        if isinstance(use_cases[like], dict):
            source.take_over(("use_cases", like), ("use_cases", number))


def _broken_rule(number: str | int, like: Any, likes: dict[str | int, Any], written_out: list[str | int]) -> str | None:
    if type(like) is int and like in written_out:
        return None
    if like == number:
        rule = "must be another use case"
    elif type(like) is int and like in likes:
        rule = f"must be a use case that is written out, and {like} is like {likes[like]}"
    else:
        rule = "not one of use_cases"
    return f"{rule}; {valid_names(like, written_out)}"
