"""README.md and docs/ say nothing that the repository contradicts, and docs/adding.md works as it stands."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import main
from harness.catalog import differences, read_catalog
from harness.paths import REPOSITORY
from harness.settings import MeasurementSettings
from tests.copied_repository import copy_repository

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
ADDING = REPOSITORY / "docs" / "adding.md"
FIGURE = re.compile(
    r"\d[\d,.]*\s*(?:k\s*)?(?:samples|images|img|steps)\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b", re.IGNORECASE
)
MADE_LATER = ("results", "data", "slurm_scripts", ".venv", "use_cases", "benchmarks")
"""First parts of paths that a run makes, or that stand for both runners' folders."""
OF_THE_RECIPE = ("fashion_mnist", "inference")


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


def prose(text: str) -> str:
    """Without fenced code."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings: lower case, punctuation dropped, blanks to dashes."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """The words behind each `main.py`, in code blocks and between backticks, without comments."""
    pieces = re.findall(r"`([^`]+)`", prose(text))
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        pieces += block.replace("\\\n", " ").splitlines()
    for piece in pieces:
        line = " ".join(piece.split())
        if line.startswith("python main.py"):
            yield shlex.split(line, comments=True)[2:]


def make_targets(text: str) -> set[str]:
    return set(re.findall(r"(?:^|[`\s])make ([a-z]+)(?=[`\s]|$)", "\n".join(code(text)), re.MULTILINE))


def code(text: str) -> list[str]:
    """Everything in code blocks, fenced or indented, or between backticks."""
    fenced = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    .+$", prose(text), re.MULTILINE)
    return [*fenced, *indented, *re.findall(r"`[^`]+`", prose(text))]


def repository_paths(text: str) -> set[str]:
    """What stands between backticks and looks like a file or folder of the repository."""
    words = re.findall(r"`([\w./-]+)`", prose(text))
    top = {path.name for path in REPOSITORY.iterdir()}
    paths = {word for word in words if word in top or (word.partition("/")[0] in top and "/" in word)}
    return {
        path
        for path in paths
        if path.partition("/")[0] not in MADE_LATER and not any(name in path for name in OF_THE_RECIPE)
    }


@every_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text()), target


@every_page
def test_every_command_is_one_that_main_py_takes(page: Path) -> None:
    for words in commands(page.read_text()):
        name = words[0] if words and not words[0].startswith("-") else ""
        assert name in main.COMMAND_PARSERS, words
        parser, _ = main.COMMAND_PARSERS[name]
        flags = words[1:] if name else words
        if "--help" not in flags:  # it would end this process
            parser().parse(flags)


def test_commands_are_found_and_wrong_ones_are_noticed() -> None:
    text = "Run `python main.py report --csv x`.\n```sh\npython main.py --wiat   # no such flag\n```\n"
    found = list(commands(text))
    assert found == [["report", "--csv", "x"], ["--wiat"]]
    with pytest.raises(SystemExit):
        main.run_parser().parse(found[1])


@every_page
def test_every_flag_in_backticks_exists(page: Path) -> None:
    """Of main.py, of a runner's run.py, or of the tools that are named."""
    known = {flag for parser, _ in main.COMMAND_PARSERS.values() for flag in parser()._option_string_actions}
    run_py = (REPOSITORY / "harness" / "job.py").read_text()
    known |= set(re.findall(r'"(--[\w-]+)"', run_py))
    for words in re.findall(r"`([^`]+)`", prose(page.read_text())):
        if words.startswith("wandb "):
            continue
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", words):
            assert flag in known, words


@every_page
def test_every_make_target_exists(page: Path) -> None:
    defined = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert make_targets(page.read_text()) <= defined


def test_make_targets_are_found() -> None:
    assert make_targets("We make sense.\n\n    make tset   # wrong\n\nOr `make lint`.") == {"tset", "lint"}


@every_page
def test_every_path_of_the_repository_exists(page: Path) -> None:
    missing = [path for path in sorted(repository_paths(page.read_text())) if not (REPOSITORY / path).exists()]
    assert missing == []


def test_paths_are_found() -> None:
    assert repository_paths("`harness/nothing.py`, `harness/`, `results/x`, `a/b`, `main.py`") == {
        "harness/nothing.py",
        "harness/",
        "main.py",
    }


