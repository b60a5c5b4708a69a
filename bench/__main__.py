"""`python -m bench [PART]...`: each part in a process of its own; all of them without a name. PARTS has the names."""

import subprocess
import sys

PARTS = {
    "timed_loop": (["-m", "bench.timed_loop", "jax"], ["-m", "bench.timed_loop", "torch"]),
    "opacus": tuple(
        ["-m", "bench.opacus_comparison", benchmark, batch_size]
        for benchmark in ("mnist", "cifar10")
        for batch_size in ("64", "256")
    ),
    "planted_slowdown": (["-m", "bench.planted_slowdown", "jax"], ["-m", "bench.planted_slowdown", "torch"]),
    "sharding": (["-m", "bench.sharding", "mnist", "256"], ["-m", "bench.sharding", "cifar10", "64"]),
    "many_models": tuple(["-m", "bench.many_models", models] for models in ("8", "64")),
    "planning": (["-m", "bench.planning"],),
    "interval_coverage": (["-m", "bench.interval_coverage"],),
    "best_of_modes": (["-m", "bench.best_of_modes"],),
    "rounding": (["-m", "bench.rounding"],),
    "report": (["-m", "bench.report"],),
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        print(f"{', '.join(unknown)}: no such part; valid: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    codes = [
        subprocess.run([sys.executable, *arguments], check=False).returncode
        for name in names or PARTS
        for arguments in PARTS[name]
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
