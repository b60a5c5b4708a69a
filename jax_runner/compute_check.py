"""JAX's part of `main.py doctor --compute`: `python -m jax_runner.compute_check` (harness/work/compute_check.py).

One process with all of its devices: XLA's compiler, cuBLAS, cuDNN, ptxas, and NCCL between several GPUs.
"""

from collections.abc import Iterator

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from harness.work import compute_check as by_numpy
from harness.work.compute_check import CPU_DEVICES, Array, Check, Inputs, drawn_inputs, tell
from jax_runner.device import insist_on_fp32


def checks(inputs: Inputs) -> Iterator[Check]:
    """Each jitted."""
    yield Check(name="matrix product", compute=lambda: product(inputs), expected=by_numpy.product(inputs))
    yield Check(name="convolution", compute=lambda: convolution(inputs), expected=by_numpy.convolution(inputs))
    yield Check(name="gradient", compute=lambda: gradient(inputs), expected=by_numpy.gradient(inputs))
    if (count := jax.local_device_count()) > 1:
        name = f"all-reduce over {count} devices"
        yield Check(name=name, compute=lambda: all_reduce(inputs), expected=by_numpy.all_reduce(inputs, count))


def product(inputs: Inputs) -> Array:
    return np.asarray(jax.jit(jnp.matmul)(inputs.left, inputs.right))


def convolution(inputs: Inputs) -> Array:
    """In JAX's own layout, as the models have it; [batch, channels, height, width] again at its end."""

    def convolve(images: jax.Array, kernels: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(images, kernels, (1, 1), "VALID", dimension_numbers=numbers)

    images, kernels = inputs.images.transpose(0, 2, 3, 1), inputs.kernels.transpose(2, 3, 1, 0)
    return np.asarray(jax.jit(convolve)(images, kernels)).transpose(0, 3, 1, 2)


def gradient(inputs: Inputs) -> Array:
    def loss(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.sin(left @ right / 16).sum()

    return np.asarray(jax.jit(jax.grad(loss, argnums=1))(inputs.left, inputs.right))


def all_reduce(inputs: Inputs) -> Array:
    """Every device has a part of the first axis: (rank + 1) * left."""
    devices = jax.local_devices()
    mesh = Mesh(np.array(devices), ("devices",))
    parts = np.concatenate([inputs.left * (rank + 1) for rank in range(len(devices))])
    own, same = PartitionSpec("devices"), PartitionSpec()
    summed = jax.shard_map(
        lambda part: jax.lax.psum(part, "devices"), mesh=mesh, in_specs=own, out_specs=same, check_vma=False
    )
    return np.asarray(jax.jit(summed)(parts))


def main() -> None:
    insist_on_fp32()
    jax.config.update("jax_num_cpu_devices", CPU_DEVICES)
    tell(checks(drawn_inputs()), jax.local_devices()[0].device_kind)


if __name__ == "__main__":
    main()
