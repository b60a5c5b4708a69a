"""The weekly check of addresses (tests/addresses.py), against a server on this machine."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from harness.work.declared import benchmark
from tests.addresses import addresses_of, check, why_missing


class Handler(BaseHTTPRequestHandler):
    """/here is there, /moved leads to it, /no-head answers no HEAD, and all else is missing."""

    def do_HEAD(self) -> None:  # noqa: N802
        self.answer({"/here": 200, "/moved": 302, "/no-head": 405, "/gone-no-head": 405}.get(self.path, 404))

    def do_GET(self) -> None:  # noqa: N802
        assert self.headers["Range"] == "bytes=0-0"
        self.answer(206 if self.path == "/no-head" else 404)

    def answer(self, status: int) -> None:
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/here")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_missing_file_is_told_from_one_that_is_there(server: str) -> None:
    assert [why_missing(f"{server}/{path}") for path in ("here", "moved", "no-head")] == [None] * 3
    for path in ("gone", "gone-no-head"):
        assert why_missing(f"{server}/{path}") == "HTTP Error 404: Not Found"
    assert "refused" in str(why_missing("http://127.0.0.1:9/a"))


def test_file_is_lost_only_if_no_address_has_it(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    gone, here = f"{server}/gone", f"{server}/here"
    assert check({"one": [gone, here], "two": [here], "three": [gone, gone]}) == ["three"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *("MISSING", "ok"),
        "ok",
        *("MISSING", "MISSING"),
    ]


@pytest.mark.parametrize(
    ("name", "files", "address"),
    [
        ("mnist", 4, "train-images-idx3-ubyte.gz"),
        ("cifar10", 1, "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"),
        ("enwik8", 1, "https://mattmahoney.net/dc/enwik8.zip"),
        ("fineweb", 2, "/fineweb_val_000000.bin"),
        ("molpcba", 1, "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download/pcba.zip"),
        ("imagenet100", 4, "https://download.pytorch.org/models/resnet50-"),
        ("synthetic", 0, ""),
        ("text", 0, ""),
    ],
)
def test_addresses_are_those_of_the_download(name: str, files: int, address: str) -> None:
    """Users bring imagenet100's images; its four models' weights are torchvision's. Two benchmarks download nothing."""
    pytest.importorskip("torchvision")
    found = addresses_of(benchmark(name))
    assert len(found) == files
    urls = [url for of_file in found.values() for url in of_file]
    assert all(url.startswith(("http://", "https://")) for url in urls)
    assert not files or any(address in url for url in urls)
