"""Names that tell whose machine a record was made on: collected from records and from this process, replaced in every
text, and searched for in what is to be published. All functions but `names_of_this_process` are pure.

A word that the project itself uses, such as `gpu`, `train` or `root`, tells nobody's name and is never replaced, also
where somebody's partition or node is called so.
"""

import base64
import getpass
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from harness.plan import FRAMEWORKS, Measurement
from harness.results.device_peaks import DevicePeaksRecord
from harness.results.parity import ParityMetadata
from harness.results.record import Record
from harness.work.declared import benchmark, benchmark_names, use_case, use_case_names

PATH, NODE, ADDRESS, USER, DOMAIN = "(path)", "(node)", "(address)", "(user)", "(domain)"
OF_THE_OWNER = ("hostname", "interpreter", "account", "cluster", "partition", "qos", "nodelist", "job_name")
"""Keys that are left out at any depth: what no report compares is nobody else's business."""
HOST_KEYS = ("node", "hostname")
REPLACED = {
    "account": "(account)",
    "cluster": "(cluster)",
    "partition": "(partition)",
    "qos": "(qos)",
    "job_name": "(job)",
}
"""Keys whose values are names, and what stands for such a name in a sentence."""
_VARIABLES = """
    CUBLASLT_WORKSPACE_SIZE CUBLAS_WORKSPACE_CONFIG CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_MODULE_LOADING
    CUDA_VISIBLE_DEVICES JAX_DEFAULT_MATMUL_PRECISION JAX_ENABLE_COMPILATION_CACHE JAX_ENABLE_X64 JAX_NUM_CPU_DEVICES
    JAX_OPTIMIZATION_LEVEL JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES
    JAX_PLATFORMS NCCL_ALGO NCCL_BUFFSIZE NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_PROTO NCCL_SHM_DISABLE NPROC
    OMP_NUM_THREADS PYTHONHASHSEED PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF TORCHINDUCTOR_COMPILE_THREADS
    TORCHINDUCTOR_CPP_WRAPPER TORCHINDUCTOR_FREEZING TORCHINDUCTOR_MAX_AUTOTUNE TORCH_CUDNN_V8_API_DISABLED WANDB_MODE
    XLA_CLIENT_ALLOCATOR XLA_CLIENT_MEM_FRACTION XLA_FLAGS XLA_PYTHON_CLIENT_ALLOCATOR XLA_PYTHON_CLIENT_MEM_FRACTION
    XLA_PYTHON_CLIENT_PREALLOCATE
"""
PUBLISHED_VARIABLES = frozenset(_VARIABLES.split())
"""Variables of a record's environment that are published, by their whole names. They steer a compiler, a library or its
threads, and take numbers and words of a manual; a path in one of them is replaced."""

_COMMON = """
    a100 account admin affinity all any build bus cache clean clock cluster code commit compute container cpu cu126
    cu128 cu130 cu132 cuda debian debug domain driver file files general git gpus h100 h200 high home hostname http
    https image index infiniband installed interactive interpreter jobs json kernel large link load local
    localdomain localhost lock login long low machine main medium nobody normal npz nvidia nvml packages pair
    pairing partition partner path platform python qos queue record records remote root run runner runs scheduler
    scratch shared short slurm standard std storage task tests tmp total ubuntu user users uuid variables wandb
"""
COMMON = frozenset(_COMMON.split())
"""Beside the words of the project's own declarations and schemas: keys of environments, and what partitions, queues and
accounts are called everywhere."""

BEFORE_PATH = r"(?:(?<![\w./)\]}-])|(?<=\s-[A-Za-z])|(?<=^-[A-Za-z])|(?<=file://))"
"""Where a path may begin: not in a word, a number, another path or a URL, but behind the letter of an option (`-L/a/b`)
and, as a list's further part, behind `:` or `,`."""
PART_OF_PATH = r"(?:[\w.+@%#$~-]+(?: (?!-)[\w.+@-]+){0,2}(?=/)|[\w.+@%#$~-]+)"
"""Between two slashes, and with blanks where one more slash follows."""
PATHS = re.compile(
    rf"{BEFORE_PATH}(?:~(?:[A-Za-z_][\w.-]*)?(?:/{PART_OF_PATH})+|(?:/{PART_OF_PATH}){{2,}})/?"
    rf"|(?:^|(?<=[:=,'\"]))/[A-Za-z][\w.+@-]+/?(?![\w(/])"
)
"""An absolute path of two parts, or of one where nothing but a path can stand."""
HOMES = re.compile(
    r"(?:(?<!\w)|(?<=-[A-Za-z]))/(?:home|users|Users)/(?P<name>[\w.-]+)|(?<![\w~/])~(?P<short>[A-Za-z_][\w.-]*)/"
)
"""Folders of users, whose names are then known."""
MAIL = re.compile(r"[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}")
URL = re.compile(r"https?://[^\s'\"<>`]+")
NETWORK_ADDRESS = re.compile(
    r"(?:ipv[46]:)?(?<![\w.])(?:(?:10|127|172|192)(?:\.\d{1,3}){3}(?::\d+)?|\d{1,3}(?:\.\d{1,3}){3}:\d+)(?![\w.])"
)
"""Of a private network, or with a port. Looked for in sentences only: versions of libraries look the same."""
NUMBERED = re.compile(r"(?P<stem>.*[A-Za-z].*?)\d+")
"""A host's name that ends in a number, as its neighbours' do."""


