"""What is said of calibrations: in the table, in the docs, and in the report on each of its devices."""

import json
import math
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import ProjectError, RecordError
from harness.paths import REPOSITORY, Results
from harness.results.record import Record
from pipeline.report import command
from pipeline.report.calibration import (
    A_A,
    Answer,
    Calibration,
    Row,
    calibrations_of,
    perfect,
    read_calibrations,
)
from pipeline.report.calibrations import (
    DOCS,
    NOT_PUBLISHED,
    PART_OF_DOCS,
    PUBLISHED_CALIBRATIONS,
    calibrated_devices,
    describe,
    published_text,
    trust_sentences,
    update_docs,
)
from tests.made.calibration_records import HERE, calibration, process, processes
from tests.made.report_records import CPU, record, save
from tests.pipeline.report.shown import reported

ELSEWHERE = "NVIDIA H200"
LATER = {"day": "2026-11-22"}


def blind_records(rounds: int) -> list[Record]:
    """All that was planted is there, but the 2 %: that is as fast as without."""
    blind = [
        process(
            number,
            "slower_2_percent",
            throughput=1000 * (1 + number / 100),
            flags={"throttled": "by heat"},
            **LATER,
        )
        for number in range(rounds)
    ]
    return [one for one in processes(rounds, **LATER) if one.measurement.variant.planted != "slower_2_percent"] + blind


def blind_to_2_percent(rounds: int = 5) -> Calibration:
    (made,) = calibrations_of(blind_records(rounds))
    return made


# The table.


def test_description_says_where_how_much_and_with_which_flags() -> None:
    flags: list[dict[str, str]] = [{"too_few_latency_calls": ""}] * 13
    flags += [{"short_blocks": "", "throttled": ""}, {"short_blocks": ""}, {}]
    made = [one.model_copy(update={"flags": its}) for one, its in zip(processes(4), flags, strict=True)]
    told, (low, high) = describe(calibrations_of(made)), perfect(4)
    assert told.startswith(
        "**torch**, mnist, use case 1 (cnn-b256-fp32-step.eager, sample data), on 2 CPUs (A CPU), with torch 2.15.0 "
        "and Python 3.11.7. 4 rounds from 2026-11-21; load average 0.2 to 0.2. Two unslowed processes of a round "
        "differ by 0.00 % (root mean square). Flags: short_blocks in 2 of 16 processes, throttled in 1. Rules 3, of "
        f"at most 4 pairs: from 4 rounds, a perfect instrument shows {low * 100:.1f} % to {high * 100:.1f} % wrong in "
        "A/A.\n\n| planted |"
    )
    assert "| +5 % | 100.0 % | 0.0 % | 0.0 % | 1.0500 | -0.00 % | 4.0 | 8.0 |" in told  # a process is a minute
    assert "no complete round yet" in describe(calibrations_of(processes(1)[:1]))
    assert "The table needs 4 complete rounds" in describe([calibration(3)])
    assert "A quick run: not a result to quote" in describe([calibration(4, quick=True)])


# The docs.


def test_docs_have_the_tables_of_the_published_calibrations() -> None:
    assert PART_OF_DOCS.replaced(DOCS.read_text(), published_text(), str(DOCS)) == DOCS.read_text()
    published, refused = read_calibrations([PUBLISHED_CALIBRATIONS])
    found = sorted((one.framework, one.is_interleaved, one.rounds, len(one.records)) for one in published)
    assert found == [("jax", False, 20, 60), ("jax", True, 20, 120), ("torch", False, 20, 60), ("torch", True, 20, 120)]
    assert refused == ()


def test_what_the_docs_say_of_plants_in_one_process_is_in_the_records() -> None:
    page = (DOCS.parent / "planted_slowdown.md").read_text()
    folder = REPOSITORY / "results" / "published" / "planted_slowdown"
    of_both = [json.loads((folder / f"{framework}-cpu.json").read_text())["rounds"] for framework in ("jax", "torch")]
    for name, fraction in {"A'": 0.0, "+1 %": 0.01, "+2 %": 0.02, "+5 %": 0.05, "+10 %": 0.1}.items():
        cells = ["none" if name == "A'" else name, f"{math.log(1 + fraction):+.3f}"]
        for rounds in of_both:
            logs = [math.log(times_s[name] / times_s["A"]) for times_s in rounds]
            cells.append(f"{statistics.mean(logs):+.3f} ± {statistics.stdev(logs) / math.sqrt(len(logs)):.3f}")
        line = f"| {' | '.join(cells)} |"
        assert line in page, line


