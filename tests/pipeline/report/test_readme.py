"""The results table of README.md: made from full records on real data, and never by hand."""

from pathlib import Path

from harness.paths import PUBLISHED, README, Results
from harness.results.parity_gate import ParityGate
from harness.results.record import Record
from pipeline.report.command import ReportOptions, on_shelves, report_command
from pipeline.report.compare import sections
from pipeline.report.figures import overview
from pipeline.report.reading import read_records
from pipeline.report.readme import (
    NOTHING,
    PART_OF_README,
    full_sections,
    published_part,
    results_table,
    sample_table,
)
from tests.made.report_records import CELL, H200, passed, plain, record, save, text


def pair(**changes: object) -> list[Record]:
    jax = H200 | {"framework": {"platform": "gpu", "version": "0.10.2"}}
    torch = H200 | {"framework": {"platform": "gpu", "version": "2.15.0"}}
    return [
        record(framework, mode, speed, replicate=replicate, environment=environment, **changes)  # type: ignore[arg-type]
        for framework, mode, speed, environment in (("jax", "jit", 3000, jax), ("torch", "eager", 2000, torch))
        for replicate in range(3)
    ]


def test_the_table_of_full_records_on_real_data() -> None:
    found = pair()
    lines = results_table(sections(found, passed), found).splitlines()
    assert lines[0].startswith(
        "| device | benchmark | use case | flags | JAX / PyTorch | the two sides | JAX faster | PyTorch faster |"
    )
    assert lines[2] == (
        "| NVIDIA H200 | mnist | 1: Train on one GPU | none | **1.50** [1.50, 1.50] | not recorded: GPU, driver, node, "
        "CPUs, libraries, variables, code, pairing | 1 |  |  |  |  |"
    )
    assert lines[-1].endswith(
        "6 records, 2026-11-21, JAX 0.10.2 and PyTorch 2.15.0; made by `python main.py report --update-readme`."
    )


def test_the_project_in_wandb_is_linked_where_the_runs_were_online() -> None:
    online = [
        one.model_copy(update={"environment": one.environment | {"wandb_url": f"https://w.example/lab/speed/runs/{n}"}})
        for n, one in enumerate(pair())
    ]
    below = results_table(sections(online, passed), online).splitlines()[-1]
    assert below.endswith("`. Their runs in W&B: <https://w.example/lab/speed>.")


def test_quick_runs_and_sample_data_are_never_in_it() -> None:
    doubtful = [*pair(quick=True), *pair(data="sample")]
    assert results_table(sections(doubtful, passed), doubtful) == NOTHING
    mixed = [*doubtful, *pair(cell=CELL.model_copy(update={"benchmark": "cifar10"}))]
    table = results_table(sections(mixed, passed), mixed)
    assert "cifar10" in table and "mnist" not in table
    assert "6 records" in table


def test_sample_data_have_a_table_of_their_own_and_quick_runs_none() -> None:
    found = [*pair(data="sample", cell=CELL.model_copy(update={"benchmark": "cifar10"})), *pair(), *pair(quick=True)]
    lines = sample_table(sections(found, passed), found).splitlines()
    assert [line.split(" | ")[1] for line in lines if line.startswith("| NVIDIA")] == ["cifar10"]
    assert lines[-1].count("6 records, 2026-11-21, JAX 0.10.2 and PyTorch 2.15.0; made by") == 1
    whole = published_part(sections(found, passed), found, "a/picture.svg").split("\n\n")
    assert "mnist" in whole[0] and "cifar10" not in whole[0]
    assert whole[-1] == "![Ratios of what is published, with their intervals](a/picture.svg)"
    assert sample_table(sections(pair(), passed), pair()) == ""


def test_the_command_renews_the_table_and_says_when_there_is_nothing(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n{PART_OF_README.begin}\nold\n{PART_OF_README.end}\n")
    results = Results(root=tmp_path / "results")
    options = ReportOptions(readme=readme, figures=False)
    console = plain()
    assert report_command(results, options, console, passed) == 0
    assert "Nothing to publish" in text(console)
    assert NOTHING in readme.read_text()
    assert not results.root.exists()
    for one in pair():
        save(one, results)
    assert report_command(results, options, plain(), passed) == 0
    assert "**1.50**" in readme.read_text()
    console = plain()
    report_command(results, options, console, passed)
    assert "says this already" in " ".join(text(console).split())


def test_the_table_in_the_readme_is_what_the_command_would_write() -> None:
    published = Results(root=PUBLISHED)
    reading, shelved = read_records(sorted(published.records().rglob("*.json"))), on_shelves(published)
    assert [*reading.refused, *shelved.refused] == []
    compared = [*sections(reading.records, ParityGate(published).judge), *shelved.sections]
    has_picture = bool(overview(full_sections(compared)).charts)
    assert (published.root / "overview.svg").exists() == has_picture
    picture = "results/published/overview.svg" if has_picture else None
    part = published_part(compared, [*reading.records, *shelved.records], picture)
    current = README.read_text(encoding="utf-8")
    assert PART_OF_README.replaced(current, part, str(README)) == current, "run: python main.py report --update-readme"
