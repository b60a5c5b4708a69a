"""How long 10,000 cells take from experiments.yaml to a printed dry run: `python -m bench.planning`. Goal: under 4 s.

Beside it, how long the same number of scripts takes to write alone: on a slow or shared disk that is most of it.
On ext4 a run within five minutes of another has up to 3 s more in the kernel: it looks for inodes that were not just
removed, one by one.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from harness.paths import REPOSITORY

CELLS = 10_000
FLAGS = ("--benchmark", "mnist", "--benchmark", "cifar10", "--use_case", "1", "--use_case", "3")
GPUS = CELLS // 4  # two benchmarks, two use cases


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = root / "experiments.yaml"
        config.write_text(with_many_gpus((REPOSITORY / "experiments.yaml").read_text()))
        for part in ("main.py", "harness", "pipeline", "jax_runner", "torch_runner", "templates"):
            (root / part).symlink_to(REPOSITORY / part)
        start = perf_counter()
        paths = ["--config", str(config), "--results", str(root / "results")]
        command = [sys.executable, "main.py", *FLAGS, "--dry-run", *paths]
        printed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        dry_run_s = perf_counter() - start
        scripts = list((REPOSITORY / "slurm_scripts").glob("card*/*.sh"))
        texts = [script.read_text() for script in scripts]
        start = perf_counter()
        (root / "bare").mkdir()
        for number, text in enumerate(texts):
            (root / "bare" / str(number)).write_text(text)
        bare_s = perf_counter() - start
        for script in scripts:
            script.unlink()
        for emptied in (REPOSITORY / "slurm_scripts").glob("card*"):
            emptied.rmdir()
    print(
        f"planning: {len(scripts)} scripts of {CELLS} cells in {dry_run_s:.1f} s, "
        f"{len(printed.splitlines())} lines printed (writing them alone: {bare_s:.1f} s; goal under 4 s)"
    )
    return 0


def with_many_gpus(text: str) -> str:
    names = [f"card{number}" for number in range(GPUS)]
    text = text.replace("gpus:\n  any: {}\n", "gpus:\n  any: {}\n" + "".join(f"  {name}: {{}}\n" for name in names), 1)
    return text.replace("gpus: [any]", f"gpus: [{', '.join(names)}]", 1)


if __name__ == "__main__":
    sys.exit(main())
