"""The results table of README.md: made from full records on real data, and never by hand."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from harness.paths import PUBLISHED, README, Results
from harness.results.parity_gate import ParityGate
from harness.results.record import Record
from pipeline.report.command import ReportOptions, on_shelves, report_command
from pipeline.report.compare import sections
from pipeline.report.reading import read_records
from pipeline.report.readme import (
    NOTHING,
    PART_OF_README,
    PICTURES,
    drawn_from,
    picture_svg,
    pictures,
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
        for framework, mode, speed, environment in (
            ("jax", "step.jit", 3000, jax),
            ("torch", "step.eager", 2000, torch),
        )
        for replicate in range(4)
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
        "8 records, 2026-11-21, JAX 0.10.2 and PyTorch 2.15.0; made by `python main.py report --update-readme`."
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
    assert "8 records" in table


def test_sample_data_have_a_table_of_their_own_and_quick_runs_none() -> None:
    found = [*pair(data="sample", cell=CELL.model_copy(update={"benchmark": "cifar10"})), *pair(), *pair(quick=True)]
    lines = sample_table(sections(found, passed), found).splitlines()
    assert [line.split(" | ")[1] for line in lines if line.startswith("| NVIDIA")] == ["cifar10"]
    assert lines[-1].count("8 records, 2026-11-21, JAX 0.10.2 and PyTorch 2.15.0; made by") == 1
    whole = published_part(sections(found, passed), found, "a").split("\n\n")
    assert "mnist" in whole[0] and "cifar10" not in whole[0]
    assert 'srcset="a/overview-dark.svg"' in whole[-1] and 'src="a/overview.svg"' in whole[-1]
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
    part = published_part(compared, [*reading.records, *shelved.records], "results/published")
    current = README.read_text(encoding="utf-8")
    again = "run: python main.py report --update-readme"
    assert PART_OF_README.replaced(current, part, str(README)) == current, again
    drawn = pictures(compared)
    assert {path.name for path in published.root.glob("*.svg")} == set(drawn)
    for name, wanted in drawn.items():
        assert (published.root / name).read_text(encoding="utf-8").splitlines()[-1] == drawn_from(wanted), again


def test_the_picture_has_each_ratio_of_the_tables_and_says_what_is_sample_data() -> None:
    """JAX 3,000 and PyTorch 2,000 samples/s: 1.5."""
    on_sample = pair(data="sample", cell=CELL.model_copy(update={"benchmark": "cifar10"}))
    only_sample = pictures(sections([*on_sample, *pair(quick=True)], passed))
    assert list(only_sample) == list(PICTURES) == ["overview.svg", "overview-dark.svg"]
    for wanted in only_sample.values():
        [point] = wanted["datasets"]["published"]
        assert point["place"].startswith("cifar10: Train on one GPU | ") and " | sample data | " in point["place"]
        assert (point["ratio"], point["verdict"]) == (1.5, "JAX faster")
        assert wanted["title"]["text"] == "Sample data: not results to quote"
    both = pictures(sections([*on_sample, *pair()], passed))["overview.svg"]
    assert [" | sample data | " in one["place"] for one in both["datasets"]["published"]] == [True, False]
    assert both["title"]["text"] == "JAX or PyTorch"
    assert pictures(sections(pair(quick=True), passed)) == {}


def test_a_ratio_with_a_doubt_is_in_the_picture_as_it_is_in_the_table() -> None:
    [section] = sections(pair(data="sample"), passed)
    [row] = section.rows
    assert row.comparison is not None and row.comparison.estimate is not None
    estimate = row.comparison.estimate._replace(verdict="undecided", doubt="precision `default`")
    doubtful = replace(row, comparison=replace(row.comparison, estimate=estimate))
    [point] = pictures([replace(section, rows=(doubtful,))])["overview.svg"]["datasets"]["published"]
    assert (point["ratio"], point["verdict"]) == (1.5, "undecided")


def test_a_picture_is_the_same_when_it_is_drawn_again() -> None:
    wanted = pictures(sections(pair(data="sample"), passed))["overview.svg"]
    svg = picture_svg(wanted)
    assert svg == picture_svg(wanted)
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert svg.splitlines()[-1] == drawn_from(wanted) != drawn_from(wanted | {"width": 1})
