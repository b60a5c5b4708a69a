"""The command of a framework's process: its Python on this machine or in a container, behind its set-up lines."""

import hashlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from harness.paths import REPOSITORY
from harness.plan import Launch


def command_of(
    launch: Launch,
    words: Sequence[str],
    folders: Sequence[Path] = (REPOSITORY,),
    *,
    for_cpu: bool = False,
    name: str = f"jax-vs-torch-{os.getpid()}",
) -> list[str]:
    """What starts `words`, the arguments of the framework's Python: here, or as a task of a step.

    Args:
        folders: that the process finds under their own names; it starts in the first.
        for_cpu: no GPU is shown to it.
        name: unique on this machine; that of the container where it has one.
    """
    inside = [python_of(launch), *words]
    mounts, image = mounts_of(launch, folders), str(launch.image)
    match launch.runtime:
        case "apptainer":
            binds = [word for mount in mounts for word in ("--bind", mount)]
            gpu = [] if for_cpu else ["--nv"]
            inside = ["apptainer", "exec", *gpu, "--pwd", str(folders[0]), *binds, *launch.options, image, *inside]
        case "charliecloud":
            binds = [f"--bind={mount}" for mount in mounts]
            inside = ["ch-run", *binds, f"--cd={folders[0]}", *launch.options, image, "--", *inside]
        case "podman":
            binds = [f"--volume={mount}" for mount in mounts]
            gpu = [] if for_cpu else ["--device=nvidia.com/gpu=all"]
            run = ["podman", "run", "--rm", "--interactive", "--network=host", "--ipc=host", "--env-host"]
            inside = [*run, f"--name={name}", *gpu, f"--workdir={folders[0]}", *binds, *launch.options, image, *inside]
    if not launch.setup:
        return inside
    lines = "\n".join(["set -e", *launch.setup, 'exec "$@"'])
    return ["bash", "-c", lines, "setup", *inside]


def python_of(launch: Launch) -> str:
    return launch.python or ("python3" if launch.runtime else sys.executable)


def kill_command(launch: Launch, name: str) -> list[str]:
    """What ends a container that outlives the process which started it; empty where that is the process itself."""
    return ["podman", "kill", name] if launch.runtime == "podman" else []


def step_options(launch: Launch, folders: Sequence[Path]) -> list[str]:
    """Of srun: pyxis, a plugin of Slurm, takes its container from there."""
    if launch.runtime != "pyxis":
        return []
    return [
        f"--container-image={launch.image}",
        f"--container-mounts={','.join(mounts_of(launch, folders))}",
        f"--container-workdir={folders[0]}",
        *launch.options,
    ]


def mounts_of(launch: Launch, folders: Sequence[Path]) -> list[str]:
    """`/host:/inside`; a folder that is in another one comes with that one."""
    outermost = [one for one in dict.fromkeys(folders) if not any(other in one.parents for other in folders)]
    if launch.runtime == "charliecloud":
        outermost = [one for one in outermost if one != Path("/tmp")]  # is there by itself, and must not be bound again
    return [one if ":" in one else f"{one}:{one}" for one in (*map(str, outermost), *launch.mounts)]


def describe_container(launch: Launch) -> dict[str, Any]:
    """For the record: runtime, image, and the digest of its content. Empty without a container."""
    if launch.image is None:
        return {}
    digest = digest_of_image(launch.image)
    return {"container": {"runtime": launch.runtime, "image": launch.image, "digest": digest}}


@cache
def digest_of_image(image: str) -> str | None:
    """`sha256:...`. Of a file, that of its content; of an unpacked folder, that of the names and sizes in it; of a name
    in a registry, what stands behind its @. None where nothing of this can be had."""
    path = Path(image)
    try:
        if path.is_file():
            with path.open("rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        if path.is_dir():
            return f"sha256:{_digest_of_folder(path)}"
    except OSError:
        return None
    return image.partition("@")[2] or None


def _digest_of_folder(root: Path) -> str:
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            one = Path(folder, name)
            digest.update(os.fsencode(f"{one.relative_to(root)}\0{one.lstat().st_size}\n"))
    return digest.hexdigest()
