"""plan.json, written and read; and a cell in words."""

from pathlib import Path

import pytest

from harness.errors import RecordError
from harness.paths import JobFolder
from harness.plan import Cell
from harness.plan_file import read_plan, write_plan
from tests.made.project import BehavingProject


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    pair, folder = BehavingProject(root=tmp_path).pair(), JobFolder(root=tmp_path / "job")
    write_plan(pair, folder)
    assert read_plan(folder.plan) == pair
    with pytest.raises(RecordError, match=r"cannot write .*plan.json: .* exists already"):
        write_plan(pair, folder)  # it is frozen


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a job plan: the file: .*Submit the job again"),
        ('{"cell": {"gpu": "a/b"}}', "not a job plan: cell.gpu: String should match pattern .*Submit the job again"),
        ("older", "a job plan of schema version 0; this code reads .*Submit the job again"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_what_is_wrong_with_a_plan(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    if content == "older":
        content = BehavingProject(root=tmp_path).pair().model_copy(update={"schema_version": 0}).model_dump_json()
    if content is not None:
        path.write_text(content)
    with pytest.raises(RecordError, match=f"^{path}: (?s:{message})"):
        read_plan(path)


def test_a_cell_in_words_has_gpus_only_where_it_asks_for_them() -> None:
    for gpu, devices, words in (
        ("any", 1, "mnist train"),
        ("h100", 2, "mnist train, 2 GPUs, h100"),
        ("cpu", 2, "mnist train, 2 processes, cpu"),
        ("any", 2, "mnist train, 2 devices"),  # maybe of a CPU
    ):
        assert Cell(gpu=gpu, benchmark="mnist", use_case=2, use_case_name="train", devices=devices).words == words
