"""Packed records: everything reads them, and at no moment is one lost or there twice."""

import os
import shutil
import socket
import time
from pathlib import Path
from zipfile import ZipFile

import pytest

import harness.packs
from harness.files import write_atomically
from harness.job.progress import write_heartbeat
from harness.packs import NAME, record_paths
from harness.paths import Results
from harness.plan_file import write_plan
from harness.results.record import find_settled_record, read_record, write_record
from main import main
from pipeline.pack import pack
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.compare import placed
from pipeline.report.publish import publish
from pipeline.report.reading import read_records
from pipeline.submission.estimate import read_durations
from pipeline.watching.ratios import RatiosSoFar
from tests.made.project import alone
from tests.made.records import heartbeat
from tests.made.report_records import CELL, passed, plain, plan, record, save, text

LATER = "2026-11-22T10:00:00+00:00"
OTHER_CELL = CELL.model_copy(update={"benchmark": "cifar10", "use_case": 3})


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(root=tmp_path / "results")


def files(results: Results) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in results.root.rglob("*.json")}


def reported(results: Results) -> list[str]:
    console = plain(200)
    assert report_command(results, ReportOptions(figures=False), console) == 0
    tables = [(results.report / name).read_text() for name in ("comparison.csv", "phases.csv", "why.csv")]
    return [text(console), *tables]


def pair(results: Results, cell: object = CELL) -> list[Path]:
    sides = (("jax", "step.jit", 2000), ("torch", "step.eager", 1000))
    return [save(record(*side, replicate=number, cell=cell), results) for number in (0, 1) for side in sides]


