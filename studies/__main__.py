"""`python -m studies [PART]...`: prints what each study finds now and writes no record; every study without a name."""

import sys

from bench.parts import run_parts

PARTS = {
    "interval_coverage": ([],),
    "best_of_modes": ([],),
    "screening": ([],),
    "rounding": ([],),
    "output_rounding": ([],),
    "sharding": (["mnist", "256"],),
    "planted_slowdown": (["jax"], ["torch"]),
    "planted_causes": ([],),
    "planted_causes_on_cpu": (["jax"], ["torch"]),
}

if __name__ == "__main__":
    sys.exit(run_parts("studies", PARTS, sys.argv[1:]))
