"""The fake libraries, made with g++ for the installed PyTorch: once for each version of it and of their sources.

Their headers are those of CUDA in PyTorch's and Triton's wheels. What PyTorch needs of CUDA and nobody has written here
becomes a stub that says so when it is called, and fails.
"""

import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness import locks
from harness.errors import ProjectError

SOURCES = Path(__file__).parent / "driver"
CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
PYTORCH_LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_python.so", "libtorch_cuda_linalg.so")
HEADERS = ("nvidia/cu13/include", "triton/backends/nvidia/include", "nvidia/cudnn/include", "nvidia/nccl/include")
"""Where the packages lie. Triton's come second: they hold those of the compiler nvcc, which PyTorch's lack."""
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wno-missing-field-initializers")

STUBS = {"__cuda": 801, "cuda": 801, "cublas": 15, "cudnn": 3000, "nccl": 3, "cusparse": 10, "cusolver": 9, "cufft": 16}
"""What the stubs of a library return: its own `not supported`, or an internal error where it has none."""


@dataclass(frozen=True, kw_only=True)
class Library:
    name: str
    """The name by which a process loads it."""
    sources: tuple[str, ...]
    with_stubs: bool = False
    """For all else that PyTorch needs."""


LIBRARIES = (
    Library(
        name=CUDA,
        sources=(
            *("card.cpp", "log.cpp", "devices.cpp", "memory.cpp", "streams.cpp", "kernels.cpp", "tiny_kernels.cpp"),
            *("driver.cpp", "blas.cpp", "dnn.cpp", "nccl.cpp"),
        ),
        with_stubs=True,
    ),
    Library(name=NVML, sources=("card.cpp", "nvml.cpp")),
)


def build(folder: Path) -> Path:
    """The folder that holds the libraries; what is there already is kept.

    Raises:
        ProjectError: this machine cannot make them.
    """
    if why := why_not():
        raise ProjectError(why)
    made = folder / _key()
    with locks.hold(folder / "build.lock", while_waiting=lambda _: None):
        if not made.exists():
            _make(made)
    return made


def why_not() -> str | None:
    """Why the libraries cannot be made here, with the way out."""
    packages = _packages()
    if packages is None or not (packages / "torch" / "lib" / PYTORCH_LIBRARIES[0]).exists():
        return "the fake CUDA is for PyTorch's CUDA build, which is not installed here: make env EXTRAS=jax,torch"
    if lacking := [tool for tool in ("g++", "gcc", "nm") if not shutil.which(tool)]:
        return f"the fake CUDA is compiled when it is needed, and {', '.join(lacking)} is missing: apt install g++"
    if lacking := [name for name in HEADERS if not (packages / name).is_dir()]:
        return (
            f"the fake CUDA is compiled with the headers of PyTorch's wheels for CUDA 13, and {packages / lacking[0]} "
            f"is missing. Install PyTorch by pip from its default index"
        )
    return None


def _packages() -> Path | None:
    """The folder in which PyTorch lies."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent.parent if found and found.origin else None


def _key() -> str:
    packages = _packages()
    assert packages
    version = (packages / "torch" / "version.py").read_text()
    files = [*sorted(SOURCES.iterdir()), Path(__file__)]
    content = [version.encode(), *(part for path in files for part in (path.name.encode(), path.read_bytes()))]
    match = re.search(r"__version__ = '([^']+)'", version)
    digest = hashlib.sha256(b"\0".join(content)).hexdigest()[:12]
    return f"torch-{match[1] if match else 'unknown'}-{digest}"


def _make(made: Path) -> None:
    """In a folder beside it that becomes it when all is done."""
    packages = _packages()
    assert packages
    workshop = made.with_name(f".{made.name}.{os.getpid()}-{secrets.token_hex(4)}")
    workshop.mkdir(parents=True)
    try:
        for library in LIBRARIES:
            _make_library(library, workshop, packages)
        workshop.rename(made)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _make_library(library: Library, workshop: Path, packages: Path) -> None:
    headers = [f"-I{packages / name}" for name in HEADERS]
    objects = {source: workshop / f"{library.name}.{source}.o" for source in library.sources}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = [
            pool.submit(_run, ["g++", *FLAGS, "-c", str(SOURCES / source), "-o", str(made), *headers])
            for source, made in objects.items()
        ]
        for one in compiled:
            one.result()
    parts = [*objects.values()]
    if library.with_stubs:
        parts.append(_make_stubs(workshop, packages, parts))
    names = [str(part) for part in parts]
    linked = workshop / library.name
    _run(["g++", "-shared", f"-Wl,-soname,{library.name}", "-o", str(linked), *names, "-ldl", "-lpthread"])
    (workshop / library.name.removesuffix(".1")).symlink_to(library.name)  # for linkers
    for part in parts:
        part.unlink()


def _make_stubs(workshop: Path, packages: Path, objects: Sequence[Path]) -> Path:
    needed = _symbols(["-D", "--undefined-only"], [packages / "torch" / "lib" / name for name in PYTORCH_LIBRARIES])
    left = sorted(needed - _symbols(["--defined-only"], objects))
    source = workshop / "stubs.c"
    lines = [
        f'int {name}() {{ fake_cuda_stub("{name}"); return {STUBS[library]}; }}'
        for name in left
        if (library := next((prefix for prefix in STUBS if name.startswith(prefix)), None))
    ]
    source.write_text("\n".join(["void fake_cuda_stub(const char *);", *lines, ""]))
    made = source.with_suffix(".o")
    _run(["gcc", "-O1", "-fPIC", "-c", str(source), "-o", str(made)])
    return made


def _symbols(options: Sequence[str], files: Sequence[Path]) -> set[str]:
    """Without the versions that a library gives them: `cudaMalloc@libcudart.so.13`."""
    lines = _run(["nm", *options, *(str(file) for file in files if file.exists())]).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if len(line.split()) > 1}


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ProjectError(
            f"the fake CUDA cannot be made: {command[0]} ended with status {done.returncode}. Its functions are those "
            f"of CUDA 13; another CUDA may have changed one (tests/fake_cuda/README.md). {done.stderr.strip()[-2000:]}"
        )
    return done.stdout
