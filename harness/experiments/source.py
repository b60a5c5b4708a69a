"""A YAML file as plain data, together with the place (line and column) of every key and value in it.

Plain scalars follow YAML 1.2, not PyYAML's 1.1: `1e-3` is a number, `no` and `on` are text, `1:30` is not 90.
Lists become tuples. What is wrong in the text itself (a key or list entry given twice, a number that is not
finite) is collected in `Source.problems`, so that it can be reported together with what is found later.
"""

import math
import re
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ConfigError
from harness.printable import printable, shortened

Keys = tuple[str | int, ...]
"""The way to a value: mapping keys and list indices."""

NULL = re.compile(r"|~|null|Null|NULL")
BOOLEAN = re.compile(r"(?P<true>true|True|TRUE)|false|False|FALSE")
INTEGER = re.compile(r"[-+]?[0-9]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
MAY_REPEAT = frozenset({"setup"})
"""Lists of shell lines: `fi` may well stand there twice."""
LARGEST_FILE_BYTES = 1_000_000
LARGEST_READ_TWICE = 100_000
"""Characters. PyYAML's own parser takes a second for so many."""
MOST_DIGITS = 18
"""Of a whole number; a computer's own have no more."""
TOO_LARGE = "too large for a number"
MOST_VALUES = 30_000
"""With what aliases repeat. A file of 2,500 GPUs has a tenth of it."""
PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


@dataclass(frozen=True, kw_only=True, order=True)
class Place:
    file: str = ""
    """Empty for the source's own; of what was laid over it, the other's name."""
    line: int
    column: int


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """One thing that is wrong, such as `experiments.yaml:4:3: cluster.cpus: -5: must be at least 1`."""

    place: Place
    where: str
    """The dotted key."""
    value: str
    """As the user wrote it; empty where there is none to show."""
    rule: str

    def text(self, file: str) -> str:
        file = self.place.file or file
        parts = [f"{file}:{self.place.line}:{self.place.column}", self.where, self.value, self.rule]
        return printable(": ".join(part for part in parts if part), keep="")


@dataclass(kw_only=True)
class Source:
    """One file, read. `name` is how messages call it."""

    name: str
    data: Any = None
    values: dict[Keys, Place] = field(default_factory=dict)
    keys: dict[Keys, Place] = field(default_factory=dict)
    dotted: dict[Keys, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, keys: Keys, rule: str, *, at_key: bool = False, value: object = ...) -> Problem:
        """A problem with the value at `keys`, or with the nearest thing above it that stands in the file."""
        known = keys
        while known not in self.values:
            known = known[:-1]
        missing = "".join(f".{key}" for key in keys[len(known) :])
        where = (self.dotted[known] + missing).removeprefix(".")
        place = self.keys.get(known, self.values[known]) if at_key or missing else self.values[known]
        if value is ...:
            value = "" if at_key or missing else shown(self.at(known))
        return Problem(place=place, where=where, value=str(value), rule=rule)

    def at(self, keys: Keys) -> Any:
        value = self.data
        for key in keys:
            value = value[key]
        return value

    def lay_over(self, other: "Source", keys: Keys = ()) -> None:
        """What `other` says at `keys`, in place of what stands here: mappings key by key, a list or value as a whole.
        What is wrong with it is told with its own file and line."""
        own = self.at(keys)
        for key, value in other.at(keys).items():
            inner = (*keys, key)
            if isinstance(value, dict) and isinstance(own.get(key), dict):
                self.lay_over(other, inner)
                continue
            own[key] = value
            for ours, theirs in ((self.values, other.values), (self.keys, other.keys)):
                for known in [known for known in {**ours, **theirs} if known[: len(inner)] == inner]:
                    ours.pop(known, None)
                    ours |= {known: replace(theirs[known], file=other.name)} if known in theirs else {}
        self.dotted |= other.dotted

    def error(self, problems: list[Problem]) -> ConfigError:
        """All of them, each once, in the order of the file."""
        return ConfigError("\n".join(problem.text(self.name) for problem in sorted(set(problems))))


def shown(value: object) -> str:
    """A value in a message: short, and nothing for what spans many lines."""
    if isinstance(value, dict):
        return ""
    if value is None:
        return "(nothing)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        text = f"[{', '.join(map(shown, value))}]"
    else:
        text = shortened(str(value))
        if isinstance(value, str) and any(kind.fullmatch(text) for kind in (NULL, BOOLEAN, FLOAT)):
            text = f'"{text}"'
    return shortened(text)


def read_source(path: Path) -> Source:
    """Raises ConfigError: no such file, not text, too large, empty, or a syntax error (with its place)."""
    name = printable(_short_name(path))
    try:
        text = _read(path).decode()
    except FileNotFoundError as error:
        raise ConfigError(f"{name}: no such file; name another with --config FILE") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: byte {error.start}: not UTF-8 text; save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from error
    if len(text) > LARGEST_FILE_BYTES:
        limit = f"{LARGEST_FILE_BYTES / 1e6:.0f} MB"
        raise ConfigError(f"{name}: the file is larger than {limit}, so it is not a configuration of this project")
    too_deep = ConfigError(f"{name}: its lists or mappings are nested too deep to be read")
    try:
        root = _compose(text)
    except RecursionError as error:
        raise too_deep from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_error(name, text, error)) from error
    except yaml.reader.ReaderError as error:
        line, column = _line_and_column(text, error.position)
        character = text[error.position]
        rule = "must be removed: YAML takes no control characters"
        raise ConfigError(f"{name}:{line}:{column}: the character U+{ord(character):04X}: {rule}") from error
    if root is None:
        raise ConfigError(f"{name}:1:1: the file is empty; copy the project's own and edit that")
    source = Source(name=name)
    try:
        source.data = _Builder(source).build(root, (), "")
    except RecursionError as error:
        raise too_deep from error
    return source


