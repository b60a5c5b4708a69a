"""A process on the fake CUDA that builds programs of PyTorch and writes down what their steps call, one file a program.

    python -m tests.fake_gpu.steps FOLDER '["train/mnist-cnn/step.eager/fp32/16/{}/{}"]'

Pure but for the process itself: pytest and the process read this alike.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from harness.files import write_atomically
from harness.plan import Precision
from tests.gpu.cases import BATCH_SIZE, Case, all_cases, left_out, models_of, options_of
from tests.gpu.group import Answer, run_group
from tests.made.patience import patience


@dataclass(frozen=True, kw_only=True)
class Step:
    """A program by its names, smaller than in experiments.yaml (tests/made/sessions.py)."""

    use_case: str
    models: tuple[tuple[str, str], ...]
    """Benchmarks and models: the first that the runner does not refuse."""
    mode: str
    precision: Precision
    batch_size: int = BATCH_SIZE
    options: str = "{}"
    """As JSON."""
    settings: str = "{}"
    """As JSON."""

    @property
    def name(self) -> str:
        models = "+".join("-".join(one) for one in self.models)
        parts = (self.use_case, models, self.mode, self.precision, str(self.batch_size), self.options, self.settings)
        return "/".join(parts)

    def path(self, folder: Path) -> Path:
        return folder / f"{sha256(self.name.encode()).hexdigest()[:16]}.json"


def step_of(case: Case) -> Step:
    return Step(
        use_case=case.use_case,
        models=tuple(models_of(case)),
        mode=case.mode,
        precision=case.precision,
        options=json.dumps(options_of(case)),
    )


def cases(*, run_as: str) -> list[Case]:
    """PyTorch's of tests/gpu: `eager`, `compiled`."""
    return [
        case
        for case in all_cases()
        if case.framework == "torch" and case.declared.run_as == run_as and left_out(case) is None
    ]