class Found(NamedTuple):
    """A name that would be published."""

    field: str
    """Its place in the file, such as `measurement.cell.gpu`."""
    name: str
    kind: str
    """What it names, such as `(user)`."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of machines and people, by themselves in lower case, and what stands in their place."""

    nodes: Mapping[str, str]
    """By what a record calls its node: `node-1`, `node-2`, ..."""
    others: Mapping[str, str]

    @cached_property
    def replacements(self) -> dict[str, str]:
        """Without words of the project's own."""
        by_short = {_short(name).lower(): instead for name, instead in self.nodes.items()}
        known = {
            name.lower(): by_short.get(_short(name).lower(), instead) if instead == NODE else instead
            for name, instead in self.others.items()
        }
        known |= by_short | {name.lower(): instead for name, instead in self.nodes.items()}
        return {name: instead for name, instead in known.items() if is_telling(name) and name != instead}

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        """Whole names only, the longest first; with neighbours of known nodes by their numbers."""
        names = sorted(self.replacements, key=len, reverse=True)
        stems = {
            match["stem"]
            for name, instead in self.replacements.items()
            if instead == NODE or instead in self.nodes.values()
            if (match := NUMBERED.fullmatch(name)) and is_telling(match["stem"].rstrip("-_."))
        }
        parts = [*map(re.escape, names), *(rf"{re.escape(stem)}\d+" for stem in sorted(stems))]
        if not parts:
            return None
        return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(parts)})(?![A-Za-z0-9])", re.IGNORECASE)

    def replaced(self, text: str) -> str:
        """Without paths, mail addresses, addresses in sentences, and names; a URL with a name in it goes as a whole."""
        text = URL.sub(lambda url: url[0] if self._without_names(url[0]) == url[0] else ADDRESS, text)
        text = PATHS.sub(PATH, MAIL.sub(ADDRESS, text))
        if " " in text:
            text = NETWORK_ADDRESS.sub(ADDRESS, text)
        return self._without_names(text)

    def cleaned(self, content: Any) -> Any:
        """JSON without OF_THE_OWNER, with other names for nodes, and with all texts and keys replaced."""
        if isinstance(content, dict):
            return _without_kernel_builder(
                {
                    self.replaced(key): self._cleaned_value(key, value)
                    for key, value in content.items()
                    if key not in OF_THE_OWNER and not (key == "wandb_url" and self.cleaned(value) != value)
                }
            )
        if isinstance(content, list | tuple):
            return [self.cleaned(value) for value in content]
        return self.replaced(content) if isinstance(content, str) else content

    def found_in(self, content: Any, field: str = "") -> Iterator[Found]:
        """All names and paths that JSON still has, in its keys as well."""
        if isinstance(content, dict):
            for key, value in content.items():
                place = f"{field}.{key}" if field else key
                yield from self._found_in_text(key, f"{place} (the key)")
                if not (key == "predictions" and _is_base64(value)):
                    yield from self.found_in(value, place)
        elif isinstance(content, list | tuple):
            for number, value in enumerate(content):
                yield from self.found_in(value, f"{field}.{number}")
        elif isinstance(content, str):
            yield from self._found_in_text(content, field)

    def _found_in_text(self, text: str, field: str) -> Iterator[Found]:
        if self._pattern is not None:
            for match in self._pattern.finditer(text):
                if match[0] not in self.nodes.values():
                    yield Found(field=field, name=match[0], kind=self._instead(match[0]))
        for path in (PATHS.search(text), HOMES.search(text)):
            if path is not None:
                yield Found(field=field, name=path[0], kind=PATH)

    def _cleaned_value(self, key: str, value: Any) -> Any:
        if key == "node" and isinstance(value, str):
            return self.nodes.get(value, NODE)
        if key == "variables" and isinstance(value, dict):
            value = {name: text for name, text in value.items() if name in PUBLISHED_VARIABLES}
        if key == "predictions" and _is_base64(value):
            return value  # its letters are numbers, and may look like a path
        return self.cleaned(value)

    def _without_names(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda match: self._instead(match[0]), text)

    def _instead(self, name: str) -> str:
        if name in self.nodes.values():
            return name
        return self.replacements.get(name.lower(), NODE)


