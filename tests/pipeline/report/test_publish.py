"""Records for everybody: what is copied, what is left out, and the tables of README.md, which are made from full
records and from declarations, and never by hand."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import harness.paths
from harness.errors import ProjectError
from harness.paths import PUBLISHED, README, Results
from harness.results.device_peaks import DevicePeaksRecord, read_device_peaks, write_device_peaks
from harness.results.parity import ParityMetadata, ParityNumbers, key_of
from harness.results.parity_file import read_parity, write_parity
from harness.results.parity_gate import ParityGate
from harness.results.record import Record, read_record
from main import main
from pipeline.report import command
from pipeline.report.command import ReportOptions, on_shelves, report_command
from pipeline.report.compare import sections
from pipeline.report.declared_models import PART_OF_README as PART_OF_MODELS
from pipeline.report.declared_models import models_table
from pipeline.report.publish import publish, shelves
from pipeline.report.reading import read_records
from pipeline.report.readme import NOTHING, PART_OF_README, PICTURES, drawn_from, picture_svg, pictures, published_part
from tests.made.report_records import CELL, CPU, H200, passed, plain, save, text
from tests.made.report_records import pair as made_pair

VERSIONS = {"jax": "0.10.2", "torch": "2.15.0"}


def pair(**changes: Any) -> list[Record]:
    """With the versions of both."""
    found = []
    for one in made_pair(**changes):
        framework = one.environment["framework"] | {"version": VERSIONS[one.measurement.framework]}
        found.append(one.model_copy(update={"environment": one.environment | {"framework": framework}}))
    return found


def test_the_part_of_the_readme() -> None:
    """Full measurements only: real data before the sample, each with what its table rests on; quick runs never."""
    cifar10 = CELL.model_copy(update={"benchmark": "cifar10"})
    found = [*pair(data="sample", cell=cifar10), *pair(), *pair(quick=True, cell=cifar10)]
    parts = published_part(sections(found, passed), found, "a").split("\n\n")
    assert 'srcset="a/overview-dark.svg"' in parts[0] and 'src="a/overview.svg"' in parts[0]
    assert parts[1].startswith("**On NVIDIA H200: Train a small CNN: JAX 1.50 × faster (1.50 to 1.50).** 8 records")
    assert parts[1].endswith("JAX 0.10.2 and PyTorch 2.15.0; made by `python main.py report --update-readme`.")
    assert parts[2].splitlines()[2] == (
        "| Train a small CNN: mnist, batch 100, fp32 | JAX | 1.50 × (1.50 to 1.50) | 3,000 (step.jit) | "
        "2,000 (step.compiled) | 2.5 / 2.5 s | 4 of at most 12 pairs |"
    )
    assert "Data: a small sample with the shapes of the real data set." in parts[4]
    assert parts[5].splitlines()[2].startswith("| Train a small CNN: cifar10, batch 100, fp32 | JAX |")
    assert published_part(sections(pair(quick=True), passed), pair(quick=True)) == NOTHING
    online = pair()
    for number, one in enumerate(online):
        one.environment["wandb_url"] = f"https://w.example/lab/speed/runs/{number}"
    assert "`. Their runs in W&B: <https://w.example/lab/speed>." in published_part(sections(online, passed), online)


def test_the_command_says_when_there_is_nothing(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n{PART_OF_README.begin}\nold\n{PART_OF_README.end}\n")
    results = Results(root=tmp_path / "results")
    console = plain()
    assert report_command(results, ReportOptions(readme=readme, figures=False), console, passed) == 0
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


def test_the_picture_has_each_ratio_of_the_tables_and_is_the_same_when_it_is_drawn_again() -> None:
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
    wanted = drawn["overview.svg"]
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


# What is published.


OWNER = {
    "node": "lab-7",
    "hostname": "lab-7",
    "interpreter": "/home/me/env/bin/python",
    "kernel": "5.15.0-91-chair",
    "platform": "Linux-5.15.0-91-chair-x86_64-with-glibc2.36",
    "slurm": {"job_id": "12", "account": "our-chair", "partition": "gpu", "nodelist": "lab-7"},
    "variables": {"XLA_FLAGS": "--xla_dump_to=/home/me/dump", "OMP_NUM_THREADS": "2"},
    "wandb_url": "https://wandb.example/lab/speed/runs/1",
}
NUMBERS = {"outputs": np.array([1.0, 2.0])}


def of_owner(**changes: Any) -> list[Record]:
    """JAX is 1.5 times as fast, in four replicates."""
    found = pair(environment=CPU | OWNER, **changes)
    return [one.model_copy(update={"parity": f"parity-{one.measurement.framework}.npz"}) for one in found]


def assert_of_nobody(path: Path) -> None:
    assert not {word for word in ("lab-", "/home", "chair", "interpreter") if word in path.read_text()}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Full and quick records on the sample, and the parity numbers of the full ones."""
    made = Results(root=tmp_path / "results")
    found = of_owner(data="sample")
    for one in [*found, *of_owner(data="sample", quick=True)]:
        save(one, made)
    for one in (found[0], found[-1]):
        of: dict[str, Any] = {"key": key_of(one.measurement), "created_at": one.ended_at, "shapes": {"outputs": (2,)}}
        metadata = ParityMetadata(outcome="ok", environment={"node": "lab-7", "job": "jax_mnist_1"}, **of)
        path = made.records(one.measurement.cell, one.measurement.framework) / str(one.parity)
        write_parity(ParityNumbers(metadata=metadata, kept=NUMBERS), path)
    return made


