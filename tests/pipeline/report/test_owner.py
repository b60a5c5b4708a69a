"""No name of a machine, a person, an account, a cluster or a folder in any published byte: names are injected
everywhere, and then looked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from harness.errors import ProjectError
from harness.paths import PUBLISHED, Results
from harness.results.device_peaks import DevicePeaksRecord, write_device_peaks
from harness.results.npz import read_npz
from harness.results.parity import ParityMetadata, ParityNumbers, key_of
from harness.results.parity_file import read_parity, write_parity
from harness.results.record import Evaluation, RankResult, Record, WeightsIdentity, read_record
from pipeline.report import owner
from pipeline.report.owner import Names, names_of, names_of_this_process, words_of_the_project
from pipeline.report.publish import publish
from tests.made.explained_records import explanation
from tests.made.report_records import CELL, CPU, pair, record, save, with_result

HOST, SIBLING, DOMAIN = "lab-7", "lab-9", "chair.example.org"
USER, ACCOUNT, CLUSTER = "alice", "our-chair", "deep-thought"
PARTITION, QOS, JOB = "chair-gpus", "chair-high", "night-of-alice"
PUBLISHER, DESK = "carol", "desk-3"
"""Who publishes, and where: not who measured."""
NAMES = (
    HOST,
    SIBLING,
    "lab-",
    DOMAIN,
    USER,
    ACCOUNT,
    CLUSTER,
    PARTITION,
    QOS,
    JOB,
    PUBLISHER,
    DESK,
    "/home",
    "10.20.30",
)
"""None of these may be left anywhere, in upper or lower case, not even as a part of a word."""
SENTENCE = (
    f"srun: error: Node failure on {HOST} ({HOST.upper()}.{DOMAIN}, then {SIBLING}), says {USER}@{HOST} of {ACCOUNT} "
    f"in {PARTITION}, {QOS}, {CLUSTER}, {JOB}; {PUBLISHER} on {DESK}, {USER}@{HOST}.{DOMAIN}, "
    f"https://wandb.example/{USER}/speed/runs/1 and https://{HOST}.{DOMAIN}/x; ipv4:10.20.30.40:1234 and 10.20.30.41; "
    f"see '/home/{USER}/runs', ~{USER}/x, /opt/lib:/home/{USER}/lib,/home/{USER}/z -L/home/{USER}/y "
    f"--dir=/scratch/{USER} file:///home/{USER}/f /home/Alice Smith/papers/{USER}.txt /work/{USER}:ro"
)
ENVIRONMENT = CPU | {
    "node": HOST,
    "hostname": f"{HOST}.{DOMAIN}",
    "interpreter": f"/home/{USER}/env/bin/python",
    "kernel": f"5.15.0-91-{ACCOUNT}",
    "platform": f"Linux-5.15.0-91-{ACCOUNT}-x86_64-with-glibc2.36",
    "slurm": {
        "job_id": "4714",
        "job_name": JOB,
        "cluster": CLUSTER,
        "partition": PARTITION,
        "account": ACCOUNT,
        "qos": QOS,
        "nodelist": "lab-[7-8]",
        "nodes": 1,
    },
    "git": {"commit": None, "clean": None, "absent": "git is not installed"},
    "gpu": {"absent": "NVML does not start"},
    "container": {"image": "an image"},
    "packages": {"numpy": "2.4.6", "nvidia-curand": "10.3.9.90"},
    "pairing": {"kind": "together", "pair": "20261125T042057.140448Z-89bb"},
    "variables": {
        "XLA_FLAGS": "--xla_dump_to=",
        "OMP_NUM_THREADS": "2",
        "LD_LIBRARY_PATH": f"/usr/local/cuda/lib64:/home/{USER}/lib",
        "JAX_COORDINATOR_PASSPHRASE": "open sesame",
        "JAX_COORDINATOR_ADDRESS": "10.20.30.40:1234",
    },
    "wandb_url": f"https://wandb.example/{USER}/speed/runs/1",
}


@pytest.fixture(autouse=True)
def publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, PUBLISHER)
    monkeypatch.setattr(owner.socket, "gethostname", lambda: f"{DESK}.{DOMAIN}")


def full_record(**changes: Any) -> Record:
    """One that has all texts that a record can have, of a failed measurement on two devices."""
    cell = CELL.model_copy(update={"devices": 2})
    made = record(
        "jax", "step.jit", cell=cell, environment=ENVIRONMENT, outcome="failed", reason="It ended.", **changes
    )
    explained = explanation({"aten::mm": (1, 1.0)}, step_ms=2.0, on_device=False, work_absent="no rule")
    evaluation = Evaluation(shape=[2, 10], predictions="AAAAAA==", sha256="5e", test_metric_absent="weights are drawn")
    rank = {"rank": 1, "node": SIBLING, "gpu_uuids": ["GPU-1"], "gpu_names": ["NVIDIA H200"]}
    nothing = {"block_times_s": [], "call_times_s": [], "memory": {"absent": "a CPU"}, "energy": {"absent": "a CPU"}}
    made = with_result(
        made,
        explanation=explained,
        explanation_absent="It broke off.",
        evaluation=evaluation,
        compile_time_warm_absent="no time",
        blocks_alone_absent="no time",
        gpu_states_absent="no GPU",
        units={"tokens": 2.0},
        details={"batch_norm": "local", "phases": {"forward": "1 ms"}},
    )
    weights = WeightsIdentity(source="torchvision", sha256="5e", top1_of_1000_percent=76.1)
    fields = {
        "flags": {"noisy": "The interval is wide."},
        "job": "jax_mnist_1-20261121T101502.123456Z-3fa9",
        "ranks": [RankResult.model_validate(rank | nothing)],
        "weights": weights,
        "parity": "parity-1.npz",
    }
    return made.model_copy(update=fields)


def texts_in(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all texts of JSON."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from texts_in(value, (*place, key))
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from texts_in(value, (*place, number))
    elif isinstance(content, str):
        yield place


def with_text(content: Any, place: tuple[Any, ...], text: str) -> Any:
    if not place:
        return text
    first, *others = place
    changed = content.copy()
    changed[first] = with_text(content[first], tuple(others), text)
    return changed


def injected(whole: Record) -> tuple[Record, set[tuple[Any, ...]]]:
    """With SENTENCE at the end of each text that takes it, and as a key wherever any key goes; and which texts took
    it. The measurement, which has its id by its content, is left as it is."""
    content = whole.model_dump(mode="json")
    took = set()
    for place in texts_in(content):
        kept = (("measurement",), ("measurement_id",), ("started_at",), ("ended_at",), ("environment", "slurm"))
        if any(place[: len(one)] == one for one in kept) or place[-1] in ("node", "parity"):
            continue
        value = content
        for part in place:
            value = value[part]
        changed = with_text(content, place, f"{value}{'' if place[-1] == 'kernel' else ' '}{SENTENCE}")
        try:
            Record.model_validate(changed)
        except ValidationError:
            continue
        content = changed
        took.add(place)
    content["environment"] |= {HOST: 1, f"of {USER}": {ACCOUNT: [SENTENCE]}}
    content["flags"] |= {f"slow on {HOST}": SENTENCE}
    content["result"]["details"] |= {f"of {USER}": SENTENCE}
    content["result"]["units"] |= {f"tokens of {USER}": 1.0}
    return Record.model_validate(content), took


def all_text(path: Path) -> str:
    """Return all texts in a file, and its name."""
    if path.suffix != ".npz":
        return f"{path.name}\n{path.read_text()}"
    arrays = read_npz(path)
    return "\n".join([path.name, *arrays, *(str(array) for array in arrays.values() if array.dtype.kind in "US")])


def assert_nameless(folder: Path) -> int:
    """Return the number of files that were read."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for path in paths:
        text = all_text(path).lower()
        left = [name for name in NAMES if name in text]
        assert not left, (path, left, [text[max(0, text.index(one) - 60) : text.index(one) + 60] for one in left])
    return len(paths)


