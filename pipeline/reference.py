"""docs/reference.md, made of the declarations and of the words that stand beside them: `python -m pipeline.reference`
writes the page. What a number, a flag, a setting or a mode is, its declaration says, and nothing else does.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from harness.experiments.model import AskedOfSlurm, ClusterConfig, GpuConfig
from harness.files import write_atomically
from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS, Framework, Frozen, Launch, MeasurementSettings, WandbSettings
from harness.results.flags import WORTHLESS, meanings
from harness.results.quantities import COMPARED, QUANTITIES
from harness.work.declared import Formulation, Nothing, Run, UseCase, benchmark, benchmark_names, use_case
from harness.work.tasks import Metric
from pipeline.markdown import markdown_table

DOCUMENT = REPOSITORY / "docs" / "reference.md"
ANY_METRIC = Metric(name="the metric", words="the task's metric", higher_is_better=True, format="number")
NAMES: dict[Framework, str] = {"jax": "JAX", "torch": "PyTorch"}
USE_CASES = ("train", "per_sample_gradients", "inference", "many_models")
"""In the order of their numbers in experiments.yaml."""
BOUNDS = {
    **{"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most", "exclusiveMaximum": "less than"},
    "multipleOf": "a multiple of",
}


def words_below(owner: type) -> dict[str, str]:
    """Return the string below each field of a class, on one line, by the field's name."""
    (class_definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(class_definition, ast.ClassDef)
    found = {}
    for above, below in pairwise(class_definition.body):
        match above, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                found[name] = " ".join(words.split())
    return found


def of_fields(owner: type[Frozen]) -> dict[str, str]:
    """Of a model, those of its base classes too."""
    bases = [one for one in reversed(owner.__mro__) if issubclass(one, Frozen) and one is not Frozen]
    return {name: words for one in bases for name, words in words_below(one).items()}


def valid(schema: Mapping[str, Any]) -> str:
    """Which values a JSON schema takes, in words; empty where it takes any of its type."""
    if "anyOf" in schema:
        return " or ".join(words for one in schema["anyOf"] if (words := valid(one)))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    bounds = [f"{words} {schema[key]:,.10g}" for key, words in BOUNDS.items() if key in schema]
    kinds = {"boolean": "`true`, `false`", "array": "a list"}
    return ", ".join(bounds) or kinds.get(schema.get("type", ""), "")


def settings_table(owner: type[Frozen]) -> str:
    words, schemas = of_fields(owner), owner.model_json_schema()["properties"]
    return markdown_table(
        ("name", "default", "valid", "what"),
        (
            (f"`{name}`", _default(field.get_default(), field.is_required()), valid(schemas[name]), words.get(name, ""))
            for name, field in owner.model_fields.items()
        ),
    )


def _default(value: object, is_required: bool) -> str:
    if is_required:
        return "must be given"
    if value in (None, (), {}, ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def quantities_table() -> str:
    return markdown_table(
        ("number", "title", "what", "on the page"),
        ((f"`{one.name}`", one.title(ANY_METRIC), one.about, "yes" if one.on_page else "") for one in QUANTITIES),
    )


def flags_table() -> str:
    return markdown_table(
        ("flag", "set when", "its mode is in no ratio"),
        ((f"`{name}`", words, "yes" if name in WORTHLESS else "") for name, words in meanings().items()),
    )


def formulations_table(framework: Framework, of: UseCase) -> str:
    headline = of.headline.get(framework)
    return markdown_table(
        (f"{NAMES[framework]}: formulation", "what", "for", "runs"),
        (
            (
                f"`{one.name}`",
                one.about,
                "; ".join(limits_of(one)),
                ", ".join(
                    f"**`{run.name}`**" if f"{one.name}.{run.name}" == headline else f"`{run.name}`" for run in one.runs
                ),
            )
            for one in of.formulations[framework]
        ),
    )


def limits_of(one: Formulation | Run) -> Iterator[str]:
    """What it is for, as harness/work/applies.py judges."""
    if one.needs:
        yield f"models with {' or '.join(sorted(one.needs))}"
    if one.precisions is not None:
        yield " and ".join(sorted(one.precisions))
    if one.min_devices > 1:
        yield "several GPUs"
    if isinstance(one, Run):
        return
    if one.knows is not None:
        yield f"only {', '.join(sorted(one.knows))}"
    for name, values in one.options.items():
        yield f"`{name}`: {', '.join(map(str, sorted(values)))}"
    if one.several_steps:
        yield "compared with its like only: many steps in a call"
    if not one.captures_several_devices:
        yield "no CUDA graph on several GPUs"


def runs_table() -> str:
    runs = {
        (framework, run.name): run
        for name in USE_CASES
        for framework in FRAMEWORKS
        for formulation in use_case(name).formulations[framework]
        for run in formulation.runs
    }
    return markdown_table(
        ("framework", "run", "what", "for"),
        ((NAMES[of], f"`{name}`", one.about, "; ".join(limits_of(one))) for (of, name), one in sorted(runs.items())),
    )


def use_case_part(name: str) -> Iterator[str]:
    of = use_case(name)
    yield f"### {name}"
    yield (
        f"{of.about[0].upper()}{of.about[1:]} ([what it computes](../harness/work/use_cases/{name}.md)). "
        f"Bold: the declared mode, which is what most people run."
    )
    for framework in FRAMEWORKS:
        yield formulations_table(framework, of)
    for title, owner in (("Options", of.options), ("Settings", of.settings)):
        if owner is not Nothing:
            yield f"{title}:"
            yield settings_table(owner)


def sizes_part() -> Iterator[str]:
    for name in benchmark_names():
        if (sizes := benchmark(name).sizes) is not Nothing:
            yield f"`benchmarks.{name}.sizes`:"
            yield settings_table(sizes)


def parts() -> Iterator[str]:
    yield "# Reference"
    yield (
        "Made by `python -m pipeline.reference` of the declarations in the code; change these. How the parts belong "
        "together is in [protocol.md](protocol.md). Units stand in names: `_s` seconds, `_bytes`, `_watts`, `_mhz`."
    )
    yield "## Numbers"
    yield (
        "Each is the median over replicates of what one record gives. The CSV and W&B's summary have all of them. "
        "Memory is per device. Of a row the CSV also has JAX's over PyTorch's of "
        f"{', '.join(f'`{one.name}`' for one in COMPARED)}: the geometric mean over pairs of replicates, with "
        "Student's t on their logarithms, and no verdict."
    )
    yield (
        "Beside these, `comparison.csv` has for each mode: `settings`, four digits of the digest of settings, protocol "
        "and sizes; `data_id`, eight digits of the data's SHA-256; `lab_and_software`, which tells records of one "
        "device apart; whether the mode is the `fastest` and the `declared` one. In the lines of the fastest pair "
        "stands its ratio, in those of the declared pair `declared_*`."
    )
    yield quantities_table()
    yield "## Flags"
    yield "A flag warns. Only those of the last column keep a mode out of every ratio."
    yield flags_table()
    yield "## Settings of a measurement"
    yield "`measurement` in experiments.yaml, which sets some of them, and `--set NAME=VALUE`."
    yield settings_table(MeasurementSettings)
    yield "## Execution modes, options and settings"
    yield (
        "A mode is a formulation of the work and a run of it, such as `vmap.compiled_graph`. experiments.yaml chooses "
        "among these. What a model cannot do is left out."
    )
    yield runs_table()
    for name in USE_CASES:
        yield from use_case_part(name)
    yield "### Sizes of benchmarks"
    yield from sizes_part()
    yield "## The cluster"
    yield "`cluster` in experiments.yaml or in a profile (clusters/NAME.yaml):"
    yield settings_table(ClusterConfig)
    yield f"`gpus.NAME`; {' '.join((AskedOfSlurm.__doc__ or '').split())}"
    yield settings_table(GpuConfig)
    yield "`cluster.frameworks.jax` and `.torch`:"
    yield settings_table(Launch)
    yield "`wandb`:"
    yield settings_table(WandbSettings)


def page(content: Iterable[str]) -> str:
    return "\n\n".join(content) + "\n"


if __name__ == "__main__":
    write_atomically(DOCUMENT, page(parts()), replace=True)
