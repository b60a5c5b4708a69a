"""Which pairs of records may be compared in speed: what their parity files say. Reads each file once."""

from pathlib import Path

from harness.errors import RecordError
from harness.paths import Results
from harness.results.parity import Judgement, ParityNumbers, judge
from harness.results.record import Record


class ParityGate:
    """The judgements of one report."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._numbers: dict[Path, ParityNumbers | RecordError] = {}
        self._judgements: dict[tuple[Path, Path], Judgement] = {}

    def judge(self, jax: Record, torch: Record) -> Judgement:
        """Never raises: a pair whose files cannot be read is unchecked, with the reason."""
        for record in (jax, torch):
            if record.parity is None:
                return Judgement(state="unchecked", sentence=_why_none(record))
            numbers = self._read(self._path(record))
            if isinstance(numbers, ParityNumbers) and not _is_of_same_code(record, numbers):
                return Judgement(state="unchecked", sentence=_other_code(record))
        paths = self._path(jax), self._path(torch)
        if paths not in self._judgements:
            self._judgements[paths] = self._judge(*paths)
        return self._judgements[paths]

    def _judge(self, jax: Path, torch: Path) -> Judgement:
        numbers = [self._read(path) for path in (jax, torch)]
        for of_one in numbers:
            if isinstance(of_one, RecordError):
                return Judgement(state="unchecked", sentence=str(of_one))
        of_jax, of_torch = (of_one for of_one in numbers if isinstance(of_one, ParityNumbers))
        return judge(of_jax, of_torch)

    def _read(self, path: Path) -> ParityNumbers | RecordError:
        from harness.results.parity_file import read_parity

        if path not in self._numbers:
            try:
                self._numbers[path] = read_parity(path)
            except RecordError as error:
                self._numbers[path] = error
        return self._numbers[path]

    def _path(self, record: Record) -> Path:
        measurement = record.measurement
        return self._results.records(measurement.cell, measurement.framework) / str(record.parity)


def _is_of_same_code(record: Record, numbers: ParityNumbers) -> bool:
    """Where either does not say, as those from before do not, the job that both are of must do."""
    of_record, of_numbers = record.environment.get("code"), numbers.metadata.environment.get("code")
    return None in (of_record, of_numbers) or of_record == of_numbers


def _other_code(record: Record) -> str:
    framework = record.measurement.framework
    return (
        f"the parity numbers of {framework} were made by other code than its record: files of harness/ or of "
        f"{framework}_runner/ changed while the job ran. Measure again, with --force"
    )


def _why_none(record: Record) -> str:
    return f"the record of {record.measurement.framework} has no parity numbers. Measure again, with --force"
