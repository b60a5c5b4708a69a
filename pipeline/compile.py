"""`main.py compile`: what both frameworks make of the selected work on cards that are not here.

Each framework's `ahead.py` compiles one variant after the other, in a process of its own for each card. What it says of
a program is left under `compiled` in the results, where a submission looks it up. No time of a GPU is in any of it.
"""

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from pydantic import ValidationError
from rich.console import Console

from harness.errors import ConfigError, ProjectError, RecordError
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.experiments.presets import HEADLINE, expand_preset, preset_of
from harness.files import in_words, way_out, write_atomically
from harness.job.launch import command_of, python_of
from harness.paths import REPOSITORY, Results
from harness.plan import FRAMEWORKS, NEEDED_CAPABILITY, Framework, JobPlan, Launch, Measurement, Pair, Variant
from harness.results.environment import describe_git
from harness.results.program_facts import ProgramFacts, program_key, read_program_facts
from harness.work.cards import Card
from harness.work.declared import Mode, use_case
from pipeline.compile_words import DOCUMENT, PUBLISHED_FACTS, print_facts, publish_facts
from pipeline.doctor import ask
from pipeline.line_process import LineProcess

TIMEOUT_S = 900.0
"""From one program to the next: Inductor takes minutes for the large models."""
OWN_ENVIRONMENT = REPOSITORY / ".venv-gpu-compile"
"""Made by `make gpu-compile`: JAX with its plugin for CUDA, where the environment of jobs has none."""
LAST_WORDS_BYTES = 4_000
LEAST_AT_A_TIME, CPUS_OF_ONE = 2, 4
"""Processes, which take one or two GB each; a login node is not ours alone."""

Usual = Mapping[tuple[str, int, str], Variant]
"""Of a benchmark, use case and model: the variant whose batch size, precision and options are the usual ones."""


def compile_programs(
    selection: Selection,
    config_path: Path,
    results: Results,
    *,
    cards: Sequence[Card],
    preset: str | None,
    anew: bool,
    update_docs: bool = False,
    profile: Path | None = None,
) -> int:
    """Exit status: 0, or 1 where a program cannot be built.

    Args:
        profile: of the cluster, laid over the experiments.
        anew: compile what an earlier call has compiled of the same code by the same packages, too.

    Raises:
        ConfigError: as `python main.py` does.
        ProjectError: a framework cannot compile for a GPU here.
    """
    console, config = Console(highlight=False, soft_wrap=True), load_config(config_path, profile)
    pairs = selected(config, selection, preset)
    for pair in pairs:
        if pair.cell.devices > 1:
            console.print(f"{pair.cell.short_name}: left out: it takes several GPUs, and this compiles for one")
    usual = usual_variants(config)
    work = {card.name: list(programs_of(pairs, usual, card, everything=selection.full)) for card in cards}
    if not any(work.values()):
        raise ConfigError("nothing to compile: no program of what is selected can be compiled for one of these cards")
    named = {one.framework for measurements in work.values() for one in measurements}
    compiling = Compiling(
        interpreters(config, [one for one in FRAMEWORKS if one in named]), results, console, anew=anew
    )
    facts = compiling.run(work)
    print_facts(facts, cards, console)
    if update_docs:
        publish_facts(facts, cards)
        console.print(f"updated: {DOCUMENT}, from {PUBLISHED_FACTS}")
    return int(any(one.outcome == "failed" for one in facts))


# Which programs


def selected(config: Config, selection: Selection, preset: str | None) -> list[Pair]:
    """What the flags select, or a preset."""
    chosen = preset_of(config, preset, selection)
    if chosen is None:
        return expand(config, selection)
    return [pair for part in expand_preset(config, chosen, selection) for pair in part.pairs]


def usual_variants(config: Config) -> Usual:
    """As the headline has them."""
    if HEADLINE not in config.presets:
        return {}
    return {
        (pair.cell.benchmark, pair.cell.use_case, variant.model): variant
        for part in expand_preset(config, HEADLINE, Selection())
        for pair in part.pairs
        for plan in pair.jobs
        for variant in plan.variants
    }


