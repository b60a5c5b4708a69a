"""What is declared of a record's benchmark and execution mode (harness/work/declared.py). Records outlive declarations:
a name that is not declared any more still has a place in the report.
"""

from functools import cache

from harness.work.declared import Model, benchmark, benchmark_names
from harness.work.tasks import Metric, Task

UNKNOWN_TASK = Task(
    name="unknown",
    arrays=(),
    model_inputs=(),
    samples="samples",
    metric=Metric(name="metric", words="test metric", higher_is_better=True, format="number"),
)


@cache
def task_of(benchmark_name: str) -> Task:
    return benchmark(benchmark_name).task if benchmark_name in benchmark_names() else UNKNOWN_TASK


@cache
def model_of(benchmark_name: str, model_name: str) -> Model | None:
    """None where it is not declared."""
    if benchmark_name not in benchmark_names():
        return None
    return next((model for model in benchmark(benchmark_name).models if model.name == model_name), None)
