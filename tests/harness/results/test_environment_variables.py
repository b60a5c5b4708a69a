"""The table of variables that steer one side: each row by an example, and what is done about it."""

import re

import pytest

from harness.errors import ConfigError
from harness.results.environment import VARIABLES
from harness.results.environment_variables import (
    RULES,
    caveats,
    one_sided,
    require_nothing_refused,
    steering_variables,
    unset_in_words,
    unset_steering,
)

EXAMPLES: dict[str, tuple[str, str, str, str]] = {
    # The row's number is its place in the table: name, value that matters, value that does not, action.
    "jit": ("JAX_DISABLE_JIT", "1", "false", "unset"),
    "optimizations": ("JAX_DISABLE_MOST_OPTIMIZATIONS", "True", "0", "unset"),
    "nans": ("JAX_DEBUG_NANS", "true", "", "unset"),
    "checks": ("JAX_ENABLE_CHECKS", "1", "0", "unset"),
    "transfer": ("JAX_TRANSFER_GUARD_DEVICE_TO_HOST", "log", "", "unset"),
    "dispatch": ("JAX_CPU_ENABLE_ASYNC_DISPATCH", "False", "1", "unset"),
    "allocator": ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform", "bfc", "unset"),
    "effort": ("JAX_OPTIMIZATION_LEVEL", "O0", "", "record"),
    "log": ("JAX_LOG_COMPILES", "1", "0", "record"),
    "dynamo": ("TORCH_COMPILE_DISABLE", "1", "0", "unset"),
    "errors": ("TORCHDYNAMO_SUPPRESS_ERRORS", "1", "0", "unset"),
    "script": ("PYTORCH_JIT", "0", "1", "unset"),
    "caching": ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "0", "unset"),
    "logs": ("TORCH_LOGS", "+dynamo", "", "record"),
    "inductor": ("TORCHINDUCTOR_MAX_AUTOTUNE", "1", "", "record"),
    "blocking": ("CUDA_LAUNCH_BLOCKING", "1", "0", "unset"),
    "profiler": ("CUDA_INJECTION64_PATH", "/opt/nsys/lib.so", "", "unset"),
    "tf32": ("NVIDIA_TF32_OVERRIDE", "0", "", "unset"),
    "cublas": ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "0", "unset"),
    "workspace": ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "", "record"),
    "passes": ("XLA_FLAGS", "--xla_disable_hlo_passes=fusion", "--xla_disable_all_hlo_passes=false", "refuse"),
    "level": ("XLA_FLAGS", "--xla_backend_optimization_level=0", "--xla_force_host_platform_device_count=8", "refuse"),
    "eigen": ("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false", "--xla_force_host_platform_device_count=8", "refuse"),
    "intra": ("XLA_FLAGS", "intra_op_parallelism_threads=1", "", "refuse"),
    "flags": ("XLA_FLAGS", "--xla_gpu_autotune_level=0", "--xla_force_host_platform_device_count=8", "record"),
    "openmp": ("GOMP_CPU_AFFINITY", "0", "", "unset"),
    "nproc": ("NPROC", "1", "", "unset"),
    "mkl": ("MKL_NUM_THREADS", "1", "", "unset"),
    "onednn": ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "", "unset"),
    "isa": ("ATEN_CPU_CAPABILITY", "default", "", "unset"),
    "quota": ("cgroup cpu.max", "50000 100000", "", "record"),
}
MORE = {"OMP_NUM_THREADS": "unset", "OMP_PROC_BIND": "unset", "OMP_PLACES": "unset", "KMP_AFFINITY": "unset"}
MORE |= {"KMP_BLOCKTIME": "unset", "TORCHDYNAMO_DISABLE": "unset", "DNNL_MAX_CPU_ISA": "unset"}


def test_every_row_has_an_example_and_every_variable_is_in_the_record() -> None:
    assert [action for *_, action in EXAMPLES.values()] == [rule.action for rule in RULES]
    names = {name for name, *_ in EXAMPLES.values()} - {"cgroup cpu.max"} | MORE.keys()
    assert [name for name in names if not VARIABLES.fullmatch(name)] == []


@pytest.mark.parametrize("row", EXAMPLES)
def test_a_row_of_the_table(row: str) -> None:
    name, value, harmless, action = EXAMPLES[row]
    rule = RULES[list(EXAMPLES).index(row)]
    [found] = steering_variables({name: value, "PATH": "/bin"})
    assert (found.rule, found.text) == (rule, f"{name}={value}")
    if harmless:
        others = [one.rule for one in steering_variables({name: harmless})]
        assert rule not in others and all(one.action == "record" for one in others)
    variables = {name: value, "PATH": "/bin"}
    removed = unset_steering(variables)
    assert removed == ({name: value} if action == "unset" else {})
    assert "PATH" in variables and (name in variables) == (action != "unset")
    if action == "unset":
        assert unset_in_words(removed) == [f"{name}={value} is unset for the measurements: it {rule.effect}"]
    if action == "refuse":
        with pytest.raises(ConfigError, match=re.escape(f"{name}={value} {rule.effect}")):
            require_nothing_refused(variables)
    else:
        require_nothing_refused(variables)


@pytest.mark.parametrize("name", MORE)
def test_further_names_of_a_row(name: str) -> None:
    assert [one.rule.action for one in steering_variables({name: "1"})] == [MORE[name]]


def test_names_that_are_needed_or_harmless_stay() -> None:
    names = "KMP_DUPLICATE_LIB_OK TORCHINDUCTOR_CACHE_DIR TORCHINDUCTOR_VEC_ISA_OK TORCHINDUCTOR_COMPILE_THREADS"
    names += " JAX_PLATFORMS JAX_ENABLE_X64 CUDA_VISIBLE_DEVICES MKL_THREADING_LAYER OPENBLAS_CORETYPE"
    assert list(steering_variables(dict.fromkeys(names.split(), "1"))) == []


def test_threads_that_are_equal_for_both_sides_steer_none() -> None:
    assert list(steering_variables({"OMP_NUM_THREADS": "2", "NPROC": "2"})) == []
    variables = {"OMP_NUM_THREADS": "1", "NPROC": "2"}
    assert one_sided(variables) == ["NPROC=2 (read by JAX only)", "OMP_NUM_THREADS=1 (read by PyTorch only)"]


def test_a_known_work_around_stays_possible_and_is_a_caveat() -> None:
    """Each flag is judged by itself."""
    variables = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_gpu_autotune_level=0"}
    require_nothing_refused(variables)
    assert unset_steering(variables) == {}
    assert caveats(variables) == [
        "XLA_FLAGS=--xla_gpu_autotune_level=0 was set, which makes XLA compile in another way than by default"
    ]
    assert one_sided(variables) == ["XLA_FLAGS=--xla_gpu_autotune_level=0 (read by JAX only)"]
    assert one_sided({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}) == []