def test_full_records_are_copied_without_their_owner(results: Results, tmp_path: Path) -> None:
    shelf = publish(results, "cpu-2-cores", tmp_path / "published")
    paths = sorted(shelf.root.rglob("*.json"))
    originals = {path.name: read_record(path) for path in results.records().rglob("*.json")}
    assert len(paths) == 8
    for path in paths:
        assert_of_nobody(path)
        copy, original = read_record(path), originals[path.name]
        assert not copy.measurement.quick and copy.measurement.id == copy.measurement_id
        assert copy.result == original.result and copy.measurement == original.measurement
        assert copy.environment["node"] == "node-1"
        assert copy.environment["slurm"] == {"job_id": "12"}
        assert copy.environment["platform"] == "Linux-5.15.0-x86_64-with-glibc2.36"
        assert copy.environment["variables"] == {"XLA_FLAGS": "--xla_dump_to=(path)", "OMP_NUM_THREADS": "2"}
        assert copy.environment["wandb_url"] == OWNER["wandb_url"]
        parity = read_parity(path.with_name(str(copy.parity)))
        assert parity.metadata.environment == {"node": "node-1", "job": "jax_mnist_1"}
        np.testing.assert_array_equal(parity.kept["outputs"], NUMBERS["outputs"])
    assert [one.root for one in shelves(tmp_path / "published")] == [shelf.root]


def test_peaks_of_the_same_devices_go_along(results: Results, tmp_path: Path) -> None:
    """Of three records of peaks one is of another device."""
    found = [read_record(path) for path in results.records().rglob("*.json")]
    original = next(one for one in found if not one.measurement.quick)
    here = original.environment
    for name, where in {"jax-1": here, "torch-1": here | {"node": "lab-8"}, "torch-2": H200}.items():
        made = DevicePeaksRecord(framework="jax", started_at="", ended_at="", environment=where, peaks=[])
        write_device_peaks(made, results.device_peaks / f"{name}.json")
    shelf = publish(results, "cpu-2-cores", tmp_path / "published")
    peaks = {path.name: read_device_peaks(path) for path in sorted(shelf.device_peaks.iterdir())}
    nodes = {name: one.environment["node"] for name, one in peaks.items()}
    assert nodes == {"jax-1.json": "node-1", "torch-1.json": "node-2"}
    for path in shelf.device_peaks.iterdir():
        assert_of_nobody(path)


def test_what_cannot_be_published(results: Results, tmp_path: Path) -> None:
    published = tmp_path / "published"
    for name in ("../elsewhere", "", ".", "a/b"):
        with pytest.raises(ProjectError, match="a folder's name"):
            publish(results, name, published)
    quick = Results(root=tmp_path / "quick")
    save(of_owner(quick=True)[0], quick)
    with pytest.raises(ProjectError, match="has no record of a full measurement"):
        publish(quick, "mine", published)
    assert not published.exists()
    publish(results, "mine", published)
    with pytest.raises(ProjectError, match="exists; choose another name, or remove it first"):
        publish(results, "mine", published)


def test_one_command_publishes_and_fills_the_readme(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answers as a table and a picture; the same again from the published records alone."""
    readme, published = tmp_path / "README.md", tmp_path / "shelf" / "published"
    readme.write_text(f"# Title\n{PART_OF_README.begin}\nold\n{PART_OF_README.end}\n")
    monkeypatch.setattr(harness.paths, "README", readme)
    monkeypatch.setattr(harness.paths, "PUBLISHED", published)
    monkeypatch.setattr(command, "ParityGate", lambda _: type("Gate", (), {"judge": staticmethod(passed)}))
    assert main(["report", "--results", str(results.root), "--publish", "cpu-2-cores"]) == 0
    text = readme.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| Train a small CNN")]
    assert len(rows) == 1 and "| JAX | 1.50 × (1.50 to 1.50) |" in rows[0]
    for name, start in (("overview.svg", 'src="'), ("overview-dark.svg", 'srcset="')):
        assert f'{start}shelf/published/{name}"' in text
        words = list(ElementTree.parse(published / name).getroot().itertext())
        assert {"Train a small CNN", "mnist, batch 100, fp32"} <= set(words)
    assert "look before you commit it" in capsys.readouterr().out
    assert main(["report", "--update-readme"]) == 0
    assert readme.read_text() == text