def test_what_a_report_says_of_real_records_is_the_same(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 36 records of 4 cells, as a laptop made them."""
    shutil.copytree(Path(__file__).parent / "report" / "golden" / "cpu-2-cores" / "records", results.root / "records")
    before, said = files(results), reported(results)
    command = ["pack", "--results", str(results.root)]
    assert main([*command, "--dry-run"]) == 0
    assert "4 cells, 36 files -> 4: nothing was changed" in capsys.readouterr().out
    assert files(results) == before
    assert main(command) == 0
    counts = {"mnist_1": 6, "mnist_5": 9, "text_1": 6, "text_3": 15}
    lines = [f"cpu/{name}: {count} files -> packed-records.zip" for name, count in counts.items()]
    assert capsys.readouterr().out.splitlines() == [*lines, "4 cells, 36 files -> 4"]
    assert files(results) == {}
    packs = [*results.records().rglob(NAME)]
    unpacked = {pack.parent / name: ZipFile(pack).read(name) for pack in packs for name in ZipFile(pack).namelist()}
    assert unpacked == before
    assert reported(results) == said
    assert record_paths(results.records()) == sorted(before)
    shelf = publish(results, "shelf", results.root / "published")
    assert len(files(shelf)) == 36


def test_what_is_selected(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    pair(results), pair(results, OTHER_CELL)
    assert pack(results, gpus=("h100",)) == 1
    assert "There are: any/cifar10_3, any/mnist_1." in capsys.readouterr().out
    assert pack(results, benchmarks=("cifar10",), use_cases=("train",)) == 0
    assert [path.parent.name for path in results.records().rglob(NAME)] == ["cifar10_3"]


def test_a_cell_whose_job_runs_is_left_alone(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    running, finished = pair(results), pair(results, OTHER_CELL)
    folder = results.new_job_folder(job := alone(plan("jax", "step.jit")))
    write_plan(job, folder)
    beat = heartbeat(state="running", node=socket.gethostname(), pid=os.getpid(), updated_at_unix_s=time.time())
    write_heartbeat(beat, folder.heartbeat)
    assert pack(results) == 1
    left = f"any/mnist_1: left alone: its job {folder.name} is running"
    packed = ["any/cifar10_3: 4 files -> packed-records.zip", left, "1 cell, 4 files -> 1"]
    assert capsys.readouterr().out.splitlines() == packed
    assert all(path.exists() for path in running) and not any(path.exists() for path in finished)
    folder.plan.write_text("{")
    assert main(["pack", "--results", str(results.root)]) == 2
    assert "nobody knows whose records it writes" in capsys.readouterr().err
    assert all(path.exists() for path in running)


def test_later_records_lie_beside_a_pack_and_join_it(results: Results) -> None:
    old = pair(results)
    assert pack(results) == 0
    new = save(record("jax", "step.jit", 3000, ended_at=LATER), results)
    (counted,) = placed(read_records(record_paths(results.records())).records).values()
    assert sorted(one.ended_at == LATER for one in counted) == [False, False, False, True]
    assert find_settled_record(read_record(new).measurement, results, "slurm") == new
    assert pack(results) == 0
    assert record_paths(results.records()) == sorted([*old, new]) and not files(results)
    assert find_settled_record(read_record(new).measurement, results, "slurm") == new


def test_a_crash_before_the_removal_changes_nothing(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = pair(results)
    before, said = files(results), reported(results)
    unlink = Path.unlink

    def crashes(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".json" and len(files(results)) < len(before):
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", crashes)
        assert pack(results) == 1
    assert len(files(results)) == len(paths) - 1
    assert record_paths(results.records()) == sorted(paths) and reported(results) == said
    assert pack(results) == 0
    assert files(results) == {} and reported(results) == said


def test_a_pack_that_is_not_what_was_written_removes_nothing(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    old = pair(results)
    pack(results)
    new = save(record("jax", "step.jit", ended_at=LATER), results)

    def tears(path: Path, content: bytes, *, replace: bool) -> None:
        write_atomically(path, content[:-30], replace=replace)

    monkeypatch.setattr(harness.packs, "write_atomically", tears)
    assert pack(results) == 1
    assert new.exists() and record_paths(results.records()) == sorted([*old, new])
    assert len(read_records(record_paths(results.records())).records) == 5


def test_a_damaged_entry_costs_itself_and_a_torn_pack_no_other_cell(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, others = sorted(pair(results)), sorted(pair(results, OTHER_CELL))
    measured = read_record(paths[0]).measurement
    pack(results)
    archive = results.records(CELL) / NAME
    content = bytearray(archive.read_bytes())
    content[content.index(paths[1].name.encode()) + len(paths[1].name) + 40] ^= 0xFF
    archive.write_bytes(content)
    reading = read_records(record_paths(results.records()))
    assert reading.paths == (*others, paths[0], *paths[2:])
    [sentence] = reading.refused
    assert sentence.startswith(f"{paths[1]}: cannot be read: {NAME}, entry jax/{paths[1].name}: ")

    archive.write_bytes(content[:-30])
    reading = read_records(record_paths(results.records()))
    assert reading.paths == tuple(others)
    [sentence] = reading.refused
    assert sentence.startswith(f"{archive}: cannot be read: a damaged pack, whose records count as not measured: ")
    assert find_settled_record(measured, results, None) is None
    new = save(record("jax", "step.jit", ended_at=LATER), results)
    capsys.readouterr()
    assert pack(results) == 1
    assert f"any/mnist_1: left alone: {archive}: cannot be read: a damaged pack" in capsys.readouterr().out
    assert new.exists()
    archive.unlink()
    os.mkfifo(archive)
    [sentence] = read_records(record_paths(results.records())).refused
    assert sentence.endswith("a damaged pack, whose records count as not measured: not a regular file")


def test_what_is_no_record_stays_and_so_does_another_of_the_same_name(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    path, *_ = pair(results)
    odd = path.with_name("odd.json")
    odd.write_text("{")
    assert pack(results) == 0
    assert "any/mnist_1: 4 files -> packed-records.zip; 1 that are no records stay" in capsys.readouterr().out
    assert list(files(results)) == [odd]
    write_record(record("jax", "step.jit", 1234), path)
    assert pack(results) == 1
    assert "has another record of that name; remove one of the two" in capsys.readouterr().out
    assert path.exists()
    odd_pack = results.records(OTHER_CELL) / NAME
    odd_pack.parent.mkdir()
    with ZipFile(odd_pack, "w") as archive:
        for name in ("../secret.json", "/etc/x.json", "jax/../../x.json", "x.json", "jax/a.log"):
            archive.writestr(name, "{}")
    assert record_paths(odd_pack.parent) == [], "names that lead out of the cell are no records"


def test_estimate_and_ratios_so_far_read_packed_records(results: Results) -> None:
    pair(results)
    folder = results.records(CELL, "jax")
    durations = read_durations(folder, quick=False)
    assert durations.of_any == 60.0
    pack(results)
    assert read_durations(folder, quick=False) == durations
    [ratio] = RatiosSoFar([plan("jax", "step.jit"), plan("torch", "step.eager")], results, passed).news()
    assert "JAX: 2.00 × (2.00 to 2.00)" in ratio.sentence