def one(
    use_case: str,
    model: str,
    mode: str,
    precision: Precision,
    batch_size: int = BATCH_SIZE,
    *,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Step:
    """`model`: its benchmark and its name, `mnist/cnn`."""
    benchmark, _, name = model.partition("/")
    return Step(
        use_case=use_case,
        models=((benchmark, name),),
        mode=mode,
        precision=precision,
        batch_size=batch_size,
        options=json.dumps(options),
        settings=json.dumps(settings or {}),
    )


EAGER_CASES = [case for case in cases(run_as="eager") if case.precision != "tf32" or case.declared.graph == "none"]
"""TF32 is chosen before a program is built, and what a graph captures is what is eager."""
MODELS_BY_DAY = ("imagenet100/mobilenet_v3_small", "imagenet100/vit_b_16", "molpcba/gcn")
"""The cases take the first model that they can, so these are tried in training besides."""
FURTHER = [one("train", model, "step.eager", precision) for model in MODELS_BY_DAY for precision in ("fp32", "bf16")]
SCHEDULED = one("train", "mnist/cnn", "step.eager_graph", "bf16", settings={"schedule": "cosine"})
"""Its learning rate lies on the device."""
ADAMW = one("train", "mnist/cnn", "step.eager", "fp32", settings={"optimizer": "adamw", "schedule": "cosine"})
ON_HOST = [
    one("inference", "mnist/cnn", mode, "fp16", inputs="on_host", batch_norm="folded")
    for mode in ("forward.eager", "forward.eager_graph")
]
GROWING = {
    f"{use_case} {model}": tuple(one(use_case, model, "vmap.eager", "fp32", size, **options) for size in (32, 64))
    for use_case, options in (("per_sample_gradients", {"output": "norms"}), ("many_models", {"models": 3}))
    for model in ("mnist/cnn", "molpcba/gcn")
}
"""What is vmapped, of two batch sizes; gradients of embeddings are another kernel below 3,072 rows."""
BY_DAY = [
    *map(step_of, EAGER_CASES),
    *FURTHER,
    SCHEDULED,
    ADAMW,
    *ON_HOST,
    *(step for pair in GROWING.values() for step in pair),
]
"""All of one process, for all files of these tests."""


# ---- the process


def main(folder: Path, wanted: Sequence[Step], tell: Any) -> None:
    from torch_runner.device import Device

    device = Device()
    for step in wanted:
        tell({"begun": step.name})
        try:
            found = facts_of(step, device)
        except Exception as error:
            traceback.print_exc()
            found = {"outcome": "failed", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"}
        write_atomically(step.path(folder), json.dumps(found), replace=True)
        tell({"ended": step.name, "answer": Answer(outcome="ok", words="", seconds=0.0)})


def facts_of(step: Step, device: Any) -> dict[str, Any]:
    from harness.errors import Refused

    refusals: list[str] = []
    for data, model in step.models:
        try:
            return {"outcome": "ok", "model": f"{data}/{model}"} | _facts_of(step, data, model, device)
        except Refused as error:
            refusals.append(f"{data}/{model}: {error}")
    return {"outcome": "refused", "reason": " | ".join(refusals)}


def _facts_of(step: Step, data: str, model: str, device: Any) -> dict[str, Any]:
    """Raises Refused."""
    import gc

    import torch

    from harness.fake_gpu import calls as log
    from harness.measure.clock import COLD_CALLS
    from tests.made.sessions import build, make_session

    device.forget_programs()
    gc.collect()
    torch.cuda.empty_cache()
    calls = log.Calls()
    session = make_session(
        "torch",
        step.use_case,
        benchmark=data,
        model=model,
        batch_size=step.batch_size,
        precision=step.precision,
        execution_mode=step.mode,
        options=json.loads(step.options),
        device=device,
        **json.loads(step.settings),
    )
    calls.reset()
    program = build(session)
    device.wait(program.state())
    before = calls.events()
    operands: list[str] = []
    for number in range(COLD_CALLS):
        calls.reset()
        # In the second call, which is captured in no mode, so that only what is eager is looked at.
        if number == 1 and session.mode.run_as == "eager":
            with CpuOperands() as found:
                outputs = program.step()
            operands = sorted(found.words)
        else:
            outputs = program.step()
        device.wait(outputs)
        before += calls.events()
    calls.reset()
    outputs = program.step()
    timed = calls.events()
    device.wait(outputs)
    witness = program.witness()
    program.settle()
    device.wait(program.step())
    executed = log.executed(timed, log.captured_graphs(before + timed))
    return {
        "faults": log.faults(before),
        "hindrances": log.hindrances(timed),
        "cpu_operands": operands,
        "graph_launches": len(log.of_kind(timed, "graph")),
        "executed": [[call.kind, call.what, call.details] for call in executed],
        "witness": witness,
    }


class CpuOperands:
    """Operators that are called with tensors of the device and with one that lies on the host."""

    def __init__(self) -> None:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        words = self.words = set[str]()

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                leaves = tree_leaves((args, kwargs or {}))
                devices = {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}
                if len(devices) > 1 and "copy" not in function.__name__:
                    words.add(str(function))
                return function(*args, **(kwargs or {}))

        self._mode = Mode()

    def __enter__(self) -> "CpuOperands":
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)


# ---- the other end


def run_steps(wanted: Sequence[Step], folder: Path, variables: Mapping[str, str]) -> None:
    """Leaves a file for each, also for those that end the process or never end."""
    folder.mkdir(exist_ok=True)
    steps = {f"torch-{step.name}": step for step in wanted if not step.path(folder).exists()}
    if not steps:
        return
    listed = folder / "wanted.json"
    listed.write_text(json.dumps([_as_dict(step) for step in steps.values()]))
    command = [sys.executable, "-m", "tests.fake_gpu.steps", str(folder), str(listed)]
    answers = run_group(list(steps), folder / "log", variables, command=command, timeout_s=patience(300))
    for name, answer in answers.items():
        if answer["outcome"] != "ok":
            text = json.dumps({"outcome": "failed", "reason": answer["words"]})
            write_atomically(steps[name].path(folder), text, replace=True)


def _as_dict(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name) for name in Step.__dataclass_fields__}


def _read(path: Path, names: Sequence[str]) -> Iterator[Step]:
    for fields in json.loads(path.read_text()):
        step = Step(**fields | {"models": tuple(map(tuple, fields["models"]))})
        if f"torch-{step.name}" in names:
            yield step


if __name__ == "__main__":
    to_parent = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    steps_asked = list(_read(Path(sys.argv[2]), json.loads(sys.argv[3])))

    def tell(event: dict[str, Any]) -> None:
        named = {key: f"torch-{value}" if key in ("begun", "ended") else value for key, value in event.items()}
        print(json.dumps(named), file=to_parent)

    main(Path(sys.argv[1]), steps_asked, tell)