def test_no_name_that_is_injected_anywhere_is_published(tmp_path: Path) -> None:
    """In each text of a record, in open keys, in names of files, in parity numbers and device peaks."""
    results = Results(root=tmp_path / "results")
    whole, took = injected(full_record())
    places = {"reason", "noisy", "absent", "explanation_absent", "source", "tracer", "name"}
    assert {place[-1] for place in took} >= places
    assert len(took) > 40
    parity = f"parity-{CLUSTER}-1.npz"
    whole = whole.model_copy(update={"parity": parity})
    path = save(whole, results)
    path = path.rename(path.with_name(f"{HOST}-{USER}-{path.name}"))
    metadata = ParityMetadata(
        key=key_of(whole.measurement),
        outcome="failed",
        reason=SENTENCE,
        environment=ENVIRONMENT | {"said": SENTENCE, "node": SIBLING},
        created_at=whole.ended_at,
        shapes={f"gradients/{USER}": (1,)},
    )
    numbers = {f"gradients/{USER}": np.array([1.5])}
    write_parity(ParityNumbers(metadata=metadata, kept=numbers), path.with_name(parity))
    peaks = {"started_at": "", "ended_at": "", "environment": whole.environment | {"said": SENTENCE}, "peaks": []}
    of_device = DevicePeaksRecord(framework="jax", unsupported={"tf32": SENTENCE}, **peaks)
    write_device_peaks(of_device, results.device_peaks / f"{HOST}-jax.json")
    shelf = publish(results, "two-gpus", tmp_path / "published")
    assert assert_nameless(shelf.root) == 3
    (published,) = shelf.records().rglob("*.json")
    copy = read_record(published)
    assert copy.measurement == whole.measurement and copy.result.blocks == whole.result.blocks
    assert (copy.environment["node"], copy.ranks[0].node) == ("node-1", "node-2")
    assert copy.environment["platform"].startswith("Linux-5.15.0")
    assert copy.environment["slurm"] == {"job_id": "4714", "nodes": 1}
    assert set(copy.environment["variables"]) == {"XLA_FLAGS", "OMP_NUM_THREADS"}
    assert "wandb_url" not in copy.environment
    assert copy.reason.startswith("It ended. srun: error: Node failure on node-1 (node-1, then node-2), says (user)@")
    assert read_parity(published.with_name(str(copy.parity))).kept == {"gradients/(user)": [1.5]}


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("measurement.cell.gpu", {"cell": CELL.model_copy(update={"gpu": HOST})}),
        ("measurement.settings.epochs", {"settings": {"epochs": PUBLISHER}}),
    ],
)
def test_measurement_with_a_name_is_refused_and_nothing_is_written(
    field: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """A measurement is never changed, as its content is its id. The refusal says where the name is."""
    results = Results(root=tmp_path / "results")
    for one in [*pair(environment=ENVIRONMENT), record("jax", "step.jit", environment=ENVIRONMENT, **changes)]:
        save(one, results)
    with pytest.raises(ProjectError, match=rf"(?s)nothing is published.*\.json: {field}: `({HOST}|{PUBLISHER})`"):
        publish(results, "mine", tmp_path / "published")
    assert not (tmp_path / "published").exists()


@pytest.mark.parametrize("name", [HOST, PUBLISHER, f"{DESK}-cpu"])
def test_shelf_named_after_a_host_or_a_user_is_refused(name: str, tmp_path: Path) -> None:
    results = Results(root=tmp_path / "results")
    for one in pair(environment=ENVIRONMENT):
        save(one, results)
    with pytest.raises(ProjectError, match=f"--publish {name}: `"):
        publish(results, name, tmp_path / "published")
    assert not (tmp_path / "published").exists()


def test_what_is_published_is_published_again_byte_by_byte(tmp_path: Path) -> None:
    """Publish records of eleven nodes, whose numbers have one digit or two."""
    results = Results(root=tmp_path / "results")
    for number in range(11):
        save(record("jax", "step.jit", replicate=number, environment=ENVIRONMENT | {"node": f"lab-{number}"}), results)
    made = publish(results, "eleven", tmp_path / "once")
    nodes = {read_record(path).environment["node"] for path in made.records().rglob("*.json")}
    assert nodes == {f"node-{number}" for number in range(1, 12)}
    for first in (made, Results(root=PUBLISHED / "cpu-2-cores")):
        assert_same_files(first.root, publish(first, first.root.name, tmp_path / "twice").root)


def assert_same_files(one: Path, other: Path) -> None:
    first, second = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (one, other)
    )
    assert first == second and first