def programs_of(pairs: Iterable[Pair], usual: Usual, card: Card, *, everything: bool) -> Iterator[Measurement]:
    """A measurement for each program, of all that an absent card lets one know: not of what a GPU tries out (autotuned
    modes), and not of precisions that the card lacks."""
    seen = set()
    for plan in (plan for pair in pairs for plan in pair.jobs if pair.cell.devices == 1):
        known = [
            one
            for one in plan.variants
            if _mode(plan, one).run_as != "max_autotune" and NEEDED_CAPABILITY.get(one.precision, 0) <= card.sm / 10
        ]
        for variant in known if everything else typical(plan, known, usual):
            measurement = next(plan.replicates([variant]))
            if (key := program_key(measurement)) not in seen:
                seen.add(key)
                yield measurement


def typical(plan: JobPlan, variants: Sequence[Variant], usual: Usual) -> list[Variant]:
    """Those that show something new: of each model one batch size, one precision and one value of each option, as the
    headline has them or the first; and of these each formulation as it is run first, the headline's in every way."""
    headline = use_case(plan.cell.use_case_name).headline.get(plan.framework)
    in_every_way = {_mode(plan, one).formulation for one in variants if one.execution_mode == headline}
    first_runs: dict[tuple[str, str], str] = {}
    kept = []
    like: dict[str, Variant] = {}
    for one in variants:
        like.setdefault(one.model, usual.get((plan.cell.benchmark, plan.cell.use_case, one.model), one))
    for one in variants:
        other = like[one.model]
        if (one.batch_size, one.precision, one.options) != (other.batch_size, other.precision, other.options):
            continue
        formulation = _mode(plan, one).formulation
        first = first_runs.setdefault((one.model, formulation), one.execution_mode)
        if formulation in in_every_way or one.execution_mode == first:
            kept.append(one)
    return kept


def _mode(plan: JobPlan, variant: Variant) -> Mode:
    return use_case(plan.cell.use_case_name).mode(plan.framework, variant.execution_mode)


# Who compiles them


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A framework's Python, as jobs start it, and the versions of its packages."""

    launch: Launch
    packages: Mapping[str, str] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        return command_of(self.launch, arguments, [REPOSITORY, Path(tempfile.gettempdir())], for_cpu=True)


PACKAGES = (
    "import json; from harness.results.installed import describe_installed as d; print(json.dumps(d()['packages']))"
)


def interpreters(config: Config, frameworks: Iterable[Framework]) -> dict[Framework, Interpreter]:
    """Raises ProjectError where a framework's environment is missing; of JAX it must have the plugin for CUDA."""
    found: dict[Framework, Interpreter] = {}
    for framework in frameworks:
        own = config.launch(framework)
        others = [Launch(python=str(OWN_ENVIRONMENT / "bin" / "python"))] if framework == "jax" else []
        needed = "jax-cuda" if framework == "jax" else framework
        for one in (own, *others):
            packages = packages_of(Interpreter(launch=one))
            if framework in packages and any(name.startswith(needed) for name in packages):
                found[framework] = Interpreter(launch=one, packages=packages)
                break
        else:
            raise ProjectError(f"{framework}: {python_of(own)} has no {WITHOUT[framework]}")
    return found


WITHOUT: Mapping[Framework, str] = {
    "jax": "JAX with the plugin for CUDA, which alone compiles for GPUs. `make gpu-compile` makes an environment for "
    "it, without a GPU; --framework torch compiles PyTorch's side alone",
    "torch": "PyTorch; --framework jax compiles JAX's side alone",
}


def packages_of(interpreter: Interpreter) -> Mapping[str, str]:
    """By name; empty where this Python cannot be started."""
    answer = ask(interpreter.command("-c", PACKAGES))
    return {} if "error" in answer else answer


