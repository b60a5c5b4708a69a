"""Whether this environment's frameworks are built for CUDA, found out without importing them."""

import re
from collections.abc import Iterable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from harness.plan import FRAMEWORKS, Framework, Pair

INSTALL_FOR_CUDA = "make env LOCK=cuda13 PYTHON=python3.12"


def lacks_cuda(framework: Framework) -> bool:
    """Return whether the framework is installed here, and for the CPU alone."""
    spec = find_spec(framework)
    if spec is None or spec.origin is None:
        return False
    if framework == "jax":
        return not any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins"))
    try:
        version = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return False
    found = re.search(r"^cuda\b[^=]*= *(.+)$", version, re.MULTILINE)
    return found is not None and found[1].strip() == "None"


def lacking_builds(pairs: Iterable[Pair]) -> list[str]:
    """Return a sentence for each framework whose jobs would get a GPU and compute on the CPU. An interpreter or a
    container that experiments.yaml names is not looked into."""
    plans = [plan for pair in pairs if not pair.cell.is_for_cpu for plan in pair.jobs]
    wanted = {plan.framework for plan in plans if not (plan.launch.python or plan.launch.runtime)}
    return [
        f"{framework} is installed here for the CPU alone, and the jobs ask for GPUs. Install builds for CUDA: "
        f"{INSTALL_FOR_CUDA}. To measure the CPUs of the cluster: --gpu cpu."
        for framework in FRAMEWORKS
        if framework in wanted and lacks_cuda(framework)
    ]
