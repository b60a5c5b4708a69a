"""The command line: expands experiments.yaml, renders a pair of scripts for each cell, submits them.

Nothing heavy is imported before it is needed, so that --help and a mistyped flag answer at once. No framework
is ever imported here.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness.errors import ProjectError
from harness.suggest import nearest

if TYPE_CHECKING:
    from harness.paths import Results

REPOSITORY = Path(__file__).resolve().parent
USAGE_ERROR = 2
INTERRUPTED = 130

COMMANDS = {
    "status": "one table: each cell, each framework, its state, progress, time left, node, why it failed",
    "report": "what the records say, with an interval on every ratio",
    "data": "fetch and verify the data sets; jobs never download",
    "doctor": "what works here: Python, both frameworks, GPU, Slurm, W&B, data",
    "cancel": "end this project's jobs, by their ids",
    "calibrate": "how often the verdict is right: a framework against itself, alike and slowed down",
}
COMMAND_LINES = "\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items())

DESCRIPTION = f"""\
JAX or PyTorch, for your workloads, on your GPUs? Measures both at their best, on the same mathematics,
through Slurm or on this machine.

examples:
  python main.py doctor                                what works here, and what to do about what does not
  python main.py data                                  fetch the data sets, once
  python main.py --quick --data sample --wait          a smoke run of everything, followed to its end
  python main.py --benchmark cifar10 --use_case 3      render both scripts of this cell and submit them
  python main.py --gpu a100 --gpu h100                 the matrix of experiments.yaml, on these two
  python main.py --dry-run                             what plain `python main.py` would submit
  python main.py status --watch                        follow all jobs

commands (without one: measure):
{COMMAND_LINES}
  `python main.py COMMAND --help` lists the flags of a command.
