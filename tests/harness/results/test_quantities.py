"""harness/results/quantities.py: one row for each number, and what follows from the rows."""

import numpy as np
import pytest

from harness.measure import gpu
from harness.results import quantities
from harness.results.predictions import evaluation_of
from harness.results.quantities import BY_NAME, QUANTITIES, of_gpu, summary_numbers
from harness.results.record import Energy, HeldBack, Latency, Memory, Record, Result
from harness.work.tasks import ACCURACY, PERPLEXITY
from pipeline.report.compare import sections
from pipeline.report.wording import absent_lines
from tests.made.nvml import two_gpus
from tests.made.records import blocks, epoch
from tests.made.report_records import csv_lines, passed, record, row_of, with_result


def test_the_numbers_of_a_record() -> None:
    result = Result(
        compile_time_s=2.5,
        blocks=blocks([0.5, 0.4, 0.5], steps=2, samples=50),
        latency=Latency(steps_per_call=2, call_times_s=[0.02, 0.06, 0.04]),
        memory=Memory(step_peak_bytes=2**20),
        energy=Energy(gross_joules=900.0, window_s=3.0, samples=300, idle_watts=100.0),
        gpu_states=[{"temperature_c": 50, "throttle_reasons": ("x",)}, {"temperature_c": 60}, {"temperature_c": 70}],
        held_back=HeldBack(window_s=5.0, seconds={"sw_power_cap": 1.0, "thermal": 0.25, "hw_thermal_slowdown": 0.5}),
    )
    assert summary_numbers(result) == {
        # 10 calls of 2 steps of 50 samples in 0.5 s. A call of several steps has no percentile.
        "throughput_samples_per_s": 2000.0,
        "step_time_s": 0.025,
        "block_spread": pytest.approx(0.1),  # quartiles 0.45 and 0.5, median 0.5; for a drift there are too few
        "step_time_p50_s": 0.02,
        "step_time_mean_s": pytest.approx(0.02),
        "compile_time_s": 2.5,
        "memory_step_peak_bytes": 2**20,
        "energy_gross_joules_per_sample": 3.0,
        "energy_net_joules_per_sample": 2.0,
        "gpu_temperature_c": 60.0,
        "gpu_held_back_by_power_share": 0.2,
        "gpu_held_back_by_heat_share": 0.1,
        "time_of_10000_steps_s": 2.5 + 10_000 * 0.025,
    }
    # 10 calls of 50 samples in half a second: 1000 samples/s.
    numbers = summary_numbers(Result(blocks=blocks([0.5], samples=50), units={"edges": 56.5}), 3e9)
    assert (numbers["throughput_edges_per_s"], numbers["achieved_flop_per_s"]) == (56_500, 3e12)
    assert "throughput_tokens_per_s" not in numbers


def test_quality_is_that_of_the_last_epoch_or_of_the_evaluation() -> None:
    epochs = [epoch(1, test_metric=0.5), epoch(2, test_metric=0.75)]
    assert summary_numbers(Result(epochs=epochs))["test_metric"] == 0.75
    labels = np.array([1, 2])
    assert summary_numbers(Result(evaluation=evaluation_of(labels, 0.875, None)))["test_metric"] == 0.875
    drawn = Result(evaluation=evaluation_of(labels, None, "the weights are drawn"))
    assert "test_metric" not in summary_numbers(drawn)
    absent = BY_NAME["test_metric"].absent
    assert absent and absent.reason(record("jax", "step.jit"), drawn) == "the weights are drawn"
    assert absent.reason(record("jax", "step.jit"), Result(epochs=epochs)) is None


def test_the_numbers_of_epochs() -> None:
    """36 s of compilation and 144 s of steps are a twentieth of an hour, at 4 an hour."""
    epochs = [
        epoch(1, train_time_s=10.0, input_time_s=3.0),
        epoch(2, train_time_s=4.0, input_time_s=2.0),
        epoch(3, train_time_s=6.0, input_time_s=1.0, further_metrics={"top_5_accuracy": 0.75}),
    ]
    energy = Energy(gross_joules=900.0, window_s=3.0, busy_s=2.0, samples=300)
    numbers = summary_numbers(Result(epochs=epochs, energy=energy))
    # 900 J in 2 s of blocks are 450 W, for a median epoch of 6 s.
    assert (numbers["epoch_time_s"], numbers["energy_per_epoch_joules"]) == (6.0, 2700.0)
    assert (numbers["test_top_5_accuracy"], numbers["input_time_s"]) == (0.75, 1.0)
    assert "energy_per_epoch_joules" not in summary_numbers(Result(energy=energy))
    assert "energy_per_epoch_joules" not in summary_numbers(Result(epochs=epochs))
    paid = Result(compile_time_s=36.0, epochs=[epoch(train_time_s=144)], price_per_hour=4.0)
    assert summary_numbers(paid)["epoch_cost"] == pytest.approx(0.2) and "epoch_cost" not in numbers
    assert numbers["energy_gross_joules_per_sample"] == 3 and "energy_net_joules_per_sample" not in numbers


def test_a_number_in_its_unit() -> None:
    assert len(BY_NAME) == len(QUANTITIES)
    for name, metric, value, title, text in (
        ("step_time_p95_s", ACCURACY, 0.0123, "step p95, ms", "12.3"),
        ("test_metric", ACCURACY, 0.98765, "test accuracy", "98.8%"),
        ("time_to_target_s", PERPLEXITY, 1.25, "time to perplexity, s", "1.25"),
    ):
        quantity = BY_NAME[name]
        assert (quantity.title(metric), quantity.text(value, metric)) == (title, text)
        assert quantity.text(None, metric) == ""


# A new GPU metric takes two places.


def test_a_new_gpu_metric_takes_a_reading_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, utilisation = two_gpus(), iter((80, 90, 95))
    nvml.nvmlDeviceGetUtilizationRates.side_effect = lambda handle: type("Rates", (), {"gpu": next(utilisation)})
    reading = gpu.Reading(
        name="sm_utilisation_percent",
        ask=lambda one: one.nvml.nvmlDeviceGetUtilizationRates(one.board).gpu,
        combine=min,
    )
    row = of_gpu("sm_utilisation_percent", name="gpu_sm_utilisation_percent", words="SM utilisation", unit="%")
    monkeypatch.setattr(gpu, "READINGS", (*gpu.READINGS, reading))
    monkeypatch.setattr(quantities, "QUANTITIES", (*quantities.QUANTITIES, row))
    one = with_result(record("jax", "step.jit"), gpu_states=[gpu.Gpu(nvml, 0).state() for _ in range(3)])
    (line,) = csv_lines(sections([Record.model_validate_json(one.model_dump_json())], passed))  # as from its file
    assert float(line["gpu_sm_utilisation_percent"]) == 90


def test_a_refused_reading_is_missing_with_its_reason() -> None:
    one = record("torch", "step.eager", environment={"gpu": {"name": "L4", "absent": {"power_watts": "Not Supported"}}})
    numbers = {"gpu_states": [{"temperature_c": 50}], "memory": Memory(), "energy": Energy(gross_joules=1.0)}
    row = row_of([with_result(one, **numbers)])
    assert row.modes[0].numbers["gpu_temperature_c"] == 50
    assert "gpu_power_watts" not in row.modes[0].numbers
    assert absent_lines([row]) == ["GPU power: Not Supported; PyTorch cnn-b100-fp32 step.eager"]
