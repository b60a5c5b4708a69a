"""The files in a job's folder: an odd one costs its own job a line of `status`, and no other job anything."""

import json
import random
import time
from pathlib import Path

from harness.job.progress import write_heartbeat
from harness.paths import JobFolder, Results
from harness.plan import WandbSettings
from harness.plan_file import write_plan
from pipeline.watching.jobs import LocalEnd
from tests.bad_inputs.campaign import ODD_VALUES, Case, Cases, call, changed_file, judged_text, leaves, with_value
from tests.made.project import alone
from tests.made.records import heartbeat
from tests.made.report_records import plan
from tests.made.submissions import submitted


def cases(draw: random.Random, folder: Path) -> Cases:
    results = Results(root=folder / "results")
    sound, odd = _job(results, "mnist"), _job(results, "cifar10")
    for path in (odd.plan, odd.submission, odd.heartbeat, odd.local_end):
        before = path.read_bytes()
        content = json.loads(before)
        for keys in leaves(content):
            for value in draw.sample([..., *ODD_VALUES], 4):
                changed = json.dumps(with_value(content, keys, value)).encode()
                name = f"{path.name}: {'.'.join(map(str, keys))} = {str(value)[:40]!r}"
                yield Case(name, lambda path=path, changed=changed: _judged(results, path, changed))
        for changed in (b"", b"{", b"[" * 100_000, b"\xff", b"[]", b"null", before[: len(before) // 2]):
            yield Case(
                f"{path.name}: {changed[:20]!r}", lambda path=path, changed=changed: _judged(results, path, changed)
            )
        yield Case(f"{path.name}: a pipe", lambda path=path: _judged(results, path, None))
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


def _judged(results: Results, path: Path, changed: bytes | None) -> str | None:
    with changed_file(path, changed):
        for command in ("status", "cancel"):
            status, output, errors = call(command, "--results", str(results.root))
            for mark in results.jobs.rglob("cancelled"):
                mark.unlink()
            if status not in (0, 1):
                return f"{command} ends with {status}: {errors[:200]!r}"
            if command == "status" and "mnist train" not in output:
                return f"the other job is not shown: {output[:300]!r}"
            if why := judged_text("the terminal", output + errors):
                return why
    return None
