"""The table of modes and the chart over the batch size, from made-up records whose every number can be worked out."""

from typing import Any

from harness.plan import Framework
from harness.results.record import Energy, EpochPoint, Latency, Memory, Record
from pipeline.report.charts import Chart
from pipeline.report.figures import section_charts
from pipeline.report.tables import modes_table
from tests.made.report_records import CELL, CPU, record, section_of, with_result
from tests.pipeline.report.shown import answers_of

CIFAR10 = CELL.model_copy(update={"benchmark": "cifar10"})


def full(framework: Framework, mode: str, speed: float, replicate: int = 0, **changes: Any) -> Record:
    """With all that a table or a chart can show. Of 400 calls 93 % take 1 ms, 5 % twice, 2 % three times that. 350 W,
    5,000 samples in 5 s; 2 s an epoch."""
    of_epoch: dict[str, Any] = {"train_time_s": 2.0, "train_loss": 1.0, "test_loss": 1.0, "input_time_s": 2.5}
    of_epoch["further_metrics"] = {"top_5_accuracy": 0.99}
    epochs = [EpochPoint(epoch=epoch, test_metric=1 - 0.5**epoch, **of_epoch) for epoch in (1, 2)]
    fields: dict[str, Any] = {"model": "resnet18", "cell": CIFAR10, "epochs": epochs}
    return with_result(
        record(framework, mode, speed, replicate=replicate, **fields | changes),
        latency=Latency(steps_per_call=1, call_times_s=[0.001] * 372 + [0.002] * 20 + [0.003] * 8),
        memory=Memory(step_peak_bytes=2**29, pool_peak_bytes=2**31, process_bytes=3 * 2**30, host_peak_bytes=1),
        energy=Energy(gross_joules=1750.0, window_s=5.0, busy_s=5.0, samples=5000, idle_watts=100),
        compile_time_warm_s=None if replicate else 4.0,
    )


def test_a_table_has_all_numbers_of_each_mode() -> None:
    """Three forward passes of 2 * 0.5554 G for each of 1,000 images/s are 3.33 TFLOP/s. 350 W: 350 mJ for a sample, and
    700 J in an epoch of 2 s."""
    sides: tuple[tuple[Framework, str, float], ...] = (("jax", "step.jit", 1000), ("jax", "scan.jit", 900))
    made = [full(*side, replicate) for side in (*sides, ("torch", "step.eager", 500.0)) for replicate in range(4)]
    table = modes_table(section_of(made))
    modes = ["JAX step.jit", "JAX scan.jit", "PyTorch step.eager"]
    assert [line.cells[0] for line in table.lines] == ["resnet18-b100-fp32", *modes]
    shown = dict(zip((column.title for column in table.columns), table.lines[1].cells, strict=True))
    expected = {"samples/s": "1,000", "95 % interval": "1,000 to 1,000", "processes": "4", "flags": ""}
    expected |= {"in the ratio": "best of 2", "achieved, TFLOP/s": "3.33"}
    expected |= {"step p50, ms": "1", "step p95, ms": "2", "step p99, ms": "3", "energy gross, mJ/sample": "350"}
    expected |= {"compile, cold, s": "2.5", "compile, warm, s": "4 (1 of 4)", "input of an epoch, s": "2.5"}
    expected |= {"epoch, s": "2", "energy of an epoch, J": "700", "test accuracy": "75.0%"}
    expected |= {"test accuracy, top 5, %": "99"}
    assert {name: shown[name] for name in expected} == expected


def test_what_has_no_number_has_no_column_and_a_reason() -> None:
    """Of 200 calls and other sizes, on a CPU."""
    one = record("jax", "step.jit", model="resnet18", cell=CIFAR10, environment=CPU, sizes={"image_size": 64})
    absent = with_result(one, memory=Memory(absent="no GPU"), energy=Energy(absent="no driver"))
    table = modes_table(section_of([absent]))
    titles = {column.title for column in table.columns}
    assert not titles & {"step p99, ms", "energy gross, mJ/sample", "achieved, TFLOP/s"}
    assert any("Energy: no driver" in note for note in table.notes)


def test_the_terminal_shows_p99_beside_p50_on_80_columns() -> None:
    found = [full("torch", "forward.max_autotune_graph", 1986), full("jax", "taps.tuned_graph", 1000)]
    of_inference = [with_result(one, epochs=[], time_to_target_s=None) for one in found]
    shown = answers_of([section_of(of_inference)], 80, details=True)
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines())
    (head,) = [line for line in shown.splitlines() if "p50" in line]
    assert [word for word in head.split() if word.startswith("p")] == ["p50", "p95", "p99"]
    (line,) = [line for line in shown.splitlines() if "PyTorch forward.max_autotune_graph" in line]
    assert line.split()[2:6] == ["1,986", "1", "2", "3"]


# Throughput by batch size.


def over_batch_sizes(found: list[Record]) -> Chart | None:
    charts = {chart.name: chart for chart in section_charts(section_of(found))}
    return charts.get("throughput_over_batch_size")


def test_a_group_for_each_model_precision_and_options_without_what_is_worthless() -> None:
    options = {"batch_norm": "folded", "inputs": "on_device"}
    groups: list[tuple[str, Any]] = [("resnet50", "bf16"), ("resnet50", "fp32"), ("vit_b_16", "fp32")]
    found = [
        record("jax", "x", 10 * size, batch_size=size, model=model, precision=precision, options=options)
        for model, precision in groups
        for size in (1, 8)
    ]
    found.append(record("jax", "x", model="resnet50", precision="tf32"))  # one size makes no line
    found.append(record("jax", "worthless", batch_size=8, model="resnet50", options=options, flags={"recompiled": "1"}))
    chart = over_batch_sizes(found)
    labels = [f"{model} | {precision}, folded, on_device" for model, precision in groups]
    assert [(one["group"], one["value"], one["throughput"], one["chosen"]) for one in chart.points] == [
        (label, size, 10 * size, True) for label in labels for size in (1, 8)
    ]


def test_other_settings_have_groups_of_their_own() -> None:
    sizes_and_epochs = [(size, epochs) for size in (100, 200) for epochs in (2, 3)]
    chart = over_batch_sizes([record("jax", "x", batch_size=b, settings={"epochs": e}) for b, e in sizes_and_epochs])
    labels = {point["group"] for point in chart.points} if chart else set()
    assert len(labels) == 2 and all(label.startswith("cnn | fp32 (settings ") for label in labels)
