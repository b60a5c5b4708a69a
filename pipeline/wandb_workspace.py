"""`main.py wandb workspace`: a saved view in W&B, in which people look at the runs of both frameworks side by side.

What is in it is declared here and needs no W&B. W&B's own package for it, wandb-workspaces, makes it by its public API
and saves it (docs.wandb.ai/models/ref/wandb_workspaces/workspaces).
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.errors import ProjectError
from harness.experiments.model import Config
from harness.plan import WANDB_INDEX, WANDB_RATIOS, WANDB_ROW
from harness.results.partner import RATIO
from harness.results.quantities import BY_NAME
from harness.work.declared import benchmark

if TYPE_CHECKING:
    from rich.console import Console

NAME = "JAX and PyTorch, side by side"
GROUPED_BY = ("Group", "JobType")
"""A run's group is its cell, and its job type the framework (harness/job/tracker.py)."""
COLUMNS = (WANDB_INDEX, f"{WANDB_ROW}name", f"{WANDB_ROW}outcome", f"{WANDB_ROW}{RATIO}")
"""Of the list of runs, keys of the summary: how many measurements, and what the newest one was."""
INSTALL = "pip install -e '.[workspace]'"
OF_ANY_TASK = SimpleNamespace(name="the target", words="metric on the test set")
"""What a task's metric is called where each benchmark has another one."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines: a point for each measurement that is over, or a curve for each one that runs."""

    title: str
    keys: tuple[str, ...] = ()
    """Of W&B: the numbers' names, with their units."""
    pattern: str | None = None
    """Instead of keys: a regular expression, of the curves of all measurements."""
    over: str = WANDB_INDEX
    """The axis."""


@dataclass(frozen=True, kw_only=True)
class PanelGroup:
    title: str
    panels: tuple[Panel, ...]


def panel_groups(metrics: Iterable[str]) -> tuple[PanelGroup, ...]:
    """`metrics`: names of the tasks' metrics on the test set."""
    names = list(dict.fromkeys(metrics))
    learning = [
        _curves("training loss", "train/loss"),
        _curves("test loss", "test/loss"),
        *(_curves(f"test {name.replace('_', ' ')}", f"test/{name}") for name in names),
    ]
    live = Panel(title="samples/s, while it is measured", keys=("live/throughput_samples_per_s",), over="Step")
    ratio = Panel(title="JAX / PyTorch, of this replicate", keys=(f"{WANDB_ROW}{RATIO}",))
    return (
        PanelGroup(
            title="Throughput",
            panels=(live, ratio, *_rows("throughput_samples_per_s", "throughput_tokens_per_s", "achieved_flop_per_s")),
        ),
        PanelGroup(
            title="Loss and metric",
            panels=(*learning, *_rows("test_metric", "time_to_target_s", "epoch_time_s", "input_time_s")),
        ),
        PanelGroup(
            title="Latency of a step", panels=_rows("step_time_p50_s", "step_time_p95_s", "step_time_p99_s")
        ),
        PanelGroup(
            title="Memory",
            panels=_rows("memory_step_peak_bytes", "memory_pool_peak_bytes", "memory_process_bytes"),
        ),
        PanelGroup(
            title="Energy",
            panels=_rows(
                "energy_gross_joules_per_sample", "energy_net_joules_per_sample", "energy_per_epoch_joules",
                "gpu_power_watts",
            ),
        ),
        PanelGroup(title="Compilation", panels=_rows("compile_time_s", "compile_time_warm_s")),
        PanelGroup(title="Models", panels=_rows("parameter_count")),
    )  # fmt: skip


def _curves(title: str, key: str) -> Panel:
    return Panel(title=title, pattern=f"^{key}/", over="epoch")


def _rows(*names: str) -> tuple[Panel, ...]:
    """Of numbers of harness/results/quantities.py; W&B shows them in the unit that ends their name."""
    words = {name: BY_NAME[name].words.format(metric=OF_ANY_TASK) for name in names}
    return tuple(Panel(title=f"{text} ({name})", keys=(f"{WANDB_ROW}{name}",)) for name, text in words.items())


def wandb_command(
    config: Config,
    *,
    entity: str | None = None,
    project: str | None = None,
    dry_run: bool = False,
    console: "Console | None" = None,
) -> int:
    """Makes the workspace and says where it is.

    Args:
        entity: and `project`: instead of those in experiments.yaml; else the account's own entity.
        dry_run: list what would be in it, and ask no server.

    Raises:
        ProjectError: the package or the key is missing, or the server refuses.
    """
    from rich.console import Console

    console = console or Console()
    groups = panel_groups(benchmark(name).task.metric.name for name in config.benchmarks)
    for group in groups if dry_run else ():
        console.print(group.title, style="bold")
        for panel in group.panels:
            console.print(f"  {panel.title}, over {panel.over}", highlight=False, markup=False)
    if dry_run:
        return 0
    url = save(groups, entity=entity or config.wandb.entity, project=project or config.wandb.project)
    console.print(f"Saved: {url}", soft_wrap=True, highlight=False, markup=False)
    return 0


def save(groups: Iterable[PanelGroup], *, entity: str | None, project: str) -> str:
    """As a new view of the project; returns its address. Raises ProjectError."""
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        import wandb
        from wandb_workspaces import expr
        from wandb_workspaces import workspaces as ws
        from wandb_workspaces.reports import v2 as wr
    except ImportError as error:
        raise ProjectError(f"main.py wandb needs the package wandb-workspaces ({error}): {INSTALL}") from error

    def panel_of(panel: Panel) -> Any:
        return wr.LinePlot(title=panel.title, x=panel.over, y=list(panel.keys), metric_regex=panel.pattern)

    try:
        # Raises where there is no key; a client in offline mode would say that later, and in other words.
        entity = entity or wandb.Api().default_entity
        workspace = ws.Workspace(
            entity=entity,
            project=project,
            name=NAME,
            sections=[
                ws.Section(name="Ratios", panels=[wr.WeavePanelSummaryTable(table_name=WANDB_RATIOS)], is_open=True),
                *(
                    ws.Section(name=group.title, panels=[panel_of(panel) for panel in group.panels], is_open=True)
                    for group in groups
                ),
            ],
            settings=ws.WorkspaceSettings(max_runs=50),
            runset_settings=ws.RunsetSettings(
                groupby=[expr.Metric(name) for name in GROUPED_BY],
                pinned_columns=[f"summary:{name}" for name in COLUMNS],
            ),
        )
        url: str = workspace.save().url
    except Exception as error:  # the client and the package raise many classes, some of them not their own
        said = " ".join(str(error).split())[:400] or type(error).__name__
        where = f"{entity}/{project}" if entity else f"your project {project}"
        raise ProjectError(
            f"W&B has not taken the workspace for {where}: {said}\n"
            f"It needs a key (`wandb login`), and the project, which the first run makes. wandb.entity and "
            f"wandb.project of experiments.yaml, or --entity and --project, say which."
        ) from error
    return url
