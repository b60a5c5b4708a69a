"""The command line: one parser and one function for each command.

Heavy packages are imported only where they are needed, so that --help and a mistyped flag answer at once. No framework
is ever imported here.
"""

import argparse
import errno
import io
import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

REPOSITORY = Path(__file__).resolve().parent
EXPERIMENTS = REPOSITORY / "experiments.yaml"
if str(REPOSITORY) not in sys.path:  # with PYTHONSAFEPATH Python does not put it there
    sys.path.insert(0, str(REPOSITORY))

from harness.errors import ProjectError  # noqa: E402
from harness.missing_package import exit_without_package  # noqa: E402
from harness.printable import is_one_line, printable, shortened, wrapped  # noqa: E402
from harness.removed import answer, answers_to_flags  # noqa: E402
from harness.suggest import nearest  # noqa: E402

try:
    from harness.experiments.flags import add_narrowing_flags, name, name_and_value
except ModuleNotFoundError as error:
    exit_without_package(error)

if TYPE_CHECKING:
    from harness.experiments.expand import Selection
    from harness.experiments.model import Config
    from harness.paths import Results
    from harness.plan import Pairing
    from pipeline.measure import JobFlags

USAGE_ERROR = 2
INTERRUPTED = 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)

COMMANDS = {
    "status": "all jobs: what each does, time left, why one failed; ends them",
    "report": "compare JAX with PyTorch: a page, tables, CSV, LaTeX, figures",
    "data": "download and verify data sets and pretrained weights; jobs never do",
    "doctor": "check this machine: Python, both frameworks, GPU, Slurm, W&B, data",
    "check": "do both compute the same with this model? In seconds, nothing timed",
    "calibrate": "how often the verdict is right: a framework against itself",
}
DESCRIPTION = """\
Measures the same work in JAX and in PyTorch, each in its own best way, through Slurm or on this machine.
Without a command, it submits measurements: what the flags select, or the preset `headline`.

{use_cases_and_benchmarks}

examples:
  python main.py doctor                           check this machine
  python main.py data                             download the data sets, once
  python main.py --quick --data sample --wait     a short test run
  python main.py --benchmark cifar10 --dry-run    what that would take
  python main.py                                  the headline: about an hour
  python main.py status --watch                   follow all jobs

commands (`python main.py COMMAND --help` lists the flags of each):
{commands}
"""

REPORT_DESCRIPTION = """\
Compares JAX with PyTorch in all records, with an interval for every ratio. Prints tables, and writes one HTML page
(it needs no network), three CSV files, LaTeX tables, and figures as SVG and PDF to the folder `report` of the results.
"""


