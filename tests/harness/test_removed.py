"""Every removed command, flag and setting is answered by name, with what to do instead."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from harness.errors import ConfigError
from harness.experiments.source import read_source
from harness.experiments.words import read_shape
from harness.job.main import main as job_main
from harness.removed import REMOVED
from main import COMMAND_PARSERS, COMMANDS, Parser, main

FLAGS = [name for name in REMOVED if name.startswith("--")]
SETTINGS = [name for name in REMOVED if "." in name]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.partition("\n")[0]


@pytest.mark.parametrize("name", [name for name in REMOVED if name not in (*FLAGS, *SETTINGS, *COMMANDS)])
def test_a_removed_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([name], [name, "--dry-run"], ["--wait", name]):
        with pytest.raises(SystemExit, match="^2$"):
            main(words)
        assert said(capsys) == f"main.py: {name}: this command was removed. {REMOVED[name]}"


@pytest.mark.parametrize("flag", FLAGS)
def test_a_removed_flag_of_any_command_and_of_a_job(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where another flag is missing, as in `check`, and in the other spelling."""
    answer = f"{flag}: this flag was removed. {REMOVED[flag]}"
    for command, (parser, _) in COMMAND_PARSERS.items():
        if flag in parser()._option_string_actions:
            continue
        with pytest.raises(SystemExit, match="^2$"):
            main([*filter(None, [command]), flag, "400"])
        assert said(capsys) == f"main.py {command}".rstrip() + f": {answer}"
    for framework in (None, "jax"):
        with pytest.raises(SystemExit, match="^2$"):
            job_main(framework, ["--benchmark", "mnist", f"{flag}=400"])
        assert capsys.readouterr().err.endswith(f": error: {answer}\n")
    other = "--" + flag[2:].replace("_", " ").replace("-", "_").replace(" ", "-")
    with pytest.raises(SystemExit, match="^2$"):
        Parser("main.py", "").parse([other])
    assert said(capsys) == f"main.py: {answer.replace(flag, other, 1)}"


def test_a_flag_that_exists_is_never_taken_for_a_removed_one(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("main.py", "")
    parser.switch("--png", "")
    parser.add_argument("--results")
    found = parser.parse(["--png", "--results", "pack"])
    assert (found.png, found.results) == (True, "pack")
    with pytest.raises(SystemExit):
        parser.parse(["--png", "--fleet", "2"])
    assert said(capsys) == f"main.py: --fleet: this flag was removed. {REMOVED['--fleet']}"


class Section(BaseModel, extra="forbid"):
    partition: str = ""


class Small(BaseModel, extra="forbid"):
    cluster: Section | None = None
    use_cases: Section | None = None


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_removed_setting(setting: str, tmp_path: Path) -> None:
    section, key = setting.split(".")
    file = tmp_path / "experiments.yaml"
    file.write_text(f"{section}:\n  partitoin: gpu\n  {key}: true\n")
    with pytest.raises(ConfigError) as caught:
        read_shape(read_source(file), Small)
    unknown = f"{file}:2:3: {section}.partitoin: unknown key; valid: partition; did you mean partition?"
    assert str(caught.value).splitlines() == [unknown, f"{file}:3:3: {setting}: was removed. {REMOVED[setting]}"]
