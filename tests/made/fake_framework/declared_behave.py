"""Declares behave.py; the makers of projects put this into their copy of harness/work/use_cases/."""

from dataclasses import replace

from harness.plan import Frozen
from harness.work.declared import Formulation, Run, UseCase


class Settings(Frozen):
    gate: str
    """File that a measurement of the mode `gated` waits for."""
    pid: str
    """File in which it leaves its process's id."""


NAMES = (
    *("well", "slow", "slower", "gated", "all_gated"),
    *("compiles", "cannot_use_its_caches", "hangs_with_its_caches", "sleeps", "dies_later", "hangs_later"),
    *("waits_later", "fills_the_device_at_first", "is_killed", "is_killed_and_leaves_a_worker", "segfaults"),
    *("exits", "is_signalled", "fills_the_host", "fills_the_device"),
    *("raises", "prints_much", "sends_nonsense", "sends_no_number", "is_slower_on_rank_1"),
    *("removes_the_temporary_folder", "shows_its_world", "stands_for_its_node", "kills_rank_1"),
    "is_controlled",
    *("control_is_killed_on_rank_1", "parity_is_killed"),
    *("parity_raises", "parity_is_refused", "parity_sleeps", "parity_differs"),
    *("standard", "fast", "slowest", "beside_others", "beside_others_at_first"),
)
RUN = Run(name="eager")
FORMULATIONS = tuple(
    Formulation(name=name, runs=(replace(RUN, process_per_node=name == "stands_for_its_node"),)) for name in NAMES
)
USE_CASE = UseCase(
    name="behave",
    about="behave as told",
    settings=Settings,
    formulations={"jax": FORMULATIONS, "torch": FORMULATIONS},
)
