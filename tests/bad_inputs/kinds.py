"""All kinds of input of the campaign."""

from tests.bad_inputs import command_lines, jobs, parity_files, records, scripts, yaml_files
from tests.bad_inputs.campaign import Kind

KINDS: dict[str, Kind] = {
    "yaml": yaml_files.cases,
    "command lines": command_lines.cases,
    "scripts": scripts.cases,
    "records": records.cases,
    "jobs": jobs.cases,
    "parity": parity_files.cases,
}
