"""plan.json: what a job measures, frozen in its folder when it is submitted or started. Written and read here alone."""

from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from harness.errors import RecordError
from harness.files import in_words, read_json, way_out, write_atomically
from harness.paths import JobFolder
from harness.plan import PLAN_SCHEMA_VERSION, Pair


def write_plan(pair: Pair, folder: JobFolder) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    with way_out(folder.plan):
        write_atomically(folder.plan, pair.model_dump_json(indent=1), replace=False)


def read_plan(path: Path) -> Pair:
    """Raises RecordError that names the file when it is missing, truncated or of another schema."""
    try:
        text = read_json(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    try:
        pair = _parsed(text)
    except ValidationError as error:
        raise RecordError(f"{path}: not a job plan: {in_words(error)}. Submit the job again.") from error
    if pair.schema_version != PLAN_SCHEMA_VERSION:
        raise RecordError(
            f"{path}: a job plan of schema version {pair.schema_version}; this code reads {PLAN_SCHEMA_VERSION}. "
            f"Submit the job again."
        )
    return pair


@lru_cache(maxsize=256)
def _parsed(text: str) -> Pair:
    """Thousands of jobs share a few plans. Raises ValidationError."""
    return Pair.model_validate_json(text)