def test_docs_are_written_between_the_markers(tmp_path: Path) -> None:
    docs, results = tmp_path / "page.md", Results(root=tmp_path)
    begin, end = PART_OF_DOCS.begin, PART_OF_DOCS.end
    docs.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    update_docs(docs, results.calibration)
    assert docs.read_text() == f"before\n{begin}\n{NOT_PUBLISHED}\n{end}\nafter\n"
    for one in processes(4):
        save(one, results)
    update_docs(docs, results.calibration)
    assert docs.read_text() == f"before\n{begin}\n{describe([calibration(4)])}\n{end}\nafter\n"


def test_docs_take_good_records_only_and_need_their_markers(tmp_path: Path) -> None:
    docs, results = tmp_path / "page.md", Results(root=tmp_path)
    docs.write_text("no markers")
    with pytest.raises(ProjectError, match="needs the lines"):
        update_docs(docs, results.calibration)
    quick = save(process(0, "unslowed_a", quick=True), results)
    with pytest.raises(RecordError, match="quick run, which is not for publishing"):
        update_docs(docs, results.calibration)
    quick.write_text("{")
    with pytest.raises(RecordError, match="not a record"):
        update_docs(docs, results.calibration)


# The report.


def test_each_device_has_its_own_and_no_other() -> None:
    found = calibrated_devices([calibration(4), blind_to_2_percent()], [HERE, ELSEWHERE])
    assert found[ELSEWHERE] == []
    newest, older = found[HERE]
    assert [one.rows["slower_2_percent"].shares["right"] for one in (newest, older)] == [0, 1]
    assert (newest.rounds, newest.flags) == (5, "throttled in 5 of 20 processes")


def test_how_far_verdicts_can_be_trusted_in_words() -> None:
    assert trust_sentences(calibrated_devices([blind_to_2_percent(4)], [HERE])[HERE]) == [
        "Measured on this device, one after the other, 4 rounds from 2026-11-22, within 4 pairs: of two equal "
        "programs, a side was named in 0.0 % (PyTorch) of trials; a true difference of 2 % was found in 0.0 % "
        "(PyTorch); a true difference of 5 % was found in 100.0 % (PyTorch). Flags of PyTorch then: throttled in 4 of "
        "16 processes."
    ]
    shares: dict[str, dict[Answer, float]] = {A_A: {"wrong": 0.01}, "slower_2_percent": {"right": 0.206}}
    rows = {name: Row(name, found, ratio=1.0, pairs=4.0) for name, found in shares.items()}
    of_jax: Any = SimpleNamespace(
        framework="jax", is_interleaved=True, quick=False, rows=rows, rounds=20, day="2026-11-25", flags=""
    )
    in_turns, _ = trust_sentences([of_jax, calibration(4), blind_to_2_percent(4)])
    assert in_turns == (
        "Measured on this device, in turns, 20 rounds from 2026-11-25, within 12 pairs: of two equal programs, a side "
        "was named in 1.0 % (JAX) of trials; a true difference of 2 % was found in 20.6 % (JAX)."
    )
    for none in ([], [calibration(4, quick=True)], [calibration(3)]):
        assert trust_sentences(none)[0].startswith("Not calibrated on this device: `python main.py calibrate`")


def test_the_whole_report_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = Results(root=tmp_path / "published")
    monkeypatch.setattr(command, "PUBLISHED_CALIBRATIONS", published.calibration)
    results = Results(root=tmp_path / "results")
    here = CPU | {"cpu": {"model": "A CPU"}}
    sides = (("jax", "step.jit"), ("torch", "step.eager"))
    found = [record(*side, environment=environment) for environment in (here, CPU) for side in sides]
    for one in blind_records(4):
        save(one, published)
    for one in processes(4, data="real"):
        save(one, results)
    broken = results.calibration / "broken.json"
    broken.write_text("{")
    output, page = reported(results, *found)
    assert f"Warning: {broken}: not a record" in output
    assert output.count("a true difference of 2 % was found in 0.0 % (PyTorch)") == 1
    assert output.count("Not calibrated on this device") == 1
    assert "batch 256" not in output  # no comparison takes what was planted
    assert "broken.json" in (results.report / "report.html").read_text()
