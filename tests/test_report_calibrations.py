"""What the report says of the instrument's calibration on each of its devices."""

from pathlib import Path

import pytest

from harness.paths import Results
from pipeline.calibration import Calibration, write_calibration
from pipeline.report import command
from pipeline.report.calibrations import Trust, calibrated_devices, in_short, read_calibrations, sentences
from pipeline.report.command import ReportOptions, report_command
from tests.report_records import CPU, passed, plain, record, save, text
from tests.test_calibrate import blocks, made_calibration

HERE, ELSEWHERE = "CPU: A CPU", "NVIDIA H200"


def blind_to_2_percent(rounds: int = 5) -> Calibration:
    """All that was planted is there, but the 2 %: that is as fast as without."""
    made = made_calibration(rounds)
    base = {process.round: process.blocks for process in made.processes if process.condition == "A"}
    processes = [
        process.model_copy(update={"blocks": base[process.round], "flags": {"noisy": "by 12%"}})
        if process.condition == "+2 %"
        else process
        for process in made.processes
    ]
    return made.model_copy(update={"processes": processes, "started_at": "2026-11-22T10:00:00"})


def test_each_device_has_its_own_and_no_other() -> None:
    found = calibrated_devices([made_calibration(4), blind_to_2_percent()], [HERE, ELSEWHERE])
    assert found[ELSEWHERE] == []
    newest, older = found[HERE]
    assert newest.trust == (
        Trust(replicates=3, false_in_aa=0.0, found=0.0),
        Trust(replicates=5, false_in_aa=0.0, found=0.0),
    )
    assert older.trust == (Trust(replicates=3, false_in_aa=0.0, found=1.0),)
    assert (newest.rounds, newest.flags, newest.spread) == (5, "noisy in 5 of 30 processes", 0)


def test_false_verdicts_are_those_between_two_that_are_alike() -> None:
    made = made_calibration(3)
    slower = [
        process.model_copy(update={"blocks": blocks(900)}) if process.condition == "A'" else process
        for process in made.processes
    ]
    ((one,),) = calibrated_devices([made.model_copy(update={"processes": slower})], [HERE]).values()
    (trust,) = one.trust
    # Which of the two is the base is chance: in a quarter of the trials it is the same one in all three rounds.
    assert trust.false_in_aa == pytest.approx(0.25, abs=0.05)


def test_in_words() -> None:
    found = calibrated_devices([blind_to_2_percent(3)], [HERE])[HERE]
    assert sentences(HERE, found) == [
        "Calibrated on CPU: A CPU: PyTorch, mnist, use case 1 (cnn-b256-fp32-eager, sample data), 3 rounds on "
        "2026-11-22: flags: noisy in 3 of 18 processes; with 3 replicates 0.0 % false verdicts between two that are "
        "alike, and 2 % slower found in 0.0 %",
        "Not calibrated on CPU: A CPU: JAX; python main.py calibrate",
    ]
    assert sentences(ELSEWHERE, []) == ["Not calibrated on NVIDIA H200: JAX and PyTorch; python main.py calibrate"]
    assert in_short(found) == "Calibrated; of slowdowns of 2 % found: PyTorch 0.0 % (3 replicates)"
    assert in_short([]) == "Not calibrated on this device"


def test_quick_and_unfinished_calibrations_are_no_answer_in_short() -> None:
    for made in (made_calibration(3, quick=True), made_calibration(2), made_calibration(0)):
        found = calibrated_devices([made], [HERE])[HERE]
        assert in_short(found) == "Not calibrated on this device"
    assert (
        "a quick run: not to be quoted"
        in sentences(HERE, calibrated_devices([made_calibration(3, quick=True)], [HERE])[HERE])[0]
    )


def test_the_whole_report_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PUBLISHED_CALIBRATIONS", tmp_path / "published")
    results = Results(root=tmp_path / "results")
    here = CPU | {"cpu": {"model": "A CPU"}}
    for environment in (here, CPU):
        for framework, mode in (("jax", "jit"), ("torch", "eager")):
            save(record(framework, mode, environment=environment), results)  # type: ignore[arg-type]
    write_calibration(blind_to_2_percent(3), tmp_path / "published" / "a.json")
    write_calibration(made_calibration(3), results.calibration / "b.json")
    (results.calibration / "broken.json").write_text("{")
    console = plain(300)
    assert report_command(results, ReportOptions(figures=False), console, passed) == 0
    output = text(console)
    assert f"Warning: {results.calibration / 'broken.json'}: cannot be read as a calibration" in output
    assert output.count("Calibrated on CPU: A CPU: PyTorch") == 2
    assert "Not calibrated on CPU: Xeon: JAX and PyTorch; python main.py calibrate" in output
    page = (results.report / "report.html").read_text()
    assert page.count("not calibrated on this device") == 3  # JAX on the one, both on the other
    assert "Calibrated; of slowdowns of 2 % found: PyTorch 0.0 % (3 replicates)" in page
    assert "broken.json" in page
    overview = (results.report / "tables" / "overview.tex").read_text()
    assert r"Not calibrated on CPU: Xeon: JAX and PyTorch; python main.py calibrate.\par}" in overview


def test_a_file_in_both_folders_counts_once(tmp_path: Path) -> None:
    write_calibration(made_calibration(3), tmp_path / "a.json")
    found, refused = read_calibrations([tmp_path, tmp_path, tmp_path / "absent"])
    assert (len(found), refused) == (1, [])
