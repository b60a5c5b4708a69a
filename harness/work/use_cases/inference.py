"""Use case 5: the outputs of a batch, on one GPU. What both frameworks share."""

from collections.abc import Mapping
from typing import Any, Literal

from harness.plan import Frozen
from harness.work.declared import Benchmark, Mode, Model, UseCase, jax_modes, torch_modes


class Options(Frozen):
    batch_norm: Literal["folded", "kept"]
    """Multiplied into the convolution before it, as every deployment does; or a layer of its own, as it was trained."""
    inputs: Literal["on_device", "on_host"]
    """Normalised and there before the call; or uint8 in pinned memory of the host, whose transfer is part of the call,
    as is that of the outputs back."""


class Settings(Frozen):
    weights: Literal["drawn", "pretrained"] = "drawn"
    """Drawn from the seed, or those that torchvision publishes for ImageNet (`main.py data` brings them)."""


def refuses(benchmark: Benchmark, _model: Model) -> str | None:
    return None


def goes_with(mode: Mode, model: Model, options: Mapping[str, Any]) -> bool:
    """Without BatchNorm there is nothing to fold, and `kept` would be the same program once more."""
    if options["batch_norm"] == "kept" and not model.has_batch_norm:
        return False
    needs = {"taps": model.has_depthwise, "cudnn_attention": model.has_attention}
    return needs.get(mode.formulation, True)


USE_CASE = UseCase(
    name="inference",
    options=Options,
    settings=Settings,
    refuses=refuses,
    goes_with=goes_with,
    one_device=True,
    forward_passes=1,
    modes={
        "jax": (*jax_modes("forward", "jit"), *jax_modes("taps"), *jax_modes("cudnn_attention", "cudnn")),
        "torch": (
            *torch_modes("forward"),
            Mode(name="eager_nchw", formulation="forward", run_as="eager", layout="nchw"),
        ),
    },
)