def _read(path: Path) -> bytes:
    """One byte more than is allowed at the most. A pipe is waited for only where a shell has opened it already."""
    mode = path.stat().st_mode
    is_open_pipe = stat.S_ISFIFO(mode) and path.is_relative_to("/dev")
    if not (stat.S_ISREG(mode) or is_open_pipe):
        raise OSError("Is a directory" if stat.S_ISDIR(mode) else "not a regular file")
    with path.open("rb") as file:
        return file.read(LARGEST_FILE_BYTES + 1)


def _compose(text: str) -> yaml.Node | None:
    """By libyaml, where PyYAML has it: ten times as fast. What it refuses is read again for the better message."""
    try:
        return yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.YAMLError:
        if len(text) > LARGEST_READ_TWICE:
            raise
        return yaml.compose(text, Loader=yaml.BaseLoader)


def plain_value(text: str) -> str | int | float | bool | None:
    """What a text without quotes stands for."""
    if NULL.fullmatch(text):
        return None
    if boolean := BOOLEAN.fullmatch(text):
        return boolean["true"] is not None
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if FLOAT.fullmatch(text) else text


class _Builder:
    """Turns nodes into data and notes their places in `source`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.above: list[yaml.Node] = []
        self.values = 0

    def build(self, node: yaml.Node, keys: Keys, dotted: str) -> Any:
        """Raises ConfigError where there are too many values, which a few lines of aliases can be."""
        self.values += 1
        if self.values > MOST_VALUES:
            place = f"{self.source.name}:{_place(node).line}:{_place(node).column}"
            raise ConfigError(f"{place}: {dotted}: more than {MOST_VALUES:,} values, counting what aliases repeat")
        self.source.values[keys] = _place(node)
        self.source.dotted[keys] = dotted
        if node in self.above:
            self._note(node, dotted, "", "an alias (*name) must not stand inside what it names")
            return None
        if node.tag not in PLAIN_TAGS:
            self._note(node, dotted, shown(node.tag), "a tag means nothing here; leave it out")
        self.above.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, keys, dotted)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, keys, dotted)
            return self._scalar(node, dotted)
        finally:
            self.above.pop()

    def _mapping(self, node: yaml.MappingNode, keys: Keys, dotted: str) -> dict[str | int, Any]:
        data: dict[str | int, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node, dotted) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str | int) or isinstance(key, bool):
                self._note(key_node, dotted, shown(key), "a key must be a name or a whole number")
                continue
            inner = f"{dotted}.{key}".removeprefix(".")
            if key in data:
                first = self.source.keys[(*keys, key)].line
                self._note(key_node, inner, "", f"given twice; the first is in line {first}")
                continue
            self.source.keys[(*keys, key)] = _place(key_node)
            data[key] = self.build(value_node, (*keys, key), inner)
        return data

    def _sequence(self, node: yaml.SequenceNode, keys: Keys, dotted: str) -> tuple[Any, ...]:
        entries: list[Any] = []
        seen: set[tuple[type, Any]] = set()
        for index, entry_node in enumerate(node.value):
            inner = f"{dotted}[{index}]"
            entry = self.build(entry_node, (*keys, index), inner)
            if isinstance(entry_node, yaml.ScalarNode) and (not keys or keys[-1] not in MAY_REPEAT):
                if (type(entry), entry) in seen:
                    self._note(entry_node, inner, shown(entry), "listed twice")
                seen.add((type(entry), entry))
            entries.append(entry)
        return tuple(entries)

    def _scalar(self, node: yaml.Node, dotted: str) -> str | int | float | bool | None:
        text: str = node.value
        if getattr(node, "style", None):  # in quotes, or a block of text
            return self._whole_characters(node, text, dotted)
        if INTEGER.fullmatch(text) and len(text.lstrip("+-0")) > MOST_DIGITS:
            rule = f"{TOO_LARGE}: it has more than {MOST_DIGITS} digits"
            self._note(node, dotted, shortened(text), rule)
            return int(text[:MOST_DIGITS])
        value = plain_value(text)
        if isinstance(value, float) and not math.isfinite(value):
            self._note(node, dotted, shortened(text), TOO_LARGE)
        return value

    def _whole_characters(self, node: yaml.Node, text: str, dotted: str) -> str:
        """JSON writes a character beyond U+FFFF as two halves, each escaped."""
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._note(node, dotted, shown(text), "must be valid Unicode text; this is half a character")
            return printable(text)

    def _note(self, node: yaml.Node, where: str, value: str, rule: str) -> None:
        self.source.problems.append(Problem(place=_place(node), where=where, value=value, rule=rule))


def _place(node: Any) -> Place:
    return Place(line=node.start_mark.line + 1, column=node.start_mark.column + 1)


def _short_name(path: Path) -> str:
    """Relative to the current folder where the file lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


def _syntax_error(name: str, text: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    line = (mark.line if mark else 0) + 1
    column = (mark.column if mark else 0) + 1
    lines = text.splitlines()
    written = lines[line - 1] if line <= len(lines) else ""
    hint = "; indent with blanks, not with tabs" if "\t" in written else ""
    context = f" ({error.context})" if error.context else ""
    return f"{name}:{line}:{column}: not valid YAML: {error.problem}{context}{hint}"