class Compiling:
    """A process for each framework and card, some of them at a time; each program's facts are written as they come."""

    def __init__(
        self, interpreters: Mapping[Framework, Interpreter], results: Results, console: Console, *, anew: bool
    ) -> None:
        self._interpreters = interpreters
        self._results = results
        self._console = console
        self._anew = anew
        self._lock = threading.Lock()
        self._done, self._total, self._began = 0, 0, time.monotonic()
        git = describe_git(REPOSITORY)
        self._commit = git["commit"] if git["clean"] else None

    def run(self, work: Mapping[str, Sequence[Measurement]]) -> list[ProgramFacts]:
        """In the order of `work`, which is by card."""
        found: dict[tuple[str, str], ProgramFacts] = {}
        to_do: dict[tuple[Framework, str], list[Measurement]] = {}
        for card, measurements in work.items():
            for one in measurements:
                if facts := self._known(card, one):
                    found[card, program_key(one)] = facts
                else:
                    to_do.setdefault((one.framework, card), []).append(one)
        self._total = sum(map(len, to_do.values()))
        if found:
            self._console.print(f"{len(found)} programs are known from before, by this code and these packages")

        def of_process(framework: Framework, card: str) -> None:
            for one, facts in self._compiled(framework, card, to_do[framework, card]):
                self._keep(card, one, facts)
                with self._lock:
                    found[card, program_key(one)] = facts
                    self._say(card, one, facts)

        with ThreadPoolExecutor(max(LEAST_AT_A_TIME, (os.cpu_count() or 1) // CPUS_OF_ONE)) as pool:
            for future in [pool.submit(of_process, *one) for one in to_do]:
                future.result()
        return [found[card, program_key(one)] for card, measurements in work.items() for one in measurements]

    def _made_by(self, framework: Framework) -> dict[str, str]:
        return dict(self._interpreters[framework].packages) | ({"commit": self._commit} if self._commit else {})

    def _known(self, card: str, measurement: Measurement) -> ProgramFacts | None:
        """None where it failed, the code or a package is another, or files are edited: then nobody knows."""
        path = self._results.compiled(card) / f"{program_key(measurement)}.json"
        if self._anew or self._commit is None or not path.exists():
            return None
        try:
            facts = read_program_facts(path)
        except RecordError:
            return None  # of another release of this project; it is made again
        is_the_same = facts.made_by == self._made_by(measurement.framework)
        return facts if is_the_same and facts.outcome != "failed" else None

    def _keep(self, card: str, measurement: Measurement, facts: ProgramFacts) -> None:
        path = self._results.compiled(card) / f"{program_key(measurement)}.json"
        with way_out(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, facts.model_dump_json(), replace=True)

    def _say(self, card: str, measurement: Measurement, facts: ProgramFacts) -> None:
        self._done += 1
        left_s = (time.monotonic() - self._began) / self._done * (self._total - self._done)
        what = f"{card} {measurement.framework} {measurement.cell.short_name} {measurement.variant.key}"
        how = f"{facts.kernels} kernels" if facts.outcome == "ok" else facts.outcome
        self._console.print(f"[{self._done}/{self._total}, {left_s / 60:.0f} min left] {what}: {how}", markup=False)

    def _compiled(
        self, framework: Framework, card: str, measurements: Sequence[Measurement]
    ) -> Iterator[tuple[Measurement, ProgramFacts]]:
        """A process that ends costs the program at hand; another one goes on with the rest."""
        left = list(measurements)
        command = self._interpreters[framework].command("-m", f"{framework}_runner.ahead")
        while left:
            with TemporaryFile() as log:
                task = {"card": card, "measurements": [one.model_dump(mode="json") for one in left]}
                said = LineProcess(
                    command,
                    log=log,
                    timeout_s=TIMEOUT_S,
                    environment={"OMP_NUM_THREADS": "1", **os.environ},  # both frameworks share this machine's cores
                    task=json.dumps(task),
                )
                count = 0
                for line in said:
                    try:
                        answer = ProgramFacts.model_validate_json(line)
                    except ValidationError as error:
                        said.ended = f"its answer is no description of a program: {in_words(error)}"
                        break
                    yield left[count], answer.model_copy(update={"made_by": self._made_by(framework)})
                    count += 1
                left = left[count:]
                if left:
                    ended = left.pop(0)
                    yield (
                        ended,
                        ProgramFacts(
                            framework=framework,
                            card=card,
                            benchmark=ended.cell.benchmark,
                            use_case=ended.cell.use_case,
                            variant=ended.variant,
                            outcome="failed",
                            reason=f"{said.ended}: {_last_words(log)}",
                        ),
                    )


def _last_words(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LAST_WORDS_BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"
