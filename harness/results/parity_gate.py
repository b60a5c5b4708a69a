"""Which pairs of records may be compared in speed: what their parity files say. Reads each file once."""

from pathlib import Path

from harness.errors import RecordError
from harness.paths import Results
from harness.results.code_digest import is_same_code
from harness.results.parity import Judgement, ParityNumbers, judge
from harness.results.parity_file import ParityFiles
from harness.results.record import Record


class ParityGate:
    """The judgements of one report."""

    def __init__(self, results: Results) -> None:
        self._files = ParityFiles(results)
        self._judgements: dict[tuple[Path, Path], Judgement] = {}

    def judge(self, jax: Record, torch: Record) -> Judgement:
        """Never raises: a pair whose files cannot be read is unchecked, with the reason."""
        for record in (jax, torch):
            if record.parity is None:
                return Judgement(state="unchecked", sentence=_why_none(record))
        try:
            of_jax, of_torch = self._files.of(jax), self._files.of(torch)
        except RecordError as error:
            return Judgement(state="unchecked", sentence=str(error))
        for record, numbers in ((jax, of_jax), (torch, of_torch)):
            if not _is_of_same_code(record, numbers):
                return Judgement(state="unchecked", sentence=_other_code(record))
        paths = self._files.path_of(jax), self._files.path_of(torch)
        if paths not in self._judgements:
            self._judgements[paths] = judge(of_jax, of_torch)
        return self._judgements[paths]


def _is_of_same_code(record: Record, numbers: ParityNumbers) -> bool:
    """Where either does not say, as those from before do not, the job that both are of must do."""
    of_record, of_numbers = record.environment.get("code"), numbers.metadata.environment.get("code")
    return None in (of_record, of_numbers) or is_same_code(of_record, of_numbers)


def _other_code(record: Record) -> str:
    framework = record.measurement.framework
    return (
        f"the parity numbers of {framework} were made by other code than its record: files of harness/ or of "
        f"{framework}_runner/ changed while the job ran. Measure again, with --force"
    )


def _why_none(record: Record) -> str:
    return f"the record of {record.measurement.framework} has no parity numbers. Measure again, with --force"
