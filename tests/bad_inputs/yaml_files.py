"""experiments.yaml with something wrong: each key and each value of two configurations, bombs, and odd files."""

import os
import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml

from harness.errors import ConfigError
from harness.experiments.load import load_config
from harness.paths import REPOSITORY
from tests.bad_inputs.campaign import Case, Cases, judged_text

EVERY_KEY = """\
project: trial
data_dir: data
cluster:
  partition: gpu
  account: mine
  time_limit_minutes: 30
  cpus_per_task: 4
  memory_gb: 16
  sbatch_options: [--qos=short, --mail-type END]
  frameworks:
    jax: {python: /opt/jax/bin/python, setup: [module load cuda]}
    torch: {python: /opt/torch/bin/python}
pairing: together
gpus:
  any: {}
  a100: {gres: a100, per_node: 4, partition: big, constraint: "a100&nvlink", sbatch_options: [--exclusive]}
matrix:
  gpus: [any, a100]
  benchmarks: [mnist]
  use_cases: [1, 3]
  exclude:
    - {gpu: a100, benchmark: mnist, use_case: 3}
benchmarks:
  mnist: {models: [cnn], batch_sizes: {train: [32]}, settings: {train: {epochs: 3}}}
  synthetic: {models: [mlp], sizes: {in_features: 64}}
runs: {jax: [jit], torch: [eager, compiled]}
use_cases:
  1:
    name: train
    devices: 1
    nodes: 1
    batch_sizes: [64]
    precisions: [fp32]
    formulations: {jax: [step: [jit, tuned]], torch: [step]}
    settings: {epochs: 2, learning_rate: 1e-3, momentum: 0.9, weight_decay: 0, target_metric: 0.5}
    measurement: {max_blocks: 50}
  3:
    name: per_sample_gradients
    batch_sizes: [16, 32]
    precisions: [fp32, bf16]
    formulations: {jax: [vmap], torch: [vmap: [eager], loop]}
    options: {output: [norms, full]}
    settings: {chunk_size: 8, clip_norm: 1.0}
    exclude:
      - {formulation: loop, run: eager, model: mnist/cnn, batch_size: 32, framework: torch, options: {output: full}}
measurement: {replicates: 3, seed: 0, warmup_s: 2.0, min_blocks: 20, target_noise: 0.005, max_time_s: 30.0}
quick:
  measurement: {replicates: 1, max_blocks: 30}
  benchmarks:
    mnist: {batch_sizes: {train: [8]}, runs: {torch: [eager]}, exclude: [{run: compiled}]}
  precisions: [fp32]
  runs: {jax: [jit], torch: [eager, compiled]}
  use_cases:
    3: {batch_sizes: [16], formulations: {torch: [vmap: [eager]]}, options: {output: [full]}}
presets:
  short:
    about: a look
    quick: true
    data: sample
    parts:
      - {use_cases: [1], benchmarks: [mnist], formulations: [step], runs: [jit, eager], precisions: [fp32]}
      - {use_cases: [3], frameworks: [torch], execution_modes: [vmap.eager], models: [cnn], options: {output: full}}
  headline: {about: what most run, headline: true, parts: [{use_cases: [3], batch_sizes: [16], settings: {seed: 1}}]}
wandb: {mode: auto, project: mine, entity: team, tags: [a]}
"""
NEVER_RIGHT = (
    *(r'"a\u0007b"', r'"a\0b"', r'"a\eb"', r'"\ud800"', '"two\\nlines"', "1e308", "-1e308", "9" * 400, "9" * 5000),
    *("[[1]]", "{a: 1}", "!!python/object/apply:os.system [touch PWNED]", "!foo x", "!!timestamp 2026-11-20", "1e999"),
    *("[a", "{a", '"a', "*nowhere", "-7"),
)
"""In the place of any value: of the wrong type, out of all bounds, or no text for a script."""
MAY_BE_RIGHT = (
    *("", "~", "true", "no", "0", "1", "-0", "0x10", "1_0", "1:30", "٣", "３", ".inf", ".nan", "1e-400", "0.5", "2.0"),
    *("[]", "{}", "[1, 1]", "é", "😀", r'"\ud83d\ude00"', '"$(touch PWNED)"', '"`touch PWNED`"', "$HOME/x"),
    *("~nosuchuser/x", '""', '" "', '"--array=0-9"', '"--hold --array=0-9"', "--arr=0-9", "--wrap=x", "--", "fi"),
    *('"exit 0"', "a b", "%j"),
)
PLACE = re.compile(r"[^\n]*experiments\.yaml:\d+:\d+: \S.*")
LINE_OF_A_MESSAGE = re.compile(r"\S.*: \S.*")


def cases(draw: random.Random, folder: Path) -> Cases:
    path = folder / "experiments.yaml"
    for name, text, refused in _texts(draw):
        yield Case(name, partial(_judged, path, text.encode("utf-8", "surrogatepass"), refused))
    for name, content in _files():
        yield Case(name, partial(_judged, path, content, True, needs_place=False))
    for name in ("/dev/zero", "/dev/urandom", "/dev/null", str(folder), "/proc/self/mem", str(folder / "fifo")):
        yield Case(name, partial(_judged_path, Path(name)))


