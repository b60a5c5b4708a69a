"""The report's numbers against those of another program.

golden/ has what recompute.py worked out: a second implementation of the report, in plain Python, written from the docs
alone and without this project's code. It was run on these records before it left the tree (commit a3e52cb has it, as
tests/pipeline/report/recompute.py). `made/` has records for each rule of comparison, and their numbers; `cpu-2-cores/`
real ones of 23 November 2026. Some were registered under the rules of versions 1 and 2, and the other program judged
them by those of version 3, too. `designs.json` has logarithms of pairs, with interval, verdict and p.

golden/every_column/ is of another kind: whatever this project's report says today, in every column and on the terminal,
of the same records, of the published ones, and of those of tests/made/constructed_records.py, which have a device for
each rule; of these also in README's block, in LaTeX tables and in charts. A change of it may be right, and is accepted
as tests/made/golden.py says. A change of the numbers above never is.
"""

import csv
import json
import math
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.paths import REPOSITORY, Results
from harness.results.device_peaks import write_device_peaks
from harness.results.sequential import CRITICAL_VALUES, LogRatio, estimate_sequentially
from pipeline.report.command import ReportOptions, print_summary, report_command
from pipeline.report.compare import Section, sections
from pipeline.report.device_peaks import peaks_by_device
from pipeline.report.environments import environments_table
from pipeline.report.figures import section_charts
from pipeline.report.files import latex_tables
from pipeline.report.readme import published_part
from pipeline.report.scaling_axis import scaling_chart
from pipeline.report.table import latex
from tests.made.constructed_records import constructed, device_peaks, judge, on, trained
from tests.made.golden import HOW_TO_ACCEPT, accepting, require_golden
from tests.made.report_records import pair, passed, plain, plan, record, save, text

GOLDEN = Path(__file__).parent / "golden"
VERDICTS = {"JAX faster", "PyTorch faster", "same", "undecided"}
KEY = (
    *("device", "gpu", "benchmark", "use_case", "use_case_name", "devices", "data", "quick", "model", "batch_size"),
    *("precision", "options", "settings", "data_id", "framework", "execution_mode", "phase", "lab_and_software"),
)

Lines = dict[tuple[str, ...], dict[str, str]]


def lines_of(file: Path) -> Lines:
    with file.open(newline="") as lines:
        found = list(csv.DictReader(lines))
    by_key = {tuple(line.get(name, "") for name in KEY): line for line in found}
    assert len(by_key) == len(found)
    return by_key


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_equal(found: Lines, expected: Lines) -> None:
    """In each column that the other program has; numbers to a billionth, as only rounding may differ."""
    assert found.keys() == expected.keys()
    for key, line in expected.items():
        for name, value in line.items():
            if name in KEY or not is_number(value):
                assert found[key][name] == value, (key, name)
            else:  # 1 less what is nearly 1 has fewer digits
                close = pytest.approx(float(value), rel=1e-9, abs=1e-12 if name in ("p", "q") else None)
                assert float(found[key][name] or "nan") == close, (key, name)


RECORDS = {
    "made": GOLDEN / "made" / "records",
    "cpu-2-cores": GOLDEN / "cpu-2-cores" / "records",
    "published": REPOSITORY / "results" / "published" / "cpu-2-cores" / "records",
}
FILES = ("comparison.csv", "phases.csv", "why.csv")


CONSTRUCTED = GOLDEN / "every_column" / "constructed"


@pytest.fixture(scope="module", params=[*RECORDS, "constructed"])
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the name of the records, and the folder with the CSV files and the terminal's text of their report."""
    name, results = request.param, Results(root=tmp_path_factory.mktemp("results"))
    if name == "constructed":
        for one in constructed():
            save(one, results)
        for peaks in device_peaks():
            write_device_peaks(peaks, results.new_device_peaks(peaks.framework))
    else:
        shutil.copytree(RECORDS[name], results.root / "records")
        for archive in results.root.rglob("records.zip"):
            shutil.unpack_archive(archive, archive.parent)
    console = plain(80)
    judged = judge if name == "constructed" else None
    assert report_command(results, ReportOptions(figures=False), console, judged) == 0
    shown = text(console).replace(str(results.root), "RESULTS")
    (results.report / "terminal.txt").write_text(shown, encoding="utf-8")
    return name, results.report


def test_numbers_are_those_of_another_program(reported: tuple[str, Path]) -> None:
    name, report = reported
    if name in ("published", "constructed"):
        return  # the other program is gone
    for file in FILES[:2]:
        require_equal(lines_of(report / file), lines_of(GOLDEN / name / file))


def test_terminal_says_what_the_golden_text_says(reported: tuple[str, Path]) -> None:
    name, report = reported
    shown = (report / "terminal.txt").read_text(encoding="utf-8")
    assert max(map(len, shown.splitlines())) <= 80
    require_golden(GOLDEN / "every_column" / name / "terminal.txt", shown, __file__)


@pytest.fixture(scope="module")
def compared() -> list[Section]:
    return sections(constructed(), judge, peaks_by_device(device_peaks()))


def test_block_of_the_readme(compared: list[Section]) -> None:
    """Quick runs are never in it."""
    require_golden(CONSTRUCTED / "readme.md", published_part(compared, constructed(), "a") + "\n", __file__)