def test_architecture_names_every_module() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    modules = [path.name for folder in ("harness", "pipeline") for path in (REPOSITORY / folder).glob("[!_]*.py")]
    assert [name for name in sorted(modules) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("text", ["21,700 samples/s", "3k images per second", "12.5 img/sec", "900 steps/s"])
def test_a_figure_of_speed_is_recognised(text: str) -> None:
    assert FIGURE.search(text)


def test_readme_claims_no_speed() -> None:
    """Until the README has a table made from records, no figure in it could be backed by one."""
    assert FIGURE.findall((REPOSITORY / "README.md").read_text()) == []


def test_readme_has_the_section_that_messages_name() -> None:
    assert "see the README's section on W&B" in (REPOSITORY / "harness" / "wandb_process.py").read_text()
    assert re.search(r"^## .*W&B", (REPOSITORY / "README.md").read_text(), re.MULTILINE)


def test_measurement_page_has_the_defaults() -> None:
    text = (REPOSITORY / "docs" / "measurement.md").read_text()
    table = text.partition("### Settings")[2].partition("###")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", table, re.MULTILINE))
    assert {name: json.loads(value) for name, value in rows.items()} == MeasurementSettings().model_dump()


def test_measurement_page_has_the_thresholds() -> None:
    from harness import gradient_check, statistics

    text = (REPOSITORY / "docs" / "measurement.md").read_text()
    for precision, tolerance in gradient_check.TOLERANCES.items():
        row = re.search(rf"^\| `{precision}` \| (\d\S*) \| (\d\S*) \|", text, re.MULTILINE)
        assert row and (float(row[1]), float(row[2])) == tolerance
    flags = dict(
        re.findall(r"^\| `(\w+)` \| (.+) \|$", text.partition("### Flags")[2].partition("\n## ")[0], re.MULTILINE)
    )
    assert f"above {statistics.NOISY_SPREAD * 100:.0f} %" in flags["noisy"]
    assert f"above {statistics.UNSTABLE_SPREAD * 100:.0f} %" in flags["unstable"]
    assert f"more than {statistics.DRIFT * 100:.0f} %" in flags["drift"]
    assert f"under {statistics.SHORT_BLOCK_S} s" in flags["short_blocks"]
    assert f"under {statistics.calls_needed(0.95)} calls" in flags["too_few_latency_calls"]
    assert f"below {statistics.LOW_CLOCK_SHARE * 100:.0f} %" in flags["low_clocks"]
    assert f"under {statistics.ENERGY_WINDOW_MIN_S:.0f} s" in flags["energy_window_short"]
    sources = [(REPOSITORY / path).read_text() for path in ("harness/statistics.py", "pipeline/report/compare.py")]
    given = re.findall(r'(?:flags\[|return \{)"(\w+)"\] =|return \{"(\w+)": f', "\n".join(sources))
    assert {name for names in given for name in names if name} == set(flags)


# docs/adding.md, followed to the letter in a copy of the repository.


def recipe_blocks() -> dict[str, str]:
    """The code of each block by its first line, which says where it goes."""
    blocks = re.findall(r"^```(?:python|yaml)\n# ([^\n]+)\n(.*?)^```", ADDING.read_text(), re.MULTILINE | re.DOTALL)
    return dict(blocks)


def apply_recipe(repository: Path) -> None:
    for where, text in recipe_blocks().items():
        name, _, place = where.partition(", ")
        path = repository / name
        if not place:
            path.write_text(text)
            continue
        anchor = {
            "above DATASETS": "DATASETS = {\n",
            "in DATASETS": "DATASETS = {\n",
            "under benchmarks": "\nbenchmarks:\n",
            "under use_cases": "\nuse_cases:\n",
        }[place]
        before, found, after = path.read_text().partition(anchor)
        assert found, where
        path.write_text(before + (text + "\n\n" + found if place.startswith("above") else found + text) + after)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("extended")
    copy_repository(repository)
    apply_recipe(repository)
    return repository


def run(repository: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_recipe_has_all_of_its_blocks() -> None:
    assert list(recipe_blocks()) == [
        "harness/data.py, above DATASETS",
        "harness/data.py, in DATASETS",
        "torch_runner/benchmarks/fashion_mnist.py",
        "jax_runner/benchmarks/fashion_mnist.py",
        "experiments.yaml, under benchmarks",
        "torch_runner/use_cases/inference.py",
        "jax_runner/use_cases/inference.py",
        "experiments.yaml, under use_cases",
        "torch_runner/parity/inference.py",
        "jax_runner/parity/inference.py",
    ]


def test_recipe_adds_a_benchmark_and_a_use_case(extended: Path) -> None:
    assert differences(read_catalog(extended)) == []
    output = run(extended, "main.py", "--dry-run", "--benchmark", "fashion_mnist", "--use_case", "5", "--use_case", "3")
    # Three replicates, of one variant in JAX and two in PyTorch.
    assert "any/pair_fashion_mnist_5: 3 + 6 measurements (jax, torch in turn)" in output
    assert (extended / "slurm_scripts" / "jax_fashion_mnist_3.sh").exists()


def test_recipe_gives_the_same_logits_in_both_frameworks(extended: Path) -> None:
    """A float32 forward pass of the same images from the same weights."""
    load = (
        "import numpy as np; from pathlib import Path; from harness import data\n"
        "d = data.load('fashion_mnist', 'sample', Path('none'))\n"
        "assert d.train_images.shape == (1536, 28, 28, 1) and d.train_images.dtype == np.uint8\n"
        "x = ((d.train_images[:16] / 255 - d.mean) / d.std).astype(np.float32)\n"
    )
    run(
        extended,
        "-c",
        load + "import torch; from torch_runner.benchmarks.fashion_mnist import make_model\n"
        "from torch_runner.weights import load_initial_weights\n"
        "model = make_model('cnn'); load_initial_weights(model, 0)\n"
        "y = model(torch.from_numpy(x).permute(0, 3, 1, 2)).detach().numpy(); np.save('torch.npy', y)",
    )
    run(
        extended,
        "-c",
        load + "import jax; from jax_runner.benchmarks.fashion_mnist import FLATTENED, make_model\n"
        "from jax_runner.weights import load_initial_weights; from jax_runner.device import model_dtypes\n"
        "jax.config.update('jax_default_matmul_precision', 'highest')\n"
        "model = make_model('cnn', model_dtypes('fp32')); load_initial_weights(model, 0, FLATTENED)\n"
        "expected = np.load('torch.npy'); y = np.asarray(model(x))\n"
        "assert y.shape == (16, 10) and expected.std() > 0.1\n"
        "np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)",
    )


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_recipe_measures(extended: Path, framework: str) -> None:
    text = (extended / "experiments.yaml").read_text()
    eager_only = extended / "eager.yaml"  # compiling says nothing new about the recipe and takes half a minute
    eager_only.write_text(text.replace("      torch: [eager, compiled]\n", "      torch: [eager]\n"))
    output = run(
        extended,
        f"{framework}_runner/run.py",
        *("--benchmark", "fashion_mnist", "--use_case", "5", "--data", "sample", "--quick"),
        *("--config", str(eager_only), "--results", str(extended / "results")),
    )
    assert "1 measured, 0 had a record, 0 failed" in output
    (record,) = (extended / "results" / "records" / "any" / "fashion_mnist_5" / framework).glob("*.json")
    result = json.loads(record.read_text())["result"]
    # conv1 3*3*1*32 + 32, conv2 3*3*32*64 + 64, fc 3136*10 + 10
    assert result["parameter_count"] == 320 + 18_496 + 31_370
    assert result["blocks"]["samples_per_step"] == 256


def test_recipe_passes_the_parity_gate(extended: Path) -> None:
    """The records of the test above."""
    from harness.paths import Results
    from harness.record import read_record
    from pipeline.parity_gate import ParityGate

    results = Results(root=extended / "results")
    ours, theirs = (
        read_record(next((results.records() / "any" / "fashion_mnist_5" / framework).glob("*.json")))
        for framework in ("jax", "torch")
    )
    judgement = ParityGate(results).judge(ours, theirs)
    assert judgement.state == "passed", judgement.sentence


def test_measurement_page_has_the_tolerances_of_the_gate() -> None:
    from harness.parity import QUANTITIES

    table = (REPOSITORY / "docs" / "measurement.md").read_text().partition("## The parity gate")[2]
    rows = re.findall(r"^\| (`.+`) \| .+ \| (\d\S*) \|$", table.partition("**Why these")[0], re.MULTILINE)
    stated = {name: float(tolerance) for names, tolerance in rows for name in re.findall(r"`(\w+)`", names)}
    assert stated == {name: quantity.tolerance for name, quantity in QUANTITIES.items()}


def test_the_numbers_of_shard_map_are_those_of_the_record() -> None:
    """Median over rounds, and its interval by order statistics: the 14th and the 27th of 40."""
    record = json.loads((REPOSITORY / "results/published/sharding/mnist-256-cpu.json").read_text())
    ratios = sorted(times["named_sharding_s"] / times["shard_map_s"] for times in record["rounds"])
    assert len(ratios) == 40
    middle, low, high = (ratios[19] + ratios[20]) / 2, ratios[13], ratios[26]
    text = " ".join((REPOSITORY / "docs" / "measurement.md").read_text().split())
    assert f"was {middle:.2f} times as fast, with a 95 % interval of {low:.2f} to {high:.2f}" in text
