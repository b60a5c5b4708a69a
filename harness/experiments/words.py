"""Pydantic's complaints in the user's words: the place in the file, the value, the rule, the valid names."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MultipleOf
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from harness.experiments.source import TOO_LARGE, Keys, Problem, Source
from harness.removed import rule_of_key
from harness.suggest import valid_names

Model = TypeVar("Model", bound=BaseModel)
LARGEST_SETTING = 1e9
"""Of options, settings and sizes: none that makes sense comes near it."""
ONE_VALUE = "must be one plain value: text, a number, true or false"
UNION_TAGS = ("of all models", "by model")
"""Which of two shapes a value has; pydantic puts them into the places that it reports."""
RULES = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text; put it in quotes if it looks like a number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list, such as [a, b]",
    "dict_type": "must hold keys, such as `name: value`",
    "model_type": "must hold keys, such as `name: value`",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be greater than {gt:g}",
    "less_than_equal": "must be at most {le:.12g}",
    "less_than": "must be less than {lt:g}",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "must be of at most {max_length} characters: it becomes part of file names",
    "string_pattern_mismatch": "must be of letters, digits, `_`, `.` and `-`: it becomes part of file names",
    "value_error": "{error}",
}


def read_shape(source: Source, model: type[Model]) -> Model:
    """Raises ConfigError that lists every problem of the text and of its shape."""
    problems = list(source.problems)
    if not isinstance(source.data, dict):
        rule = f"must hold the keys {', '.join(model.model_fields)}"
        raise source.error([*problems, source.problem((), rule)])
    try:
        shaped = model.model_validate(source.data, strict=True)
    except ValidationError as error:
        unread = {problem.place for problem in problems if problem.rule.startswith(TOO_LARGE)}
        of_shape = [problem for problem in shape_problems(error, model, source) if problem.place not in unread]
        raise source.error([*problems, *of_shape]) from error
    if problems:
        raise source.error(problems)
    return shaped


def shape_problems(
    error: ValidationError, model: type[BaseModel], source: Source, *, above: Keys = ()
) -> Iterator[Problem]:
    """`above` leads to what was validated as `model`."""
    alternatives: set[Keys] = set()
    errors = error.errors()
    wrong_keys = {details["loc"][:-1] for details in errors if details["loc"][-1:] == ("[key]",)}
    for details in errors:
        keys = (*above, *(key for key in details["loc"] if key not in UNION_TAGS))
        if details["loc"][:-1] in wrong_keys and details["loc"][-1] != "[key]":
            continue  # what stands under a wrong name is not judged
        if details["type"] == "too_short" and source.at(_standing(keys, source)):
            continue  # pydantic counts the valid entries only, and the others are reported themselves
        if details["type"] == "missing":
            yield source.problem(keys, "is missing")
            continue
        if keys[-1:] == ("[key]",):
            yield source.problem(keys[:-1], _rule(details), at_key=True)
            continue
        if details["type"] in ("extra_forbidden", "invalid_key"):
            valid = _fields(model, details["loc"][:-1])
            rule = rule_of_key(keys) or f"unknown key; {valid_names(keys[-1], valid)}"
            yield source.problem(keys, rule, at_key=True)
            continue
        standing = _standing(keys, source)
        if standing == keys or isinstance(keys[-1], int):
            yield source.problem(standing, _rule(details))
        elif standing not in alternatives:  # one complaint for each type that a value might have had
            alternatives.add(standing)
            yield source.problem(standing, ONE_VALUE)


def _standing(keys: Keys, source: Source) -> Keys:
    """Without what pydantic adds for the members of a union, or for a single value taken as a list."""
    while keys not in source.values:
        keys = keys[:-1]
    return keys


def _rule(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    if details["type"] == "literal_error":
        return valid_names(
            details["input"], str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        )
    rule = RULES.get(details["type"])
    return rule.format(**context) if rule else details["msg"]


def _fields(model: type[BaseModel], keys: Keys) -> list[str]:
    """The field names of the model that `keys` leads to."""
    annotation: Any = model
    for key in keys:
        annotation = _inner(annotation, key)
    return list(_bare(annotation).model_fields)


def _inner(annotation: Any, key: str | int) -> Any:
    annotation = _bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_fields[str(key)].annotation
    arguments = get_args(annotation)
    return arguments[1] if get_origin(annotation) is dict else arguments[0]


def _bare(annotation: Any) -> Any:
    """Without Annotated[...] and `| None`."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def field_problem(value: object, field: FieldInfo) -> str | None:
    """What is wrong with a value of a declared option, setting or size; None where nothing is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) > LARGEST_SETTING:  # type: ignore[arg-type]
        return f"must be at most {LARGEST_SETTING:.12g}"
    try:
        annotated: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        TypeAdapter(annotated).validate_python(value, strict=True)
    except ValidationError:
        if choices := get_args(field.annotation):
            return valid_names(value, choices)
        return f"must be {field_words(field)}"
    return None


def field_words(field: FieldInfo) -> str:
    """`a whole number of at least 1`."""
    if choices := get_args(field.annotation):
        return f"one of {', '.join(map(str, choices))}"
    noun = "a whole number" if field.annotation is int else "a number"
    limits = {type(limit): limit for limit in field.metadata}
    least, above, most, factor = (limits.get(kind) for kind in (Ge, Gt, Le, MultipleOf))
    if factor:
        noun = noun.replace("number", f"multiple of {factor.multiple_of}")
    if least and most:
        return f"{noun} from {least.ge} to {most.le}"
    if above:
        return f"{noun} greater than {above.gt}"
    return f"{noun} of at least {least.ge}" if least else noun
