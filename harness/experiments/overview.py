"""What experiments.yaml has, for `--help` and for names on the command line: read without the check of load.py.

No numpy and no pydantic: these take a quarter of a second to import, and whoever asks for help is not to wait.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError
from harness.experiments.source import read_source
from harness.suggest import valid_names

DECLARATIONS = Path(__file__).resolve().parent.parent / "work" / "use_cases"


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What is well-formed in the file. About the rest load.py complains."""

    file: str
    use_cases: dict[int, tuple[str, int]]
    """By number: name, and devices over all nodes."""
    benchmarks: tuple[str, ...]


def overview(path: Path) -> Overview:
    """Raises ConfigError for a file that cannot be read."""
    source = read_source(path)
    data = source.data if isinstance(source.data, dict) else {}
    use_cases, benchmarks = (
        found if isinstance(found := data.get(key), dict) else {} for key in ("use_cases", "benchmarks")
    )
    return Overview(
        file=source.name,
        use_cases={
            number: (given["name"], devices)
            for number, given in use_cases.items()
            if isinstance(number, int) and isinstance(given, dict) and isinstance(given.get("name"), str)
            if isinstance(devices := given.get("devices", 1), int)
        },
        benchmarks=tuple(map(str, benchmarks)),
    )


def in_words(path: Path) -> str:
    """The use cases, a line for each, and the benchmarks. Empty where the file cannot be read."""
    try:
        found = overview(path)
    except ConfigError:
        return ""
    width = max((len(name) for name, _ in found.use_cases.values()), default=0)
    about = {file.stem: _about(file) for file in DECLARATIONS.glob("*.py")}
    lines = [
        f"  {number:<3}{name:<{width}}  {about.get(name, '')}{f', on {devices} GPUs' if devices > 1 else ''}".rstrip()
        for number, (name, devices) in found.use_cases.items()
    ]
    return "\n".join(["use cases:", *lines, "", f"benchmarks: {', '.join(found.benchmarks)}"])


def _about(file: Path) -> str:
    """What the declaration in this file says of itself; empty where it cannot be read."""
    try:
        nodes = ast.walk(ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in nodes:
        match node:
            case ast.Call(
                func=ast.Name(id="UseCase"), keywords=[_, ast.keyword("about", ast.Constant(str(words))), *_]
            ):
                return words
    return ""


def numbers_of(names: tuple[int | str, ...], path: Path) -> tuple[int, ...]:
    """Use cases as the command line calls them, by their numbers. A name means it on the fewest devices.

    Raises:
        ConfigError: a name that no use case has, or as `overview`.
    """
    if not any(isinstance(name, str) for name in names):
        return tuple(name for name in names if isinstance(name, int))
    found = overview(path)
    numbers: dict[int, None] = {}
    for name in names:
        of_name = {number: devices for number, (own, devices) in found.use_cases.items() if own == name}
        if isinstance(name, int):
            numbers[name] = None
        elif of_name:
            numbers |= {number: None for number, devices in of_name.items() if devices == min(of_name.values())}
        else:
            valid = [*found.use_cases, *dict.fromkeys(own for own, _ in found.use_cases.values())]
            raise ConfigError(f"--use_case {name}: not defined in {found.file}; {valid_names(name, valid)}")
    return tuple(numbers)
