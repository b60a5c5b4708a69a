"""The commands by which a framework's processes are started, word by word; and what a record says of an image."""

import hashlib
import sys
from pathlib import Path

from harness.job.launch import command_of, describe_container, digest_of_image, kill_command, step_options
from harness.plan import Launch

FOLDERS = [Path("/repo"), Path("/repo/results"), Path("/scratch/data"), Path("/tmp")]
RUN = ["-u", "run.py"]


def command(launch: Launch, *, for_cpu: bool = False) -> list[str]:
    return command_of(launch, RUN, FOLDERS, for_cpu=for_cpu, name="caches-0")


def test_without_a_container_it_is_the_jobs_own_python_or_another() -> None:
    assert command(Launch()) == [sys.executable, *RUN]
    assert command(Launch(python="/envs/jax/bin/python")) == ["/envs/jax/bin/python", *RUN]
    assert step_options(Launch(), FOLDERS) == kill_command(Launch(), "caches-0") == []


def test_a_container_has_the_gpus_unless_it_is_for_the_cpu_and_folders_once() -> None:
    """A folder that is in another one comes with that one. All of a command: submission/golden/containers.sh."""
    apptainer = Launch(runtime="apptainer", image="/i/jax.sif", mounts=("/opt/a:/b",), options=("--cleanenv",))
    binds = ["--bind", "/repo:/repo", "--bind", "/scratch/data:/scratch/data", "--bind", "/tmp:/tmp"]
    inside = [*binds, "--bind", "/opt/a:/b", "--cleanenv", "/i/jax.sif", "python3", *RUN]
    assert command(apptainer) == ["apptainer", "exec", "--nv", "--pwd", "/repo", *inside]
    assert command(apptainer, for_cpu=True) == ["apptainer", "exec", "--pwd", "/repo", *inside]
    podman = Launch(runtime="podman", image="docker.io/lab/jax@sha256:12")
    assert set(command(podman)) - set(command(podman, for_cpu=True)) == {"--device=nvidia.com/gpu=all"}
    assert kill_command(podman, "caches-0") == ["podman", "kill", "caches-0"]


def test_pyxis_is_a_part_of_the_step() -> None:
    """pyxis' own --help: --container-image, --container-mounts=SRC:DST[,SRC:DST...], --container-workdir."""
    launch = Launch(
        runtime="pyxis", image="/i/jax.sqsh", python="/usr/bin/python3", options=("--no-container-mount-home",)
    )
    assert command(launch) == ["/usr/bin/python3", *RUN]
    assert step_options(launch, FOLDERS) == [
        "--container-image=/i/jax.sqsh",
        "--container-mounts=/repo:/repo,/scratch/data:/scratch/data,/tmp:/tmp",
        "--container-workdir=/repo",
        "--no-container-mount-home",
    ]


def test_charliecloud_shares_tmp_by_itself() -> None:
    launch = Launch(runtime="charliecloud", image="/i/jax", options=("--write",))
    binds = ["--bind=/repo:/repo", "--bind=/scratch/data:/scratch/data"]
    assert command(launch) == ["ch-run", *binds, "--cd=/repo", "--write", "/i/jax", "--", "python3", *RUN]


def test_what_a_record_says_of_an_image(tmp_path: Path) -> None:
    image = tmp_path / "jax.sif"
    image.write_bytes(b"an image")
    digest = f"sha256:{hashlib.sha256(b'an image').hexdigest()}"
    launch = Launch(runtime="apptainer", image=str(image))
    assert describe_container(launch) == {"container": {"runtime": "apptainer", "image": str(image), "digest": digest}}
    assert describe_container(Launch()) == {}
    assert digest_of_image("docker.io/lab/jax@sha256:12") == "sha256:12"
    assert digest_of_image("nvcr.io#nvidia/jax:26.10") is None


def test_the_digest_of_a_folder_is_of_its_names_and_sizes(tmp_path: Path) -> None:
    """Where a file was written does not matter, and what is inside a link is not read."""

    def digest(folder: str, name: str = "a", text: str = "content", link: str = "gone") -> str | None:
        place = tmp_path / folder / "usr"
        place.mkdir(parents=True)
        (place / name).write_text(text)
        (place / link).symlink_to("/nowhere")
        return digest_of_image(str(tmp_path / folder))

    same = digest("one")
    assert digest("other") == same is not None
    others = (digest("renamed", name="b"), digest("longer", text="contents"), digest("a link", link="more"))
    assert same not in others
