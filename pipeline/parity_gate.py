"""The parity gate: reads what both sides of a pair left beside their records and judges it."""

from harness.parity import Judgement
from harness.paths import Results
from harness.record import Record


class ParityGate:
    def __init__(self, results: Results) -> None:
        self._results = results

    def judge(self, jax: Record, torch: Record) -> Judgement:
        return Judgement(state="unchecked", sentence="these records were made before there was a parity gate")
