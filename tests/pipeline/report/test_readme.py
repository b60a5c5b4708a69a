"""The tables of README.md: of results, from full records on real data, and of models, from their declarations; never by
hand."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from harness.paths import PUBLISHED, README, Results
from harness.results.parity_gate import ParityGate
from harness.results.record import Record
from pipeline.report.command import ReportOptions, on_shelves, report_command
from pipeline.report.compare import sections
from pipeline.report.declared_models import PART_OF_README as PART_OF_MODELS
from pipeline.report.declared_models import models_table
from pipeline.report.reading import read_records
from pipeline.report.readme import NOTHING, PART_OF_README, PICTURES, drawn_from, picture_svg, pictures, published_part
from tests.made.report_records import CELL, passed, plain, text
from tests.made.report_records import pair as made_pair

VERSIONS = {"jax": "0.10.2", "torch": "2.15.0"}


def with_version(one: Record, **changes: Any) -> Record:
    framework = one.environment["framework"] | {"version": VERSIONS[one.measurement.framework]}
    return one.model_copy(update={"environment": one.environment | {"framework": framework}} | changes)


def pair(**changes: Any) -> list[Record]:
    return [with_version(one) for one in made_pair(**changes)]


def test_the_part_of_the_readme() -> None:
    """Full measurements only: real data before the sample, each with what its table rests on; quick runs never."""
    cifar10 = CELL.model_copy(update={"benchmark": "cifar10"})
    found = [*pair(data="sample", cell=cifar10), *pair(), *pair(quick=True, cell=cifar10)]
    parts = published_part(sections(found, passed), found, "a").split("\n\n")
    assert 'srcset="a/overview-dark.svg"' in parts[0] and 'src="a/overview.svg"' in parts[0]
    assert parts[1].startswith("**On NVIDIA H200: Train a small CNN: JAX 1.50 × faster (1.50 to 1.50).** 8 records")
    assert parts[1].endswith("JAX 0.10.2 and PyTorch 2.15.0; made by `python main.py report --update-readme`.")
    head, _, row = parts[2].splitlines()
    assert head == (
        "| work | faster | by (95 % interval) | JAX, samples/s | PyTorch, samples/s | ready after, JAX / PyTorch | "
        "rests on |"
    )
    assert row == (
        "| Train a small CNN: mnist, batch 100, fp32 | JAX | 1.50 × (1.50 to 1.50) | 3,000 (step.jit) | "
        "2,000 (step.compiled) | 2.5 / 2.5 s | 4 of at most 12 pairs |"
    )
    assert "Data: a small sample with the shapes of the real data set." in parts[4]
    assert parts[5].splitlines()[2].startswith("| Train a small CNN: cifar10, batch 100, fp32 | JAX |")
    assert published_part(sections(pair(quick=True), passed), pair(quick=True)) == NOTHING


def test_the_project_in_wandb_is_linked_where_the_runs_were_online() -> None:
    online = pair()
    for number, one in enumerate(online):
        one.environment["wandb_url"] = f"https://w.example/lab/speed/runs/{number}"
    assert "`. Their runs in W&B: <https://w.example/lab/speed>." in published_part(sections(online, passed), online)


def test_the_command_says_when_there_is_nothing(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n{PART_OF_README.begin}\nold\n{PART_OF_README.end}\n")
    results = Results(root=tmp_path / "results")
    options = ReportOptions(readme=readme, figures=False)
    console = plain()
    assert report_command(results, options, console, passed) == 0
    assert "Nothing to publish" in text(console)
    assert NOTHING in readme.read_text()
    assert not results.root.exists()


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


def test_the_picture_has_each_ratio_of_the_tables() -> None:
    """JAX 3,000 and PyTorch 2,000 samples/s: 1.5."""
    drawn = pictures(sections([*pair(data="sample"), *pair(quick=True)], passed))
    assert list(drawn) == list(PICTURES) == ["overview.svg", "overview-dark.svg"]
    shown = ("Train a small CNN | mnist, batch 100, fp32", 1.5, "JAX faster")
    for wanted in drawn.values():
        [point] = wanted["datasets"]["published"]
        assert (point["place"], point["ratio"], point["verdict"]) == shown
    assert pictures(sections(pair(quick=True), passed)) == {}
    [doubtful] = pictures(sections(pair(precision="default"), passed))["overview.svg"]["datasets"]["published"]
    assert (doubtful["ratio"], doubtful["verdict"]) == (1.5, "undecided")  # as in the table


def test_a_picture_is_the_same_when_it_is_drawn_again() -> None:
    wanted = pictures(sections(pair(data="sample"), passed))["overview.svg"]
    svg = picture_svg(wanted)
    assert svg == picture_svg(wanted)
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert svg.splitlines()[-1] == drawn_from(wanted) != drawn_from(wanted | {"width": 1})


def test_a_model_has_a_line_with_its_size() -> None:
    lines = models_table().splitlines()
    assert lines[0] == "| benchmark | model | kind | parameters | GMAC |"
    # torchvision's ResNet-50, less 900 of its 1,000 outputs with 2,048 weights and a bias each
    assert f"| imagenet100 | resnet50 | BatchNorm | {25_557_032 - 900 * 2_049:,} | 4.09 |" in lines
    assert any(line.startswith("| synthetic | linear |  | 131,584 |") for line in lines)
    assert not any("not recorded" in line for line in lines), "every model declares its parameters"


def test_the_table_of_models_in_the_readme_is_that_of_the_declarations() -> None:
    current = README.read_text(encoding="utf-8")
    assert PART_OF_MODELS.replaced(current, models_table(), "README.md") == current, (
        "run: python -m pipeline.report.declared_models"
    )
