"""The files in a job's folder: an odd one costs its own job a line of `status`, and no other job anything."""

import json
import os
import random
import shlex
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.job.progress import write_heartbeat
from harness.paths import JobFolder, Results
from harness.plan import WandbSettings
from harness.plan_file import write_plan
from pipeline.watching.jobs import LocalEnd
from tests.bad_inputs.campaign import Case, Cases, call, changed_file, changed_values, judged_text
from tests.made.project import alone
from tests.made.records import heartbeat
from tests.made.report_records import plan
from tests.made.submissions import submitted


def cases(draw: random.Random, folder: Path) -> Cases:
    results = Results(root=folder / "results")
    sound, odd = _job(results, "mnist"), _job(results, "cifar10")
    for path in (odd.plan, odd.submission, odd.heartbeat, odd.local_end):
        before = path.read_bytes()
        broken = (b"", b"{", b"[" * 100_000, b"\xff", b"[]", b"null", before[: len(before) // 2])
        changes = [*changed_values(draw, json.loads(before), 4), *((repr(content[:20]), content) for content in broken)]
        for name, change in [*changes, ("a pipe", os.mkfifo)]:
            yield Case(f"{path.name}: {name}", partial(_judged, results, path, change))
    assert sound.plan.exists()


def _job(results: Results, benchmark: str) -> JobFolder:
    made = plan("jax", "step.jit")
    cell = made.cell.model_copy(update={"benchmark": benchmark})
    variants = tuple(one.model_copy(update={"options": {"a": 1}}) for one in made.variants)
    wandb = WandbSettings(mode="disabled", tags=("a",))
    pair = alone(made.model_copy(update={"cell": cell, "variants": variants, "wandb": wandb}))
    folder = results.new_job_folder(pair)
    write_plan(pair, folder)
    submitted(folder, "local", job_id="999999", node="elsewhere")
    of_phase = {"current": "x", "phase": "cold", "phase_done": 1.0, "phase_total": 2.0}
    beat = heartbeat(pid=999999, replicates_made=1, measuring_s=5.0, last_error="e", **of_phase)
    write_heartbeat(beat, folder.heartbeat)
    folder.local_end.write_text(LocalEnd(error="e", ended_at_unix_s=time.time()).model_dump_json())
    return folder


def _judged(results: Results, path: Path, change: bytes | Callable[[Path], object]) -> str | None:
    with changed_file(path, change):
        for words in (["status"], ["status", "--cancel"]):
            status, output, errors = call(*words, "--results", str(results.root))
            for mark in results.jobs.rglob("cancelled"):
                mark.unlink()
            if status not in (0, 1):
                return f"{shlex.join(words)} ends with {status}: {errors[:200]!r}"
            if words == ["status"] and "mnist train" not in output:
                return f"the other job is not shown: {output[:300]!r}"
            if why := judged_text("the terminal", output + errors):
                return why
    return None