"""

REPORT_DESCRIPTION = """\
What the records say, with an interval on every ratio: tables on the terminal, and in the folder `report` of the
results one HTML page (it needs no network), a CSV, LaTeX tables, and figures as SVG and PDF.
"""


class Parser(argparse.ArgumentParser):
    """Answers a wrong flag or value with the nearest valid one."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            usage=f"{prog} [flags]" if " " in prog else f"{prog} [command] [flags]",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def two_spellings(self, flag: str, **options: Any) -> None:
        """Adds `--use_case` and, without mention in the help, `--use-case`."""
        self.add_argument(flag, **options)
        other = flag[:2] + (flag[2:].replace("_", "-") if "_" in flag else flag[2:].replace("-", "_"))
        options["dest"] = flag[2:].replace("-", "_")
        options["help"] = argparse.SUPPRESS
        self.add_argument(other, **options)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            # Behind a wrong flag stands its value, about which there is nothing to say.
            wrong = [word for word in unknown if word.startswith("-")] or unknown
            self.error("; ".join(map(self._about_unknown, wrong)))
        return arguments

    def _about_unknown(self, word: str) -> str:
        if word in COMMANDS:
            return f"{word}: a command comes first: python main.py {word} ..."
        if not word.startswith("-"):
            return f"{word}: not expected here"
        flags = [flag for action in self._actions for flag in action.option_strings if action.help != argparse.SUPPRESS]
        close = nearest(word.partition("=")[0], flags)
        hint = f"did you mean {close}?" if close else f"valid: {', '.join(flags)}"
        return f"{word}: there is no such flag; {hint}"

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Overrides argparse's, which lists the choices but not the nearest."""
        if action.choices is None or value in action.choices:
            return
        close = nearest(value, action.choices)
        hint = f"; did you mean {close}?" if close else ""
        raise argparse.ArgumentError(action, f"{value}: valid: {', '.join(map(str, action.choices))}{hint}")

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n`python {self.prog} --help` says what is valid.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 where a cell failed, 2 where the user has something to correct."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    if name and name not in COMMANDS:
        close = nearest(name, COMMANDS)
        hint = f"; did you mean {close}?" if close else ""
        run_parser().error(f"{name}: there is no such command; valid: {', '.join(COMMANDS)}{hint}")
    parser, command = COMMAND_PARSERS[name]
    arguments = parser().parse(words)
    try:
        status = command(arguments)
        sys.stdout.flush()  # here, where a broken pipe is caught, and not while Python exits
        return status
    except ProjectError as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has seen enough; Python would complain again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run_parser() -> Parser:
    parser = Parser("main.py", DESCRIPTION)
    parser.add_argument("--gpu", action="append", metavar="NAME", help="a GPU of experiments.yaml; may be repeated")
    parser.add_argument("--benchmark", action="append", metavar="NAME", help="mnist, cifar10, ...; may be repeated")
    parser.two_spellings(
        "--use_case", action="append", type=use_case_number, metavar="N", help="1, 3, ...; may be repeated"
    )
    parser.add_argument("--framework", action="append", metavar="NAME", help="jax or torch; both if left out")
    parser.add_argument(
        "--executor",
        choices=("auto", "slurm", "local"),
        default="auto",
        help="auto: slurm where sbatch is on PATH, else local, one job after the other (default: auto)",
    )
    parser.two_spellings(
        "--dry-run", action="store_true", help="render the scripts, print the sbatch lines, submit nothing"
    )
    parser.add_argument(
        "--pairing",
        choices=("together", "separate"),
        help="together: one job runs both frameworks of a cell in turn; separate: a job for each "
        "(default: as in experiments.yaml)",
    )
    parser.add_argument("--wait", action="store_true", help="follow the jobs; exit status 1 if a cell failed")
    parser.add_argument("--force", action="store_true", help="measure again what has a good record")
    parser.two_spellings(
        "--no-baseline",
        action="store_true",
        help="on several GPUs: leave out the one-GPU measurements that the scaling efficiency is against",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: few steps, one replicate")
    parser.add_argument(
        "--data",
        choices=("real", "sample"),
        default="real",
        help="sample: a small set that needs no download, never mixed with real (default: real)",
    )
    add_config_flag(parser)
    add_results_flag(parser)
    return parser


def run_command(arguments: argparse.Namespace) -> int:
    from harness.config import load_config
    from harness.matrix import Selection, baselines, expand
    from pipeline.dry_run import print_dry_run
    from pipeline.render import write_scripts

    config = load_config(arguments.config)
    selection = Selection(
        gpus=tuple(arguments.gpu or ()),
        benchmarks=tuple(arguments.benchmark or ()),
        use_cases=tuple(arguments.use_case or ()),
        frameworks=tuple(arguments.framework or ()),
        data=arguments.data,
        quick=arguments.quick,
        force=arguments.force,
    )
    pairs = expand(config, selection)
    if not arguments.no_baseline:
        alone = baselines(config, pairs, selection)
        for pair in alone:
            print(f"{pair.cell.name}: measured too, for the scaling efficiency (not with --no-baseline)")
        pairs = alone + pairs
    results = open_results(arguments)
    scripts = write_scripts(pairs, config, config_path=arguments.config, results=results.root)
    pairing = arguments.pairing or config.pairing
    if arguments.dry_run:
        return print_dry_run(pairs, scripts, results, pairing=pairing, executor=arguments.executor)

    from pipeline.follow import follow
    from pipeline.report.command import print_summary
    from pipeline.submit import choose_executor, submit

    executor = choose_executor(arguments.executor)
    folders = submit(pairs, config, scripts, pairing=pairing, executor=executor, results=results)
    if not arguments.wait:
        if folders:
            print(f"To follow them: python main.py status --watch{flags_of(arguments)}")
        return 0
    status = follow(folders, results)
    print_summary(results, [plan for pair in pairs for plan in pair.jobs])
    return status


def status_parser() -> Parser:
    parser = Parser("main.py status", COMMANDS["status"])
    parser.add_argument("--watch", action="store_true", help="keep it up to date until all jobs are over")
    add_results_flag(parser)
    return parser


def status_command(arguments: argparse.Namespace) -> int:
    from pipeline.status import show_status

    return show_status(read_results(arguments), watch=arguments.watch)


def report_parser() -> Parser:
    parser = Parser("main.py report", REPORT_DESCRIPTION)
    parser.add_argument("--html", type=Path, metavar="FILE", help="where the page goes (default: report.html there)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="where the CSV goes (default: comparison.csv there)")
    parser.add_argument("--png", action="store_true", help="draw each figure as PNG too, beside SVG and PDF")
    parser.two_spellings("--no-figures", action="store_true", help="draw none: faster; the page has its own")
    parser.two_spellings(
        "--update-readme",
        action="store_true",
        help="renew the results table of README.md, by default from results/published; quick and sample records never",
    )
    parser.add_argument("--gpu", action="append", metavar="NAME", help="a GPU of experiments.yaml, or part of its name")
    parser.add_argument("--benchmark", action="append", metavar="NAME", help="mnist, cifar10, ...; may be repeated")
    parser.two_spellings(
        "--use_case", action="append", type=use_case_number, metavar="N", help="1, 3, ...; may be repeated"
    )
    add_results_flag(parser)
    parser.set_defaults(results=None)
    return parser


def report_command(arguments: argparse.Namespace) -> int:
    from harness.paths import PUBLISHED, README, Results
    from pipeline.report import command

    options = command.ReportOptions(
        html=arguments.html,
        csv=arguments.csv,
        png=arguments.png,
        figures=not arguments.no_figures,
        gpus=tuple(arguments.gpu or ()),
        benchmarks=tuple(arguments.benchmark or ()),
        use_cases=tuple(arguments.use_case or ()),
        readme=README if arguments.update_readme else None,
    )
    default = PUBLISHED if arguments.update_readme else REPOSITORY / "results"
    return command.report_command(Results(root=(arguments.results or default).absolute()), options)


def data_parser() -> Parser:
    parser = Parser("main.py data", COMMANDS["data"])
    parser.add_argument("--benchmark", action="append", metavar="NAME", help="only this one's data; may be repeated")
    add_config_flag(parser)
    return parser


def data_command(arguments: argparse.Namespace) -> int:
    from harness.config import load_config
    from pipeline.fetch import fetch_command

    return fetch_command(load_config(arguments.config), tuple(arguments.benchmark or ()))


def doctor_parser() -> Parser:
    parser = Parser("main.py doctor", COMMANDS["doctor"])
    add_config_flag(parser)
    add_results_flag(parser)
    return parser


def doctor_command(arguments: argparse.Namespace) -> int:
    from harness.config import load_config
    from pipeline.doctor import doctor

    return doctor(load_config(arguments.config), read_results(arguments))


def cancel_parser() -> Parser:
    parser = Parser("main.py cancel", COMMANDS["cancel"])
    add_results_flag(parser)
    return parser


def cancel_command(arguments: argparse.Namespace) -> int:
    from pipeline.cancel import cancel

    return cancel(read_results(arguments))


CALIBRATE_DESCRIPTION = f"""\
{COMMANDS["calibrate"]}.

Each round measures one framework six times, in a random order, each in a fresh process: twice as it is, and with a
slowdown of 1, 2, 5 and 10 % planted in the timed step. Then the rounds are compared as a report compares JAX with
PyTorch. It measures here, where it is started, with this Python, and wants a quiet machine.

examples:
  python main.py calibrate                                     both frameworks, 12 rounds
  srun --gres=gpu:1 python main.py calibrate --rounds 20       on a GPU of a cluster
  python main.py calibrate --resume FILE --rounds 30           go on with an earlier one, up to 30 rounds
  python main.py calibrate --from FILE                         the table of an earlier one
"""


def calibrate_parser() -> Parser:
    parser = Parser("main.py calibrate", CALIBRATE_DESCRIPTION)
    parser.add_argument("--framework", action="append", metavar="NAME", help="jax or torch; both if left out")
    parser.add_argument("--benchmark", default="mnist", metavar="NAME", help="default: mnist")
    parser.two_spellings("--use_case", type=use_case_number, default=1, metavar="N", help="default: 1")
    parser.add_argument("--model", metavar="NAME", help="default: the benchmark's first")
    parser.two_spellings("--batch_size", type=int, metavar="N", help="default: the use case's first")
    parser.two_spellings("--execution_mode", metavar="NAME", help="default: the framework's first")
    parser.add_argument("--rounds", type=round_count, metavar="N", help="default: 12")
    parser.add_argument("--data", choices=("real", "sample"), default="sample", help="default: sample")
    parser.add_argument("--quick", action="store_true", help="few short blocks, to see that it works")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="measure what this calibration does not have yet")
    parser.add_argument("--from", dest="show", type=Path, metavar="FILE", help="print the table of an earlier one")
    parser.two_spellings(
        "--update-docs",
        action="store_true",
        help="write the tables of results/published/calibration/ into docs/measurement.md",
    )
    add_config_flag(parser)
    add_results_flag(parser)
    return parser


def calibrate_command(arguments: argparse.Namespace) -> int:
    from pipeline import calibrate
    from pipeline.calibration import update_docs

    if arguments.update_docs:
        update_docs()
        return 0
    if arguments.show is not None:
        return calibrate.show_calibration(arguments.show)
    if arguments.resume is not None:
        return calibrate.calibrate(calibrate.resumed(arguments.resume, rounds=arguments.rounds), arguments.resume)

    from harness.config import load_config

    choice = calibrate.Choice(
        frameworks=tuple(arguments.framework or ()),
        benchmark=arguments.benchmark,
        use_case=arguments.use_case,
        model=arguments.model,
        batch_size=arguments.batch_size,
        execution_mode=arguments.execution_mode,
        data=arguments.data,
        quick=arguments.quick,
    )
    started = calibrate.new_calibration(load_config(arguments.config), choice, rounds=arguments.rounds or 12)
    return calibrate.calibrate(started, calibrate.new_file(open_results(arguments)))


COMMAND_PARSERS: dict[str, tuple[Callable[[], Parser], Callable[[argparse.Namespace], int]]] = {
    "": (run_parser, run_command),
    "status": (status_parser, status_command),
    "report": (report_parser, report_command),
    "data": (data_parser, data_command),
    "doctor": (doctor_parser, doctor_command),
    "cancel": (cancel_parser, cancel_command),
    "calibrate": (calibrate_parser, calibrate_command),
}


def add_config_flag(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=REPOSITORY / "experiments.yaml",
        help="what to measure (default: experiments.yaml)",
    )


def add_results_flag(parser: Parser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        default=REPOSITORY / "results",
        help="where the records are (default: results)",
    )


def use_case_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: use cases are called by their number, such as 3")
    return int(text)


def round_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 3:
        raise argparse.ArgumentTypeError(f"{text}: a table takes 3 rounds at the least")
    return int(text)


def read_results(arguments: argparse.Namespace) -> "Results":
    from harness.paths import Results

    return Results(root=arguments.results.absolute())


def open_results(arguments: argparse.Namespace) -> "Results":
    """Raises ProjectError now, not hours later in a job, where the folder cannot be written."""
    import tempfile

    results = read_results(arguments)
    try:
        results.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results.root):
            pass
    except OSError as error:
        raise ProjectError(
            f"{results.root}: cannot be written: {error.strerror}; choose another with --results DIR"
        ) from error
    return results


def flags_of(arguments: argparse.Namespace) -> str:
    """What `status` must be told to find the same jobs."""
    import shlex

    if arguments.results == REPOSITORY / "results":
        return ""
    return f" --results {shlex.quote(str(arguments.results))}"


if __name__ == "__main__":
    sys.exit(main())
