"""Device against device: what the same variant does on each, in both frameworks. A CPU is a device like any other.

Pure. Each framework is in the mode that is its fastest on that device, which may be another on another.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from harness.plan import FRAMEWORKS
from harness.results.quantities import BY_NAME, number
from pipeline.report.compare import MANY_STEPS, NAMES, Row, RowKey, Section, row_labels
from pipeline.report.table import Line, Table, group, numbers, texts
from pipeline.report.wording import WHOSE_SIDE, bracket, on_devices, times, use_case_title

ENERGY = BY_NAME["energy_gross_joules_per_sample"]


def device_panels(compared: Sequence[Section]) -> dict[str, Mapping[str, Row]]:
    """By the title of what is the same, the row of each device, the slowest first; of two devices at the least. Where
    one device was asked for by two names, the row with a ratio counts, else the first."""
    found: dict[tuple[str, int, int, str], dict[RowKey, dict[str, Row]]] = defaultdict(lambda: defaultdict(dict))
    for section in compared:
        setup, cell = section.setup, section.setup.cell
        doubts = f" ({', '.join(setup.doubts)})" if setup.doubts else ""
        title = f"{cell.benchmark}, {use_case_title(cell)}{on_devices(cell)}{doubts}"
        for row in section.rows:
            label = row.variant.comparison_key + (MANY_STEPS if row.many_steps_in_a_call else "")
            key = RowKey(label, row.settings_digest, row.data_id)
            of_devices = found[cell.benchmark, cell.use_case, cell.nodes, title][key]
            known = of_devices.get(setup.devices)
            if known is None or (known.ratio is None and row.ratio is not None):
                of_devices[setup.devices] = row
    panels: dict[str, Mapping[str, Row]] = {}
    for place, of_rows in sorted(found.items(), key=lambda item: item[0]):
        labels = row_labels(of_rows)
        for key, of_devices in of_rows.items():
            if len(of_devices) > 1:
                slowest_first = sorted(of_devices.items(), key=lambda one: (_fastest(one[1]), one[0]))
                panels[f"{place[-1]}: {labels[key]}"] = dict(slowest_first)
    return panels


def _fastest(row: Row) -> float:
    """Samples per second of the faster framework."""
    return max(mode.throughput_samples_per_s for mode in row.modes)


def devices_table(compared: Sequence[Section]) -> Table:
    lines = []
    for title, devices in device_panels(compared).items():
        lines.append(group(title))
        lines += [Line(_cells(device, row)) for device, row in devices.items()]
    return Table(
        name="devices",
        title="Device against device",
        caption=(
            "The same variant, settings and data on each device; each framework in the mode that is its fastest "
            f"there. Samples per second and ratio as in the sections. {WHOSE_SIDE} Energy is that of the GPU's board, "
            "gross; a CPU has none."
        ),
        columns=[
            *texts("device"),
            *numbers(*(f"{NAMES[one]} samples / s" for one in FRAMEWORKS), "JAX / PyTorch"),
            *numbers(*(f"{NAMES[one]} mJ / sample" for one in FRAMEWORKS)),
        ],
        lines=lines,
    )


def _cells(device: str, row: Row) -> list[str]:
    modes = [row.best(framework) for framework in FRAMEWORKS]
    joules = [mode.numbers.get(ENERGY.name) if mode else None for mode in modes]
    return [
        device,
        *(f"{number(one.throughput_samples_per_s)} ({one.execution_mode})" if one else "none" for one in modes),
        f"{times(row.ratio.value)}{bracket(row.ratio.interval)}" if row.ratio else "none",
        *("" if one is None else number(ENERGY.scaled(one)) for one in joules),
    ]
