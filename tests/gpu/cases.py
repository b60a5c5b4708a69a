"""Which programs are tried on a real GPU: every declared mode of every use case, in each precision of a GPU.

Pure. pytest and the processes that run the cases (tests/gpu/group.py) read this alike.
"""

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from harness.plan import FRAMEWORKS, Framework, Frozen, Precision
from harness.work.applies import why_not
from harness.work.declared import Mode, benchmark, use_case, use_case_names
from tests.made.sessions import made_up

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "tf32")
"""In this order, as the last one takes longest: its autotuned modes are tried, too."""
MODELS = (
    ("mnist", "cnn"),
    ("synthetic", "convnet"),
    ("synthetic", "mlp"),
    ("synthetic", "linear"),
    ("text", "mlp"),
    ("imagenet100", "mobilenet_v3_small"),
    ("imagenet100", "vit_b_16"),
    ("molpcba", "gcn"),
)
"""Small, and those with convolutions first; a case takes the first that its use case and mode can do. The last three
have depthwise convolutions, attention and sums over neighbours."""
BATCH_SIZE = 16
"""Two chunks of the chunked modes."""
MODELS_AT_ONCE = 3
CHEAPEST_FIRST = ("eager", "compiled", "max_autotune")
AUTOTUNED_IN: Precision = "tf32"
"""max_autotune takes ten times as long as the rest, and tf32 is where its kernels were seen to go wrong."""
ALL = "GPU_TESTS_ALL"
"""Set to 1: autotuned modes in every precision."""


@dataclass(frozen=True, kw_only=True)
class Case:
    framework: Framework
    use_case: str
    mode: str
    precision: Precision

    @property
    def group(self) -> str:
        """Those of one process: JAX knows one precision for a whole process, and a framework is imported once."""
        return f"{self.framework}-{self.use_case}-{self.precision}"

    @property
    def name(self) -> str:
        return f"{self.group}-{self.mode}"

    @property
    def declared(self) -> Mode:
        return use_case(self.use_case).mode(self.framework, self.mode)


def all_cases() -> list[Case]:
    """On one device. By group; within it the cheapest to compile come first, so that what a time limit cuts off is the
    dearest."""
    cases = (
        Case(framework=framework, use_case=name, mode=mode.name, precision=precision)
        for precision, name, framework in itertools.product(PRECISIONS, use_case_names(), FRAMEWORKS)
        for mode in sorted(use_case(name).modes[framework], key=lambda mode: CHEAPEST_FIRST.index(mode.run_as))
    )
    return [case for case in cases if next(_can_do(case), None) is not None]


def left_out(case: Case) -> str | None:
    """Why a case is not tried unless everything is asked for."""
    if case.declared.run_as != "max_autotune" or case.precision == AUTOTUNED_IN or os.environ.get(ALL) == "1":
        return None
    return f"autotuning in {case.precision} as well takes long: {ALL}=1 tries it"


def models_of(case: Case) -> Iterator[tuple[str, str]]:
    """Benchmark and model, for as long as the runner refuses them."""
    options = options_of(case)
    return (names for names in MODELS if _makes_sense(case, *names, options))


def options_of(case: Case) -> dict[str, Any]:
    """The first that the mode can do; three models at once."""
    own = {"models": MODELS_AT_ONCE} if "models" in use_case(case.use_case).options.model_fields else {}
    return next(_can_do(case)) | own


def _can_do(case: Case) -> Iterator[dict[str, Any]]:
    every = itertools.product(MODELS, combinations(use_case(case.use_case).options))
    return (options for names, options in every if _makes_sense(case, *names, options))


def _makes_sense(case: Case, data: str, model: str, options: Mapping[str, Any]) -> bool:
    of = benchmark(data)
    found = why_not(use_case(case.use_case), of, of.model(model), case.declared, case.precision, options, devices=1)
    return found is None


def combinations(fields: type[Frozen]) -> Iterator[dict[str, Any]]:
    first = made_up(fields)
    values = [get_args(fields.model_fields[name].annotation) or (value,) for name, value in first.items()]
    return (dict(zip(first, chosen, strict=True)) for chosen in itertools.product(*values))
