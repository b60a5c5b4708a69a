"""XLA, as the device and the use cases ask for it."""

import jax
import jax.monitoring

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"  # jax/_src/dispatch.py


class Compilations:
    """Programs that XLA has compiled since this was made."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILE_EVENT:
            self.count += 1


def step_peak_bytes(step: jax.stages.Compiled) -> int | None:
    """XLA's own account of one execution: arguments, outputs and temporaries, less what is aliased. None where this
    backend gives none."""
    analysis = step.memory_analysis()
    if analysis is None:
        return None
    return int(
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
    )