class HelpAll(argparse.Action):
    """`--help-all`: each flag with its explanation."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: Any, **_named: Any) -> None:
        assert isinstance(parser, Parser)
        parser.print_help_of_all()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Answers a wrong flag or value with the nearest valid one."""

    def __init__(self, prog: str, description: str | Callable[[], str]) -> None:
        """`description`: a function where it is read from files, for which only who asks for help has to wait."""
        self._describe = description if callable(description) else lambda: description
        self._group: argparse._ArgumentGroup | None = None
        super().__init__(
            prog=prog,
            usage=f"{prog} [flags]" if " " in prog else f"{prog} [command] [flags]",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def in_group(self, title: str) -> None:
        """All flags that are added from now on stand under this title; `--help` then only names them."""
        if self._group is None:
            explain = "explain every flag"
            self.add_argument("--help-all", action=HelpAll, nargs=0, dest=argparse.SUPPRESS, help=explain)
        self._group = self.add_argument_group(title)

    def add_argument(self, *flags: str, **options: Any) -> argparse.Action:
        """To the group at hand."""
        group = getattr(self, "_group", None)
        return group.add_argument(*flags, **options) if group else super().add_argument(*flags, **options)

    def format_help(self) -> str:
        self.description = in_columns(self._describe())
        if self._group is None:
            return super().format_help()
        lines = ["", f"flags (`python {self.prog} --help-all` explains them):"]
        for group in self._action_groups:
            names = [as_typed(one) for one in group._group_actions if one.help != argparse.SUPPRESS]
            if group.title and names and group not in (self._positionals, self._optionals):
                lines.append(wrapped(f"  {group.title:<16}{'  '.join(names)}", indent=" " * 18))
        return f"{self.format_usage()}\n{self.description}" + "\n".join(lines).replace(UNBROKEN, " ") + "\n"

    def print_help_of_all(self) -> None:
        self.description = in_columns(self._describe())
        print(super().format_help(), end="")

    def two_spellings(self, flag: str, **options: Any) -> None:
        """Adds `--use_case` and, without mention in the help, `--use-case`. A flag of one word has one."""
        self.add_argument(flag, **options)
        other = flag[:2] + (flag[2:].replace("_", "-") if "_" in flag else flag[2:].replace("-", "_"))
        if other == flag:
            return
        options["dest"] = flag[2:].replace("-", "_")
        options["help"] = argparse.SUPPRESS
        self.add_argument(other, **options)

    def switch(self, flag: str, explain: str) -> None:
        self.two_spellings(flag, action="store_true", help=explain)

    def repeatable(self, flag: str, explain: str, type_: Callable[[str], object] = name, metavar: str = "NAME") -> None:
        self.two_spellings(flag, action="append", type=type_, metavar=metavar, help=explain)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        for word in argv:
            if word.startswith("--") and word.endswith("=--"):  # argparse would take it for no value at all
                self.error(f"{shortened(word)}: a value is missing")
        if removed := answers_to_flags(argv, self._option_string_actions):
            self.error(removed)
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            # Behind a wrong flag stands its value, about which there is nothing to say.
            wrong = [word for word in unknown if word.startswith("-")] or unknown
            self.error("; ".join(map(self._about_unknown, wrong)))
        return arguments

    def _about_unknown(self, word: str) -> str:
        if word in COMMANDS:
            return f"{word}: a command comes first: python main.py {word} ..."
        if removed := answer(word):
            return removed
        if not word.startswith("-"):
            return f"{shortened(word) or repr(word)}: not expected here"
        flags = [flag for action in self._actions for flag in action.option_strings if action.help != argparse.SUPPRESS]
        close = nearest(word.partition("=")[0], flags)
        hint = f"did you mean {close}?" if close else f"valid: {', '.join(flags)}"
        return f"{shortened(word)}: there is no such flag; {hint}"

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Overrides argparse's, which lists the choices but not the nearest."""
        if action.choices is None or value in action.choices:
            return
        close = nearest(value, action.choices)
        hint = f"; did you mean {close}?" if close else ""
        raise argparse.ArgumentError(
            action, f"{shortened(str(value))}: valid: {', '.join(map(str, action.choices))}{hint}"
        )

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {printable(message)}\n`python {self.prog} --help` says what is valid.\n")


UNBROKEN = "\0"
"""Between a flag and its value: not a place for a line to end."""


def as_typed(action: argparse.Action) -> str:
    """`--data real|sample`"""
    value = action.metavar or "|".join(map(str, action.choices or ()))
    return f"{action.option_strings[0]}{UNBROKEN}{value}" if value else action.option_strings[0]


def in_columns(text: str) -> str:
    """The paragraphs that are prose, and no list, in lines that fit a terminal."""
    paragraphs = text.rstrip("\n").split("\n\n")
    return "\n\n".join(one if "\n  " in one else wrapped(" ".join(one.split())) for one in paragraphs) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 where a cell failed, 2 where the user has something to correct."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 costs some letters
    words = list(sys.argv[1:] if argv is None else argv)
    has_command = bool(words) and not words[0].startswith("-")
    called = words.pop(0) if has_command else ""
    if has_command and called not in COMMANDS:
        if removed := answer(called):
            run_parser().error(removed)
        close = nearest(called, COMMANDS)
        hint = f"; did you mean {close}?" if close else ""
        run_parser().error(
            f"{shortened(called) or repr(called)}: there is no such command; valid: {', '.join(COMMANDS)}{hint}"
        )
    parser, command = COMMAND_PARSERS[called]
    arguments = parser().parse(words)
    try:
        status = command(arguments)
        sys.stdout.flush()  # here, where a broken pipe is caught, and not while Python exits
        return status
    except ProjectError as error:
        print(printable(str(error)), file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()  # the reader of a pipe, such as `head`, has seen enough
        return 0
    except OSError as error:
        where = printable(f"{error.filename or 'the output'}: {error.strerror or error}")
        has_way_out = error.filename and error.errno in NO_ROOM
        way_out = ". Free space or choose another folder with --results DIR." if has_way_out else ""
        print(where + way_out, file=sys.stderr)
        if error.filename is None:
            _close_output()
        return USAGE_ERROR


def _close_output() -> None:
    """What is still to be written goes nowhere; Python would complain about it again while it exits."""
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


def run_description() -> str:
    from harness.experiments.overview import in_words

    commands = "\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items())
    return DESCRIPTION.format(use_cases_and_benchmarks=in_words(EXPERIMENTS), commands=commands)


def run_parser() -> Parser:
    parser = Parser("main.py", run_description)
    parser.in_group("which cells")
    add_cell_flags(parser, by_name="train, ... on one GPU")
    parser.add_argument(
        "--framework", action="append", type=name, metavar="NAME", help="only jax or torch (default: both)"
    )
    parser.add_argument(
        "--preset",
        type=name,
        metavar="NAME",
        help="a selection of experiments.yaml by name: headline, demo, full, ... (default: headline, where none of "
        "--benchmark, --use_case and --quick is given)",
    )
    parser.in_group("which variants")
    add_narrowing_flags(parser.two_spellings, pairing=True)
    parser.in_group("how")
    parser.add_argument("--quick", action="store_true", help="a short test run: few steps, one replicate")
    parser.add_argument(
        "--full",
        action="store_true",
        help="measure every execution mode in all replicates; else a screening measures each once and short, and only "
        "those that can still be the fastest go on, with the headline mode of each framework",
    )
    parser.add_argument(
        "--data",
        choices=("real", "sample"),
        default="real",
        help="sample: a small data set that needs no download; never compared with real data (default: real)",
    )
    parser.in_group("jobs")
    add_job_flags(parser)
    parser.in_group("files")
    add_config_flag(parser)
    add_results_flag(parser)
    return parser


def run_command(arguments: argparse.Namespace) -> int:
    from harness.experiments.narrow import take_pairing
    from pipeline.measure import measure

    pairing = take_pairing(arguments)
    return measure(selection_of(arguments), job_flags_of(arguments, pairing), preset=arguments.preset)


def parser_of(command: str, more: str = "") -> Parser:
    """Its help begins with what the command is for."""
    return Parser(f"main.py {command}", f"{COMMANDS[command]}.\n\n{more}")


def status_parser() -> Parser:
    parser = parser_of("status")
    parser.switch("--watch", "update the lines until all jobs are over")
    parser.switch("--cancel", "end this project's jobs, by their ids")
    add_results_flag(parser)
    return parser


def status_command(arguments: argparse.Namespace) -> int:
    from pipeline.watching.cancel import cancel
    from pipeline.watching.follow import show_status

    if arguments.cancel and arguments.watch:
        status_parser().error("--cancel ends the jobs that --watch follows; give one of the two")
    results = read_results_that_exist(arguments)
    return cancel(results) if arguments.cancel else show_status(results, watch=arguments.watch)


def report_parser() -> Parser:
    parser = Parser("main.py report", REPORT_DESCRIPTION)
    parser.switch("--no-figures", "draw no figure files, which is faster; the page still has its charts")
    parser.switch(
        "--update-readme",
        "update the results of README.md, from results/published unless --results is given; records of quick runs are "
        "never used",
    )
    parser.add_argument(
        "--publish",
        type=name,
        metavar="NAME",
        help="copy the full records to results/published/NAME, without names of machines, accounts and folders, and "
        "update README.md",
    )
    add_cell_flags(parser, gpu="only this GPU: its name in experiments.yaml, or part of the device name; repeatable")
    parser.add_argument(
        "--results",
        type=path,
        action="append",
        metavar="DIR",
        help="the folder with the records (default: results)",
    )
    parser.add_argument(
        "--baseline",
        type=path,
        metavar="DIR",
        help="compare each framework with itself instead: with its records of another results folder",
    )
    parser.two_spellings(
        "--fail-above",
        type=percentage,
        metavar="PERCENT",
        help="with --baseline: exit with status 1 if something is slower by more than this, such as 3%%, with 95 %% "
        "confidence: the whole interval lies beyond it",
    )
    return parser


def report_command(arguments: argparse.Namespace) -> int:
    from harness.paths import PUBLISHED, README, Results
    from pipeline.report import command

    if len(arguments.results or ()) > 1:
        raise ProjectError("--results: a report is about one results folder; make a report of each folder")
    default = PUBLISHED if arguments.update_readme and not arguments.publish else REPOSITORY / "results"
    results = read_results_that_exist(argparse.Namespace(results=(arguments.results or [default])[0]))
    if (arguments.publish or arguments.update_readme) and arguments.baseline:
        raise ProjectError("--publish and --update-readme cannot be combined with --baseline")
    if arguments.fail_above is not None and arguments.baseline is None:
        raise ProjectError("--fail-above: goes with --baseline, which names what to compare with")
    options = command.ReportOptions(
        figures=not arguments.no_figures,
        gpus=tuple(arguments.gpu or ()),
        benchmarks=tuple(arguments.benchmark or ()),
        use_cases=tuple(arguments.use_case or ()),
        readme=README if arguments.update_readme else None,
        baseline=baseline_of(arguments.baseline),
        fail_above=arguments.fail_above,
    )
    if arguments.publish is not None:
        from pipeline.report.publish import publish

        made = publish(results, arguments.publish, PUBLISHED)
        print(f"Published: {made.root}. What it holds is now everybody's: look before you commit it.")
        results, options = Results(root=PUBLISHED), replace(options, readme=README, figures=False)
    return command.report_command(results, options)


def baseline_of(folder: Path | None) -> "Results | None":
    if folder is None:
        return None
    if not folder.is_dir():
        raise ProjectError(f"--baseline {folder}: is no folder; valid: the path of another results folder")
    return read_results(argparse.Namespace(results=folder))


DATA_DESCRIPTION = """\
ImageNet has to be brought by hand, as its terms are yours to accept; `--benchmark imagenet100` says how. The weights
are torchvision's. What is needed on the disk is said before anything is written. An interrupted run leaves nothing that
could be taken for whole.

exit status: 0, 1 where something could not be had or is damaged
"""


def data_parser() -> Parser:
    parser = parser_of("data", DATA_DESCRIPTION)
    parser.repeatable("--benchmark", "only the data of this benchmark; repeatable")
    parser.switch("--verify", "bring nothing: read all that is here, and compare it with its checksums")
    add_config_flag(parser)
    return parser


def data_command(arguments: argparse.Namespace) -> int:
    from pipeline.data import fetch_command, verify_command

    config, benchmarks = read_config(arguments), tuple(arguments.benchmark or ())
    if arguments.verify:
        return verify_command(config, benchmarks)
    return fetch_command(config, benchmarks)


DOCTOR_DESCRIPTION = """\
--compute finds what only shows when something runs: a broken ptxas, cuDNN, C compiler, NCCL or driver. Each framework
compiles and computes a matrix product, a convolution, a gradient and, on several devices, an all-reduce, in a process
of its own with a time-out, and numpy says what is right. Run it where jobs run: on a GPU's node.

example:
  srun --gres=gpu:2 --cpus-per-task=8 --time=15 \\
      python main.py doctor --compute --executor local

exit status: 0, 1 where a job could not run as experiments.yaml stands
"""


def doctor_parser() -> Parser:
    parser = parser_of("doctor", DOCTOR_DESCRIPTION)
    parser.switch(
        "--compute", "also compile and compute in each framework, and compare with numpy: some minutes at most"
    )
    parser.add_argument(
        "--executor",
        choices=("auto", "local"),
        default="auto",
        help="local: jobs are to run on this machine, so Slurm is not asked (default: auto)",
    )
    add_config_flag(parser)
    add_results_flag(parser)
    return parser


def doctor_command(arguments: argparse.Namespace) -> int:
    from pipeline.doctor import doctor

    return doctor(
        read_config(arguments),
        read_results(arguments),
        slurm=arguments.executor != "local",
        compute=arguments.compute,
    )


CHECK_DESCRIPTION = """\
Both frameworks run the model on a small batch from the same weights; outputs, loss, gradients and five optimizer
steps are compared, as every job does before it times anything. Nothing is recorded. On this machine, on sample data.

examples:
  python main.py check --benchmark cifar10 --model resnet18
  python main.py check --benchmark enwik8 --use_case per_sample_gradients

exit status: 0 both compute the same, 1 they do not, and the first difference is named
"""


def check_parser() -> Parser:
    parser = parser_of("check", CHECK_DESCRIPTION)
    parser.add_argument("--benchmark", action="append", type=name, required=True, metavar="NAME", help="mnist, ...")
    parser.repeatable("--use_case", "1, 3, ..., or by name (default: 1); repeatable", use_case, "N")
    parser.repeatable("--model", "only this model; repeatable")
    add_config_flag(parser)
    # The gate has its own batch, precision and modes.
    of_the_gate = dict.fromkeys(("batch_size", "precision", "formulation", "run", "execution_mode", "option", "set"))
    parser.set_defaults(data="sample", quick=True, framework=None, gpu=None, force=False, **of_the_gate)
    return parser


def check_command(arguments: argparse.Namespace) -> int:
    from pipeline.check import check

    arguments.use_case = arguments.use_case or [1]
    return check(read_config(arguments), selection_of(arguments))


CALIBRATE_DESCRIPTION = """\
Each round measures one framework four times, in a random order, each in a fresh process: twice as it is, and with a
slowdown of 2 and 5 % planted in the timed step. The rounds are then compared as a report compares JAX with PyTorch. In
turns each slowdown has a base of its own, so a round has six processes. Of what the flags select, the first variant is
measured. Jobs do this, like any other: `status` shows them, `status --cancel` ends them, and the same command goes on
where they were. It wants a quiet machine.

examples:
  python main.py calibrate --wait            20 rounds of each, then the table
  python main.py calibrate --gpu h100        on a GPU of experiments.yaml
  python main.py calibrate --rounds 40       go on to 40 rounds
  python main.py calibrate --set pairing=interleaved
  python main.py calibrate --table           what was found so far
"""


def calibrate_parser() -> Parser:
    parser = parser_of("calibrate", CALIBRATE_DESCRIPTION)
    parser.repeatable("--gpu", ONLY_GPU)
    parser.add_argument("--benchmark", nargs=1, type=name, default=["mnist"], metavar="NAME", help="default: mnist")
    parser.two_spellings("--use_case", nargs=1, type=use_case, default=[1], metavar="N", help="default: 1")
    parser.repeatable("--framework", ONLY_FRAMEWORK)
    add_narrowing_flags(parser.two_spellings, settings=False)
    rounds = whole_number("a table takes 4 rounds at the least, and 1000 at the most", least=4, most=1000)
    parser.add_argument("--rounds", type=rounds, metavar="N", help="default: 20; with --quick 4")
    parser.repeatable(
        "--set",
        "what is calibrated: pairing=together (processes of a framework one after the other), interleaved (two at "
        "once, which take turns) or auto (interleaved on a CPU, else together); default: as in experiments.yaml",
        name_and_value,
        "pairing=KIND",
    )
    add_job_flags(parser)
    parser.switch("--quick", "few short blocks, to see that it works")
    parser.add_argument("--data", choices=("real", "sample"), default="sample", help="default: sample")
    parser.switch("--table", "measure nothing: print what was found so far")
    add_config_flag(parser)
    add_results_flag(parser)
    return parser


def calibrate_command(arguments: argparse.Namespace) -> int:
    from harness.experiments.narrow import take_pairing
    from pipeline.calibrate import calibrate, print_table

    if arguments.table:
        require_alone(calibrate_parser(), arguments, "table", "results")
        return print_table(read_results(arguments))
    pairing = take_pairing(arguments)
    if arguments.set:
        raise ProjectError(f"--set {arguments.set[0][0]}: calibrate takes no setting but pairing")
    return calibrate(selection_of(arguments), job_flags_of(arguments), rounds=arguments.rounds, pairing=pairing)


def require_alone(parser: Parser, arguments: argparse.Namespace, flag: str, *beside: str) -> None:
    """Ends with the parser's error where another flag than those `beside` is given: it would change nothing."""
    for action in parser._actions:
        is_other = action.dest not in (flag, *beside, "help")
        if is_other and getattr(arguments, action.dest) != parser.get_default(action.dest):
            parser.error(
                f"{action.option_strings[0]} has no effect with --{flag.replace('_', '-')}, which measures nothing"
            )


COMMAND_PARSERS: dict[str, tuple[Callable[[], Parser], Callable[[argparse.Namespace], int]]] = {
    "": (run_parser, run_command),
    "status": (status_parser, status_command),
    "report": (report_parser, report_command),
    "data": (data_parser, data_command),
    "doctor": (doctor_parser, doctor_command),
    "check": (check_parser, check_command),
    "calibrate": (calibrate_parser, calibrate_command),
}


ONLY_GPU = "only this GPU of experiments.yaml; repeatable"
ONLY_BENCHMARK = "only mnist, cifar10, ...; repeatable"
ONLY_FRAMEWORK = "only jax or torch (default: both)"


def add_cell_flags(parser: Parser, *, gpu: str = ONLY_GPU, by_name: str = "train, ... on any number of GPUs") -> None:
    """`by_name`: what a use case's name means."""
    parser.repeatable("--gpu", gpu)
    parser.repeatable("--benchmark", ONLY_BENCHMARK)
    words = f"only use case 1, 3, ..., or by name: {by_name}; repeatable"
    parser.repeatable("--use_case", words, use_case, "N")


def add_job_flags(parser: Parser) -> None:
    """How jobs are handed over and followed."""
    parser.add_argument(
        "--executor",
        choices=("auto", "slurm", "local"),
        default="auto",
        help="slurm; local: on this machine, one job after the other; auto: slurm if sbatch is on PATH, else local "
        "(default: auto)",
    )
    parser.two_spellings(
        "--dry-run",
        action="store_true",
        help="print what would be measured and how long it would take, and render the scripts; submit nothing",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="follow the jobs until they are over, and make the report's page; exit with status 1 if a cell failed",
    )
    parser.add_argument(
        "--force", action="store_true", help="measure everything again, also what already has a good record"
    )


def add_config_flag(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        type=path,
        metavar="FILE",
        default=EXPERIMENTS,
        help="the file that defines what to measure (default: experiments.yaml)",
    )
    parser.add_argument(
        "--cluster",
        type=name,
        metavar="NAME",
        help="lay clusters/NAME.yaml over that file (default: the one with Slurm's name for this cluster, if any)",
    )


def read_profile(arguments: argparse.Namespace) -> Path | None:
    from harness.experiments.profile import profile_of

    return profile_of(arguments.cluster)


def read_config(arguments: argparse.Namespace) -> "Config":
    from harness.experiments.load import load_config

    return load_config(arguments.config, read_profile(arguments))


def add_results_flag(parser: Parser) -> None:
    parser.add_argument(
        "--results",
        type=path,
        metavar="DIR",
        default=REPOSITORY / "results",
        help="the folder with the records (default: results)",
    )


def whole_number(rule: str, *, least: int = 0, most: int = 10**9) -> Callable[[str], int]:
    """The type of a flag. It raises argparse's error, which quotes `rule`, for all but plain digits within bounds."""

    def read(text: str) -> int:
        is_plain = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
        if not is_plain or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{shortened(text) or repr(text)}: {rule}")
        return int(text)

    return read


def use_case(text: str) -> int | str:
    """A number or a name."""
    if text.isascii() and text.isidentifier() and text == shortened(text):
        return text
    return whole_number("use cases are called by their number or name, such as 3 or train")(text)


def percentage(text: str) -> float:
    """0.03 of `3%`, `3 %` or `3`."""
    digits = text.removesuffix("%").strip()
    if not re.fullmatch(r"\d{1,2}(\.\d{1,3})?", digits):
        raise argparse.ArgumentTypeError(f"{shortened(text) or repr(text)}: a slowdown below 100 %, such as 3%")
    return float(digits) / 100


def path(text: str) -> Path:
    """It becomes part of scripts, which a line break would end."""
    if not text or not is_one_line(text):
        raise argparse.ArgumentTypeError(f"{shortened(text) or repr(text)}: a path, in printable characters")
    return Path(text)


def read_results(arguments: argparse.Namespace) -> "Results":
    """Raises ProjectError for what is there and no folder."""
    from harness.paths import Results

    root = arguments.results.absolute()
    try:
        mode = root.stat().st_mode
    except FileNotFoundError:
        return Results(root=root)
    except OSError as error:
        raise ProjectError(f"--results {arguments.results}: cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(mode):
        raise ProjectError(f"--results {arguments.results} is not a folder")
    return Results(root=root)


def read_results_that_exist(arguments: argparse.Namespace) -> "Results":
    """For what only looks: raises ProjectError where the command line names a folder that is not there."""
    results = read_results(arguments)
    if results.root != REPOSITORY / "results" and not results.root.exists():
        raise ProjectError(f"--results {arguments.results}: there is no such folder")
    return results


def selection_of(arguments: argparse.Namespace) -> "Selection":
    from harness.experiments.expand import Selection
    from harness.experiments.narrow import narrowing_of
    from harness.experiments.overview import numbers_of

    return Selection(
        gpus=tuple(arguments.gpu or ()),
        benchmarks=tuple(arguments.benchmark or ()),
        use_cases=numbers_of(tuple(arguments.use_case or ()), arguments.config),
        frameworks=tuple(arguments.framework or ()),
        data=arguments.data,
        quick=arguments.quick,
        force=arguments.force,
        narrowing=narrowing_of(arguments),
        full=getattr(arguments, "full", False),
    )


def job_flags_of(arguments: argparse.Namespace, pairing: "Pairing | None" = None) -> "JobFlags":
    """`pairing`: None takes that of experiments.yaml."""
    from pipeline.measure import JobFlags

    return JobFlags(
        config=arguments.config,
        profile=read_profile(arguments),
        results=read_results(arguments),
        executor=arguments.executor,
        pairing=pairing,
        dry_run=arguments.dry_run,
        wait=arguments.wait,
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as error:
        exit_without_package(error)