def names_of(contents: Sequence[Any], own: Mapping[str, str], jobs: Iterable[str] = ()) -> Names:
    """Collect all names that JSON contents have.

    Args:
        own: names_of_this_process().
        jobs: folders of the records' jobs. A job called as its folder begins has the project's own name.
    """
    nodes, others = set[str](), dict(own)
    own_jobs = tuple(jobs)
    for key, value in _texts(contents):
        if key == "node":
            nodes.add(value)
        elif key in HOST_KEYS:
            others |= _of_host(value)
        elif key == "nodelist":
            for part in re.findall(r"([^,\[\]]+)(?:\[(\d+)[\d,-]*\])?", value):
                others |= _of_host("".join(part))
        elif key in REPLACED and not (key == "job_name" and any(job.startswith(value) for job in own_jobs)):
            others[value] = REPLACED[key]
        for match in HOMES.finditer(value):
            others.setdefault(match["name"] or match["short"], USER)
    for node in nodes:
        others |= {name: instead for name, instead in _of_host(node).items() if instead == DOMAIN}
    numbered = {node: f"node-{number}" for number, node in enumerate(sorted(nodes, key=_natural), start=1)}
    return Names(nodes=numbered, others=others)


def names_of_this_process() -> dict[str, str]:
    """Return the names of the user, the host and the Slurm job of this process, and what stands in their place."""
    found = {os.environ.get(name, ""): USER for name in ("USER", "LOGNAME", "SUDO_USER")}
    found[Path.home().name] = USER
    with suppress(KeyError, OSError):  # a user without a name, as in some containers
        found[getpass.getuser()] = USER
    for host in (socket.gethostname(), os.environ.get("SLURMD_NODENAME", "")):
        found |= _of_host(host)
    variables = {"CLUSTER_NAME": "cluster", "JOB_ACCOUNT": "account", "JOB_PARTITION": "partition", "JOB_QOS": "qos"}
    found |= {os.environ.get(f"SLURM_{name}", ""): REPLACED[key] for name, key in variables.items()}
    return {name: instead for name, instead in found.items() if name}


def is_telling(name: str) -> bool:
    """Whether it could be somebody's name: two characters at least, a letter, and no word of the project's own."""
    return len(name) > 1 and any(map(str.isalpha, name)) and name.lower() not in words_of_the_project()


@cache
def words_of_the_project() -> frozenset[str]:
    """All words of what is declared, of the records' own fields and of COMMON, in lower case."""
    texts: list[str] = [*FRAMEWORKS, *benchmark_names(), *use_case_names()]
    texts += [model.name for name in benchmark_names() for model in benchmark(name).models]
    for declared in map(use_case, use_case_names()):
        texts += [mode.name for modes in declared.modes.values() for mode in modes]
        texts += _words_of_schema(declared.options.model_json_schema())
        texts += _words_of_schema(declared.settings.model_json_schema())
    for schema in (Record, Measurement, DevicePeaksRecord, ParityMetadata):
        texts += _words_of_schema(schema.model_json_schema())
    return COMMON | {word.lower() for text in texts for word in (text, *re.split(r"[^A-Za-z0-9]+", text)) if word}


def _words_of_schema(schema: Any) -> Iterator[str]:
    """Names of fields, and the values that they may take."""
    if isinstance(schema, dict):
        yield from (str(name) for name in schema.get("properties", ()))
        yield from (str(value) for value in (*schema.get("enum", ()), schema.get("const", "")))
        for part in schema.values():
            yield from _words_of_schema(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _words_of_schema(part)


def _texts(content: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each text of JSON with the key that it stands under."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _texts(value, name)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _texts(value, key)
    elif isinstance(content, str) and content:
        yield key, content


def _of_host(name: str) -> dict[str, str]:
    """The host with its domain and without, and the domain itself where it has two parts."""
    short, _, domain = name.partition(".")
    return {short: NODE} | ({name: NODE} if domain else {}) | ({domain: DOMAIN} if "." in domain else {})


def _short(host: str) -> str:
    return host.partition(".")[0]


def _natural(name: str) -> list[tuple[int, str]]:
    """So that node-10 comes after node-9, and what was published once is numbered in the same way again."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def _is_base64(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(base64.b64decode(value, validate=True))
    except ValueError:
        return False


def _without_kernel_builder(content: dict[str, Any]) -> dict[str, Any]:
    """`5.15.0-91-chair` as `5.15.0`, also in the platform: what follows is whoever built the kernel."""
    kernel = content.get("kernel")
    if not isinstance(kernel, str) or (numbers := re.match(r"\d[\d.]*", kernel)) is None:
        return content
    changed = {name: content.get(name) for name in ("kernel", "platform")}
    return content | {
        name: value.replace(kernel, numbers[0].rstrip(".")) for name, value in changed.items() if isinstance(value, str)
    }
