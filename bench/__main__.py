"""`python -m bench [PART]...`: what the project's own machinery costs; every part without a name."""

import sys

from bench.parts import run_parts

PARTS = {
    "timed_loop": (["jax"], ["torch"]),
    "clocks": (["jax"], ["torch"]),
    "opacus": tuple([benchmark, batch_size] for benchmark in ("mnist", "cifar10") for batch_size in ("64", "256")),
    "ghost": tuple(
        [framework, benchmark, batch_size, output]
        for framework in ("torch", "jax")
        for benchmark in ("mnist", "cifar10")
        for batch_size in ("64", "256")
        for output in ("norms", "clipped_sum")
    ),
    "many_models": (["8"], ["64"]),
    "inference": tuple(
        [model, batch_size]
        for model in ("resnet50", "vit_b_16", "mobilenet_v3_small", "efficientnet_b0")
        for batch_size in ("1", "8")
    ),
    "plain_models": tuple([framework, model] for framework in ("torch", "jax") for model in ("gpt_nano", "graphnet")),
    "planning": ([],),
    "report": ([],),
    "load": ([],),
}

if __name__ == "__main__":
    sys.exit(run_parts("bench", PARTS, sys.argv[1:]))
