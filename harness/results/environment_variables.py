"""The environment variables and limits that switch off, water down or pin one side of a comparison: one table. Pure.

Modules of clusters, conda packages and profilers export such variables without the user's knowledge. What the table
says `unset` of is removed before a framework is imported, and noted in the record; `refuse` stops the job before it
measures anything; `record` stays in force and becomes a caveat of the row.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Literal, NamedTuple

from harness.errors import ConfigError
from harness.results.cpus import THREAD_VARIABLES

UNSET = "variables_unset"
"""Key of a record's environment: what was removed before the measurement, by name."""

Action = Literal["unset", "refuse", "record"]
Side = Literal["JAX", "PyTorch", "both"]

ANY = ""
ON = r"(?!(|0|false|no|off|n|f)$)"
OFF = r"(0|false|no|off|n|f)$"
"""Regular expressions that match at the beginning of a value, in any case."""


class Rule(NamedTuple):
    """One row of the table."""

    names: str
    """Regular expression of the variable's whole name; of XLA_FLAGS, `XLA_FLAGS` and one of its flags."""
    effect: str
    action: Action
    obeyed_by: Side
    values: str = ANY


RULES: tuple[Rule, ...] = (
    # Compilers switched off, or results inspected in every call.
    Rule("JAX_DISABLE_JIT", "makes JAX run operator by operator, uncompiled", "unset", "JAX", ON),
    Rule("JAX_DISABLE_MOST_OPTIMIZATIONS", "disables most of XLA's optimizations", "unset", "JAX", ON),
    Rule("JAX_DEBUG_(NANS|INFS)", "makes JAX fetch and inspect the result of every call", "unset", "JAX", ON),
    Rule("JAX_(ENABLE_CHECKS|CHECK_TRACER_LEAKS|DEBUG_KEY_REUSE)", "makes JAX check itself", "unset", "JAX", ON),
    Rule("JAX_TRANSFER_GUARD(_\\w+)?", "makes JAX log or forbid copies between devices", "unset", "JAX"),
    Rule("JAX_CPU_ENABLE_ASYNC_DISPATCH", "makes JAX wait for every call on a CPU", "unset", "JAX", OFF),
    Rule("XLA_PYTHON_CLIENT_ALLOCATOR", "makes JAX ask the driver for every array", "unset", "JAX", "platform"),
    Rule(
        "JAX_(OPTIMIZATION_LEVEL|EXEC_TIME_OPTIMIZATION_EFFORT|MEMORY_FITTING_LEVEL|MEMORY_FITTING_EFFORT)",
        "makes XLA optimize more or less than by default",
        "record",
        "JAX",
    ),
    Rule("JAX_(LOG_COMPILES|EXPLAIN_CACHE_MISSES|DUMP_IR_TO)", "lengthens JAX's compile time", "record", "JAX", ON),
    Rule("TORCHDYNAMO_DISABLE|TORCH_COMPILE_DISABLE", "disables torch.compile", "unset", "PyTorch", ON),
    Rule("TORCHDYNAMO_SUPPRESS_ERRORS", "runs uncompiled what torch.compile fails on", "unset", "PyTorch", ON),
    Rule("PYTORCH_JIT", "disables TorchScript", "unset", "PyTorch", OFF),
    Rule("PYTORCH_NO_CUDA_MEMORY_CACHING", "makes PyTorch ask the driver for every tensor", "unset", "PyTorch", ON),
    Rule("TORCH_LOGS|TORCH_TRACE|TORCH_COMPILE_DEBUG", "lengthens PyTorch's compile time", "record", "PyTorch", ON),
    Rule(
        r"TORCHINDUCTOR_(?!CACHE_DIR|COMPILE_THREADS|VEC_ISA_OK|\w*CACHE$)\w+|TORCHDYNAMO_\w+|TORCH_CUDNN_\w+",
        "makes PyTorch compile in another way than by default",
        "record",
        "PyTorch",
    ),
    # CUDA and its libraries.
    Rule("CUDA_LAUNCH_BLOCKING", "makes every kernel launch wait for the kernel's end", "unset", "both", ON),
    Rule("CUDA_INJECTION64_PATH|NVTX_INJECTION64_PATH", "attaches a profiler to CUDA", "unset", "both"),
    Rule("NVIDIA_TF32_OVERRIDE", "overrules the precision of products and convolutions", "unset", "both"),
    Rule("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "overrules the precision of PyTorch's products", "unset", "PyTorch", ON),
    Rule("CUBLAS_WORKSPACE_CONFIG", "restricts the algorithms of cuBLAS", "record", "both"),
    # XLA_FLAGS, flag by flag; the first rule that matches applies.
    Rule(
        r"XLA_FLAGS --xla_(disable_hlo_passes|disable_all_hlo_passes|enable_hlo_passes_only"
        r"|llvm_disable_expensive_passes|gpu_disable_gpuasm_optimizations|hlo_profile)",
        "disables optimizations of XLA",
        "refuse",
        "JAX",
        ON,
    ),
    Rule("XLA_FLAGS --xla_backend_optimization_level", "disables optimizations of XLA", "refuse", "JAX", "[0-2]"),
    Rule("XLA_FLAGS --xla_cpu_multi_thread_eigen", "limits XLA to one thread", "refuse", "JAX", OFF),
    Rule("XLA_FLAGS (--)?intra_op_parallelism_threads", "limits XLA's threads", "refuse", "JAX"),
    Rule(
        r"XLA_FLAGS (--xla_(?!force_host_platform_device_count)\w+|[^-]\S*)",
        "makes XLA compile in another way than by default",
        "record",
        "JAX",
    ),
    # Threads and the CPUs that they are pinned to. Both sides get one thread for each CPU of the job instead.
    Rule(r"(OMP|GOMP)_\w+|KMP_(?!DUPLICATE_LIB_OK)\w+", "limits or pins PyTorch's threads", "unset", "PyTorch"),
    Rule("NPROC", "limits XLA's threads", "unset", "JAX"),
    Rule(
        "MKL_(NUM_THREADS|DOMAIN_NUM_THREADS|DYNAMIC|NUM_STRIPES)|(OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|TBB)_NUM_THREADS",
        "limits the threads of PyTorch's products",
        "unset",
        "PyTorch",
    ),
    # Arithmetic and instructions of a CPU.
    Rule(r"(ONEDNN|DNNL)_\w+", "changes the precision or instructions of PyTorch's CPU kernels", "unset", "PyTorch"),
    Rule(
        "MKL_(CBWR|ENABLE_INSTRUCTIONS|DEBUG_CPU_TYPE)|ATEN_CPU_CAPABILITY",
        "limits the instructions of PyTorch's CPU kernels",
        "unset",
        "PyTorch",
    ),
    # No variable but a limit: harness/results/cpus.py reads it.
    Rule(
        r"cgroup cpu\.max|cgroup cpu\.cfs_quota_us",
        "stops all threads once it is used up; both sides get one thread for each whole CPU of it",
        "record",
        "both",
    ),
)


class Steering(NamedTuple):
    """A variable of an environment to which a rule applies."""

    name: str
    value: str
    """Of XLA_FLAGS, one of its flags."""
    rule: Rule

    @property
    def text(self) -> str:
        return f"{self.name}={self.value}"


def steering_variables(variables: Mapping[str, str]) -> Iterator[Steering]:
    """Yield each variable that the table names, in the order of their names. Equal numbers of threads, which this
    project sets for both sides, are skipped."""
    equal = variables.get("OMP_NUM_THREADS") == variables.get("NPROC")
    for name in sorted(variables.keys() - (set(THREAD_VARIABLES) if equal else set())):
        for key, value, shown in _entries(name, variables[name]):
            rule = next((rule for rule in RULES if _applies(rule, key, value)), None)
            if rule is not None:
                yield Steering(name, shown, rule)


def _entries(name: str, value: str) -> Iterator[tuple[str, str, str]]:
    """Yield what a rule's `names` and `values` are compared with, and the text that is shown."""
    if name != "XLA_FLAGS":
        yield name, value.strip(), value
        return
    for flag in value.split():
        key, sign, setting = flag.partition("=")
        yield f"{name} {key}", setting if sign else "true", flag


def _applies(rule: Rule, key: str, value: str) -> bool:
    return bool(re.fullmatch(rule.names, key) and re.match(rule.values, value, re.IGNORECASE))


def unset_steering(variables: MutableMapping[str, str]) -> dict[str, str]:
    """Remove the variables that the table says to unset, and return them."""
    removed = {one.name: one.value for one in steering_variables(variables) if one.rule.action == "unset"}
    for name in removed:
        del variables[name]
    return removed


def unset_in_words(removed: Mapping[str, str]) -> list[str]:
    """Return one line for the log about each removed variable."""
    return [f"{one.text} is unset for the measurements: it {one.rule.effect}" for one in steering_variables(removed)]


def require_nothing_refused(variables: Mapping[str, str]) -> None:
    """Raise ConfigError where a variable is set with which nothing may be measured."""
    for one in steering_variables(variables):
        if one.rule.action == "refuse":
            raise ConfigError(
                f"{one.text} {one.rule.effect}, on one side of the comparison only, so nothing is measured. Remove it "
                f"from {one.name} (`unset {one.name}` removes all of it), and start again."
            )


def caveats(variables: Mapping[str, str]) -> list[str]:
    """Return a sentence about each variable that was set while a record was made."""
    return [f"{one.text} was set, which {one.rule.effect}" for one in steering_variables(variables)]


def one_sided(variables: Mapping[str, str]) -> list[str]:
    """Return the variables that steer one side alone although both had them, such as `OMP_NUM_THREADS=1 (read by
    PyTorch only)`."""
    found = [one for one in steering_variables(variables) if one.rule.obeyed_by != "both"]
    return [f"{one.text} (read by {one.rule.obeyed_by} only)" for one in found]