def names(*contents: Any, **own: str) -> Names:
    return names_of(contents, own)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Words of errors, of figures, of kernels and of URLs stay.
        *((text, text) for text in ("JAX / PyTorch", "images/s", "1/2", "/", "x//y", "any/jax_mnist_1", "node-1")),
        *((text, text) for text in ("https://a.example/b/c", "https://www.cs.toronto.edu/~kriz/cifar.html")),
        *((text, text) for text in ("jit(step)/jit(main)/dot_general", "2.14.1+cu130", "10.3.9.90", "(path):(path)")),
        ("void at::native::vectorized_elementwise_kernel<4, float>",) * 2,
        ("File '/opt/env/lib/a.py', line 3", "File '(path)', line 3"),
        ("~/runs/out.txt", "(path)"),
        ("~bob/x and ~bob/y/z", "(path) and (path)"),
        ("a=/scratch/me", "a=(path)"),
        ("/a/b:/c/d,/e/f", "(path):(path),(path)"),
        (":/home/bob/src", ":(path)"),
        ("-L/a/b -I/c/d", "-L(path) -I(path)"),
        ("file:///a/b", "file://(path)"),
        ("/home/John Smith/p", "(path)"),
        ("cp /a/b to /c/d", "cp (path) to (path)"),
        ("/scratch", "(path)"),
        ("connect to 10.20.30.40:1234 failed", "connect to (address) failed"),
        ("ask bob@uni.example.org", "ask (address)"),
    ],
)
def test_paths_and_addresses_are_replaced_and_nothing_else(text: str, expected: str) -> None:
    found = names({"node": "node-1"}).cleaned({"reason": text})
    assert found == {"reason": expected}
    assert names({"node": "node-1"}).cleaned(found) == found
    assert not list(names().found_in(found))