def _texts(draw: random.Random) -> Iterator[tuple[str, str, bool]]:
    real = (REPOSITORY / "experiments.yaml").read_text()
    for which, text, at_most in (("every key", EVERY_KEY, 10_000), ("the project's", real, 40)):
        changes = [
            (f"{which}, line {start.line + 1}: {new[:40]}", text[: start.index] + new + text[end.index :], refused)
            for start, end, is_key in _scalars(text)
            for new, refused in _replacements(draw, text[start.index : end.index], is_key)
        ]
        yield from changes if len(changes) <= at_most else draw.sample(changes, at_most)
    lines = EVERY_KEY.splitlines(keepends=True)
    for number, line in enumerate(lines):
        yield f"line {number + 1} twice", "".join([*lines[: number + 1], *lines[number:]]), False
        yield f"without line {number + 1}", "".join([*lines[:number], *lines[number + 1 :]]), False
        yield f"line {number + 1} further in", "".join([*lines[:number], "   " + line, *lines[number + 1 :]]), False
        cut = draw.randrange(1, len(line))
        yield f"cut in line {number + 1}", "".join(lines[:number]) + line[:cut], False


def _scalars(text: str) -> Iterator[tuple[yaml.Mark, yaml.Mark, bool]]:
    """Beginning and end of each key and plain value."""

    def walk(node: yaml.Node, is_key: bool) -> Iterator[tuple[yaml.Mark, yaml.Mark, bool]]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield from walk(key, True)
                yield from walk(value, False)
        elif isinstance(node, yaml.SequenceNode):
            for entry in node.value:
                yield from walk(entry, False)
        else:
            yield node.start_mark, node.end_mark, is_key

    yield from walk(yaml.compose(text, Loader=yaml.BaseLoader), False)


def _replacements(draw: random.Random, old: str, is_key: bool) -> Iterator[tuple[str, bool]]:
    """The new text, and whether it must be refused."""
    if is_key:
        yield draw.choice([f"{old}x", old[:-1] or "x", old.upper(), "7", '""', "null", "1.5", "true"]), False
        yield draw.choice([r'"a\eb"', "[1]", "{a: 1}", "!foo x", '"\\ud800"']), True
        return
    for new in draw.sample(NEVER_RIGHT, 2):
        yield new, True
    for new in draw.sample(MAY_BE_RIGHT, 1):
        yield new, False


def _files() -> Iterator[tuple[str, bytes]]:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 28))
    yield "a bomb of aliases", bomb.encode()
    yield "a bomb of maps", bomb.replace("[", "{p: ").replace(", ", ", q: ").replace("]", "}").encode()
    for opening in ("[", "{a: ", "- ", "? "):
        yield f"{opening} 1,000 times", ("project: " + opening * 1000).encode()
        yield f"{opening} 100,000 times", ("project: " + opening * 100_000).encode()
    yield "blocks in blocks", "".join(" " * n + "a:\n" for n in range(1000)).encode()
    yield "too large", EVERY_KEY.encode() + b"# " + b"x" * 50_000_000
    yield "150,000 numbers", f"project: [{', '.join(map(str, range(150_000)))}]".encode()
    exclude = "".join(f"    - {{gpu: g{number}}}\n" for number in range(20_000))
    yield "20,000 exclusions", EVERY_KEY.replace("  exclude:\n", f"  exclude:\n{exclude}", 1).encode()
    sizes = EVERY_KEY.replace("batch_sizes: [64]", f"batch_sizes: {[*range(1, 50_001)]}")
    yield "50,000 batch sizes", sizes.replace("{train: [32]}", "{}").encode()
    yield "a million replicates", EVERY_KEY.replace("replicates: 3", "replicates: 1000000").encode()
    yield "no text", bytes(range(256))
    yield "UTF-16", EVERY_KEY.encode("utf-16-le")
    yield "latin-1", EVERY_KEY.replace("trial", "é").encode("latin-1")
    yield "zeros", bytes(1000)
    for name in ("", "\n", "null", "7", "[]", "text", "---\n---\n", "%YAML 9.9\n---\na: 1\n", "\ufeff", "\t"):
        yield repr(name), name.encode()


def _judged(path: Path, content: bytes, refused: bool, *, needs_place: bool = True) -> str | None:
    path.write_bytes(content)
    try:
        load_config(path)
    except ConfigError as error:
        lines = str(error).splitlines()
        for line in lines:
            if needs_place and not PLACE.fullmatch(line):
                return f"a message without its place: {line[:200]!r}"
            if not LINE_OF_A_MESSAGE.fullmatch(line) or "Input should" in line or "pydantic" in line:
                return f"a message without place, value or rule: {line[:200]!r}"
            if len(line) > 1500:
                return f"a message of {len(line)} characters"
        return judged_text("the terminal", str(error)) or (None if lines else "refused without a word")
    return "accepted" if refused else None


def _judged_path(path: Path) -> str | None:
    if path.name == "fifo" and not path.exists():
        os.mkfifo(path)
    try:
        load_config(path)
    except ConfigError:
        return None
    return "accepted"
