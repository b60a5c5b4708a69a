"""Ask every address of data and weights whether its file is still there: `python -m tests.addresses`.

It needs a network and asks servers of others, so it is no part of `make test`; .github/workflows/weekly.yml runs it.
The addresses are those that `main.py data` would download from, taken from the same code.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from harness.errors import DataError
from harness.experiments.load import load_config
from harness.paths import REPOSITORY
from harness.work.datasets import DataSource, fetch
from harness.work.declared import Benchmark, benchmark

TIMEOUT_S = 60.0
REFUSED_METHOD = (403, 405, 501)
"""Status of servers that answer no HEAD; they are asked for the first byte instead."""


class SameMethod(HTTPRedirectHandler):
    """Follows a redirection with the same method; Python before 3.13 makes a GET of a HEAD."""

    def redirect_request(self, request: Request, *about: Any) -> Request | None:
        changed = super().redirect_request(request, *about)
        if changed is not None:
            changed.method = request.get_method()
        return changed


def addresses_of(declared: Benchmark) -> dict[str, list[str]]:
    """Return the addresses of each file, in the order in which they would be tried."""
    found = addresses_of_data(declared.data) if declared.data else {}
    if any(model.published for model in declared.models):
        from torchvision import models

        for model in declared.models:
            if model.published:
                found[model.published.weights] = [models.get_weight(model.published.weights).url]
    return found


def addresses_of_data(source: DataSource) -> dict[str, list[str]]:
    """Return what `main.py data` would download; empty if the user has to bring the files."""
    found: dict[str, list[str]] = {}

    def note(url: str, *, filename: str, **_: Any) -> None:
        found.setdefault(filename.removesuffix(".incoming"), []).append(url)
        raise OSError("nothing is downloaded")

    with (
        mock.patch("torchvision.datasets.utils.download_url", note),
        TemporaryDirectory() as folder,
        suppress(DataError),
    ):
        fetch(source, Path(folder))
    return found


def why_missing(url: str) -> str | None:
    """Return why the file cannot be had from there, or None if it can."""
    answer = _ask(Request(url, method="HEAD"))
    if isinstance(answer, HTTPError) and answer.code in REFUSED_METHOD:
        answer = _ask(Request(url, headers={"Range": "bytes=0-0"}))
    return None if answer is None else str(answer)


def _ask(request: Request) -> Exception | None:
    request.add_header("User-Agent", "Mozilla/5.0 (compatible; link check)")
    try:
        with build_opener(SameMethod).open(request, timeout=TIMEOUT_S):
            return None
    except HTTPError as error:
        error.close()
        return error
    except (OSError, HTTPException) as error:
        return error


def check(files: Mapping[str, Sequence[str]]) -> list[str]:
    """Ask for all files, print a line for each address, and return the files that no address has."""
    lost: list[str] = []
    for name, urls in files.items():
        reasons = [why_missing(url) for url in urls]
        for url, reason in zip(urls, reasons, strict=True):
            print(f"{'MISSING' if reason else 'ok':<8} {name:<36} {url}{f'  ({reason})' if reason else ''}", flush=True)
        if all(reasons):
            lost.append(name)
    return lost


def main() -> int:
    files: dict[str, list[str]] = {}
    for name in load_config(REPOSITORY / "experiments.yaml").benchmarks:
        files |= addresses_of(benchmark(name))
    lost = check(files)
    print(f"{len(files)} files, {len(lost)} of them at no address{': ' + ', '.join(lost) if lost else ''}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
