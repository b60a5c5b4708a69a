"""Cluster profiles: `clusters/NAME.yaml` has what one site needs, and is laid over the one experiments.yaml."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from harness.errors import ConfigError
from harness.experiments.source import Source, read_source
from harness.paths import REPOSITORY
from harness.suggest import valid_names

CLUSTERS = REPOSITORY / "clusters"
OF_A_SITE = ("data_dir", "cluster", "pairing", "gpus", "matrix", "wandb")
"""The keys of a profile, and of `matrix` nothing but `gpus`: where measurements run, never what is measured."""
SLURM_TIMEOUT_S = 5.0


def profile_of(asked: str | None) -> Path | None:
    """The file that --cluster names; without it the one that is called as Slurm calls the cluster, if there is one.
    Raises ConfigError for a name that no file has."""
    names = sorted(path.stem for path in CLUSTERS.glob("*.yaml"))
    if asked is not None and asked not in names:
        raise ConfigError(f"--cluster {asked}: there is no clusters/{asked}.yaml; {valid_names(asked, names)}")
    name = asked or (slurms_name() if names else None)
    return CLUSTERS / f"{name}.yaml" if name in names else None


def slurms_name() -> str | None:
    """How Slurm calls this cluster; None where it is not here, or does not say so at once."""
    if (name := os.environ.get("SLURM_CLUSTER_NAME")) or shutil.which("sbatch") is None:
        return name
    try:
        told = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=SLURM_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"^ClusterName\s*= *(\S+)", told.stdout, re.MULTILINE)
    return found[1] if found else None


def lay_profile(source: Source, path: Path) -> None:
    """Over the experiments. Raises ConfigError: as read_source, or for a profile that is no mapping."""
    profile = read_source(path)
    if not isinstance(profile.data, dict):
        raise profile.error([*profile.problems, profile.problem((), f"must hold some of {', '.join(OF_A_SITE)}")])
    for keys, names in {(): OF_A_SITE, ("matrix",): ("gpus",)}.items():
        given = profile.data.get("matrix", {}) if keys else profile.data
        for key in [key for key in given if key not in names] if isinstance(given, dict) else ():
            rule = f"a profile says where measurements run, not what they are; {valid_names(key, names)}"
            profile.problems.append(profile.problem((*keys, key), rule, at_key=True))
            del given[key]
    source.problems += [replace(one, place=replace(one.place, file=profile.name)) for one in profile.problems]
    if isinstance(source.data, dict):
        source.lay_over(profile)