def test_tables_in_latex(compared: list[Section]) -> None:
    """Every table of one section, and of others those that it does not have or that have more columns there."""
    tables = latex_tables(compared)
    shown = [name for name in tables if name.startswith("mnist-1-train-nvidia-h200-")]
    shown += ["device_peaks", "scaling_over_devices"]
    shown += [f"mnist-1-train-gpu-of-{name}-modes" for name in ("screened", "quantities", "apart")]
    shown += [f"cifar10-1-train-gpu-of-quantities-{name}" for name in ("modes", "quantities")]
    shown += [name for name in tables if name.endswith("many-models-phases")]
    environments = latex(environments_table([one for one in constructed() if one.environment.get("python")]))
    parts = [f"% {name}\n{tables[name]}" for name in shown] + [f"% environments\n{environments}"]
    require_golden(CONSTRUCTED / "tables.tex", "\n".join(parts), __file__)


def rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def test_points_of_charts(compared: list[Section]) -> None:
    shown = [one for one in compared if one.setup.device in ("NVIDIA H200", "GPU of many models", "GPU of text")]
    charts = [chart for section in [*shown, *sections(trained(1), passed)] for chart in section_charts(section)]
    lines = []
    for chart in [*charts, scaling_chart(compared)]:
        lines.append(f"{chart.name}: {chart.title}")
        lines += [json.dumps({key: rounded(value) for key, value in point.items()}) for point in chart.points]
    require_golden(CONSTRUCTED / "charts.txt", "\n".join(lines) + "\n", __file__)


def test_summary_of_plans(tmp_path: Path) -> None:
    """What `--wait` ends with: no record of another plan, and efficiencies against records on one device."""
    results = Results(root=tmp_path)
    several = plan("jax", "step.jit").model_copy(update={"cell": on(2)})
    refused: dict[str, Any] = {"outcome": "refused", "reason": "[CPU] has no CUDA graphs", "result": None}
    found = [
        *pair(12345, 10000),
        record("jax", "step.jit", 1, quick=True),
        record("jax", "step.jit", 20000, cell=on(2)),
    ]
    for one in [*found, *(record("torch", "cuda_graphs", replicate=number, **refused) for number in range(4))]:
        save(one, results)
    console = plain(80)
    plans = [plan("jax", "step.jit", "scan.jit"), plan("torch", "step.compiled", "cuda_graphs"), several]
    print_summary(results, plans, console, passed)
    require_golden(GOLDEN / "summary.txt", text(console), __file__)


def without_empty_columns(lines: Lines) -> Lines:
    used = {name for line in lines.values() for name, value in line.items() if value} | set(KEY)
    return {key: {name: value for name, value in line.items() if name in used} for key, line in lines.items()}


def write_csv(lines: Lines, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as text:
        writer = csv.DictWriter(text, list(next(iter(lines.values()), dict.fromkeys(KEY))), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines.values())


is_close = partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12)


def differences(found: Lines, expected: Lines) -> Iterator[str]:
    """Yield a line for each row and each value that differs; numbers may differ by a billionth."""
    for key in sorted(found.keys() ^ expected.keys()):
        yield f"{'new' if key in found else 'gone'}: {', '.join(filter(None, key))}"
    for key in sorted(found.keys() & expected.keys()):
        ours, theirs = found[key], expected[key]
        for name in dict.fromkeys([*theirs, *ours]):
            new, old = ours.get(name, ""), theirs.get(name, "")
            is_close = (
                is_number(new) and is_number(old) and float(new) == pytest.approx(float(old), rel=1e-9, nan_ok=True)
            )
            if new != old and not is_close:
                yield f"{name}: {old!r} is now {new!r}: {', '.join(filter(None, key))}"


def test_every_column_is_that_of_the_golden_files(reported: tuple[str, Path]) -> None:
    name, report = reported
    wrong = []
    for file in FILES:
        found, golden = without_empty_columns(lines_of(report / file)), GOLDEN / "every_column" / name / file
        if accepting():
            write_csv(found, golden)
        wrong += [f"{file}: {line}" for line in differences(found, lines_of(golden))]
    assert not wrong, "\n".join([*wrong, f"{HOW_TO_ACCEPT} tests/pipeline/report/test_golden.py"])


def test_ratio_interval_verdict_and_p_of_designs() -> None:
    cases: list[dict[str, Any]] = json.loads((GOLDEN / "designs.json").read_text())
    looks = set()
    for case in cases:
        logs = [LogRatio(number, value, number % 2 == 0) for number, value in enumerate(case["logs"])]
        found = estimate_sequentially(logs, case["at_most"], is_extended=case["extended"])
        answer = case["answer"]
        low, high = found.interval or (None, None)
        numbers = {"ratio_jax_over_torch": found.value, "ratio_low": low, "ratio_high": high, "p": found.p}
        for name, value in numbers.items():
            expected = answer.get(name)
            assert value == (None if expected is None else pytest.approx(expected, rel=1e-6 if name == "p" else 1e-9))
        assert (found.verdict, found.replicates) == (answer["verdict"], answer["ratio_replicates"])
        assert (found.at_most, found.is_judged) == (answer["pairs_at_most"] or 0, answer["is_judged"])
        looks.add((found.at_most, found.replicates))
    assert {case["answer"]["verdict"] for case in cases} == VERDICTS
    assert {(at_most, pairs) for at_most, reaches in CRITICAL_VALUES.items() for pairs in reaches} <= looks