def test_names_are_replaced_as_words_also_beside_their_neighbours() -> None:
    known = names({"node": "gpu-node-17"}, {"account": "bio"}, bob="(user)")
    said = "GPU-NODE-17 and gpu-node-18 of bio, biology and bob's bobsled"
    assert known.replaced(said) == "node-1 and (node) of (account), biology and (user)'s bobsled"
    assert [found.name for found in known.found_in({"x": ["Bob", {"bio": "bobsled"}]})] == ["Bob", "bio"]


def test_word_of_the_project_is_nobodys_name() -> None:
    """A node or a partition called `gpu`, a user called `root` or `train`: only what stands under `node` is renamed."""
    assert {"gpu", "root", "train", "vmap", "jax", "mnist", "resnet18", "result"} <= words_of_the_project()
    content = {"node": "gpu", "framework": {"platform": "gpu"}, "ranks": [{"node": "gpu"}], "partition": "normal"}
    known = names(content, train="(user)", root="(user)")
    assert known.cleaned(content | {"reason": "train as root on gpu"}) == {
        "node": "node-1",
        "framework": {"platform": "gpu"},
        "ranks": [{"node": "node-1"}],
        "reason": "train as root on gpu",
    }


def test_predictions_that_look_like_a_path_stay_and_so_does_the_own_job_name() -> None:
    """Base64 has slashes; the first class here is 255, of 1,000. A job is called as its folder begins; one that a user
    has called otherwise is a name."""
    content = {"predictions": "/wA/al+/al/+"}
    known = names(al="(user)")
    assert known.cleaned(content) == content and not list(known.found_in(content))
    assert known.cleaned({"predictions": "as al says"}) == {"predictions": "as (user) says"}
    job = "pair_mnist_1-20261125T062912.236566Z-bcd4"
    assert names_of([{"job_name": "pair_mnist_1"}], {}, [job]).replaced(job) == job
    assert names_of([{"job_name": "pair_mnist_1"}], {}).replaced("of pair_mnist_1.") == "of (job)."


def test_names_of_this_process_are_its_users_hosts_and_slurms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", ACCOUNT)
    monkeypatch.setattr(owner.getpass, "getuser", lambda: "dave")
    found = names_of_this_process()
    expected = {PUBLISHER: "(user)", "dave": "(user)", DESK: "(node)", DOMAIN: "(domain)", ACCOUNT: "(account)"}
    assert found.items() >= expected.items()
    assert json.dumps(found)
