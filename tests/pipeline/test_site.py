"""The site of the published results: what its rows say, where its links lead, what it replaces, and its page in a real
Chromium at the width of a desk and of a phone."""

import itertools
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

import pytest

import pipeline.site
from harness.errors import ProjectError
from harness.paths import README, Results
from harness.plan import Framework
from pipeline.site import SITE_BEGINS, make_site
from tests.made.report_records import CPU, H200, passed, record, save
from tests.pipeline.report import test_browser
from tests.pipeline.report.test_browser import PHONE, show

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

browser = test_browser.browser
NASTY = 'A <b>"CPU"</b> & 1   core'
LOCK = {"name": "2026-11", "file": "cpu-py311-x86_64", "sha256": "5e", "matching": 113, "packages": 114, "others": []}
SPEEDS: tuple[tuple[Framework, str, float], ...] = (("jax", "step.jit", 3000), ("torch", "step.eager", 2000))
SHOWN = "return [...document.querySelectorAll('#rows tbody tr')].filter((one) => one.offsetHeight).length"
WIDER = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Page(HTMLParser):
    """Links and ids, and the text of each row."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.rows: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [str(found["href"])] if tag == "a" else []
        self.ids |= {str(found["id"])} if "id" in found else set()
        self.rows += [""] if tag == "tr" else []

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1] += data


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shelves with four pairs each, of a CPU and of a GPU, where JAX does 3,000 samples/s and PyTorch 2,000.; on
    the GPU in two precisions."""
    monkeypatch.setattr(pipeline.site, "ParityGate", lambda _: type("Gate", (), {"judge": staticmethod(passed)}))
    cpu: dict[str, Any] = CPU | {"cpu": {"model": NASTY}, "lock": LOCK}
    kinds: Any = (
        ("index", cpu, "sample", "fp32"),
        ("a shelf", H200, "real", "fp32"),
        ("a shelf", H200, "real", "bf16"),
    )
    for name, environment, data, precision in kinds:
        for (framework, mode, speed), replicate in itertools.product(SPEEDS, range(4)):
            version = {"version": "0.10.2" if framework == "jax" else "2.15.0"}
            told = environment | {"framework": environment["framework"] | version}
            more = {"environment": told, "data": data, "precision": precision}
            made = record(framework, mode, speed, replicate=replicate, **more)
            save(made, Results(root=tmp_path / "published" / name))
    return tmp_path / "published"


def test_a_row_says_all_of_its_answer(published: Path, tmp_path: Path) -> None:
    make_site(tmp_path / "site", published)
    index = tmp_path / "site" / "index.html"
    page = Page(index)
    _, on_cpu, in_bf16, in_fp32 = [" ".join(row.split()) for row in page.rows]
    assert on_cpu.startswith(
        'CPU: A <b>"CPU"</b> & 1 core Train a small CNNmnist, batch 100, fp32; model cnn; use case 1: Trainsample data '
        "JAX 1.50 × faster (1.50 to 1.50) 4 of at most 12 pairs; JAX / PyTorch ready after 2.5 / 2.5 s."
    )
    assert "JAX 3,000 samples/s (step.jit)1: 3,000 2: 3,000 3: 3,000 4: 3,000 PyTorch 2,000 samples/s (step" in on_cpu
    assert "JAX 0.10.2 and PyTorch 2.15.0, 8 measurements, 2026-11-21. Published as index." in on_cpu
    assert on_cpu.endswith("Lock: 2026-11 cpu-py311-x86_64: 113 of 114 packages")
    assert "NVIDIA H200" in in_bf16 and "batch 100, bf16;" in in_bf16 and "batch 100, fp32;" in in_fp32
    assert "sample data" not in in_bf16 + in_fp32
    words = "No GPU has been measured yet"
    assert words not in index.read_text()
    shutil.rmtree(published / "a shelf")
    make_site(tmp_path / "site", published)
    assert words in index.read_text()


def test_the_published_rows_are_those_of_the_readme(tmp_path: Path) -> None:
    """Of what this repository has published."""
    assert make_site(tmp_path / "site") == 0
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?): (.+?) \| (.+?) \| (.+?) \| ([\d,]+) \((.+?)\) \|", README.read_text(), re.MULTILINE)
    assert len(rows) == page.count("<tr class=") > 0
    for work, detail, faster, by, speed, mode in rows:
        (found,) = [row for row in page.split("<tr ") if f"<b>{work}</b><span>{detail};" in row]
        is_open = faster == "not decided"
        words = f"{faster}: {by}" if is_open else f"{faster} {by.replace(' × ', ' × faster ')}"
        assert f">{words}</a>" in found and f"JAX {speed} samples/s ({mode})" in found


def test_every_link_leads_to_a_file_of_the_site(published: Path, tmp_path: Path) -> None:
    """A number to the record that has it; a sentence to its section of the report."""
    site = tmp_path / "site"
    make_site(site, published)
    links = [link for link in Page(site / "index.html").links if not link.startswith("#")]
    for link in links:
        name, _, anchor = link.partition("#")
        assert (site / unquote(name)).is_file(), link
        assert not anchor or anchor in Page(site / unquote(name)).ids, link
    records = {unquote(link) for link in links if link.endswith(".json")}
    assert records == {path.relative_to(site).as_posix() for path in site.rglob("*.json")} != set()
    for name in records:
        original = (published / name.removeprefix("shelves/")).read_text()
        text = (site / name).read_text()
        assert json.loads(text) == json.loads(original) and text.count("\n") > 50


def test_a_site_is_replaced_also_an_unfinished_one(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, write = tmp_path / "there" / "site", Path.write_text

    def full_disk(self: Path, *given: Any, **named: Any) -> int:
        if self.suffix == ".json":
            raise OSError(28, "No space left on device", str(self))
        return write(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full_disk)
        with pytest.raises(ProjectError, match="--output .*site: cannot be written: No space left on device"):
            make_site(target, published)
    make_site(target, published)
    shutil.rmtree(published / "a shelf")
    make_site(target, published)
    assert sorted(path.name for path in (target / "shelves").iterdir()) == ["index"]


def test_what_is_no_site_of_ours_is_never_replaced(published: Path, tmp_path: Path) -> None:
    def refused(target: Path, of: Path = published) -> str:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ProjectError) as refusal:
            make_site(target, of)
        assert sorted(tmp_path.rglob("*")) == before
        return str(refusal.value)

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "index.html").write_text("<!doctype html>\n<p>mine")
    (tmp_path / "loop").symlink_to("loop")
    assert "holds no site that this command made; choose another folder" in refused(mine)
    assert "is no folder; choose another name" in refused(mine / "index.html")
    assert "cannot be written: " in refused(mine / "index.html" / "site")
    assert "cannot be written: " in refused(tmp_path / "loop")
    (mine / "index.html").write_text(SITE_BEGINS)
    (mine / "CNAME").write_text("bench.example")
    assert "mine: has CNAME, which no site has; choose another folder" in refused(mine)
    words = "nothing is published; first: python main.py report --publish NAME"
    assert words in refused(tmp_path / "site", tmp_path / "nothing")


@pytest.mark.browser
@pytest.mark.parametrize("size", [(1101, 800), PHONE], ids=["narrow desk", "phone"])
def test_in_a_browser(browser: "WebDriver", size: tuple[int, int], published: Path, tmp_path: Path) -> None:
    """Nothing is wider than the window, also unfolded; filters hide rows, stand in the address, and come back."""
    from selenium.webdriver.support.ui import Select

    index = tmp_path / "site" / "index.html"
    make_site(index.parent, published)
    show(browser, index, size, "dark")
    browser.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.execute_script(SHOWN) == 3 and browser.execute_script(WIDER) == 0
    assert test_browser.colour(browser, "body", "background-color") == test_browser.PAPER["dark"]
    device = browser.find_element("css selector", "[data-filter=device]")
    for field in browser.find_elements("css selector", "[data-filter], #clear"):
        assert field.size["height"] >= 44
    Select(device).select_by_value("NVIDIA H200")
    assert browser.execute_script(SHOWN) == 2
    browser.find_element("css selector", "[data-filter=words]").send_keys("CNN bf16")
    assert browser.execute_script(SHOWN) == 1
    assert browser.find_element("id", "shown").text == "1 of 3 rows"
    address = browser.current_url
    assert parse_qs(address.partition("#")[2]) == {"device": ["NVIDIA H200"], "words": ["CNN bf16"]}
    browser.get("about:blank")
    browser.get(address)
    assert browser.execute_script(SHOWN) == 1
    assert browser.find_element("css selector", "[data-filter=words]").get_attribute("value") == "CNN bf16"
    browser.find_element("css selector", "[data-filter=words]").send_keys(" nowhere")
    assert browser.execute_script(SHOWN) == 0 and browser.find_element("id", "none").is_displayed()
    browser.find_element("id", "clear").click()
    assert browser.execute_script(SHOWN) == 3
    browser.get(f"{index.as_uri()}#device=CPU:+A+%3Cb%3E%22CPU%22%3C/b%3E+%26+1+++core&precision=fp8")
    assert browser.execute_script(SHOWN) == 1  # a device's own blanks; a precision that no row has is not asked for
    assert browser.execute_script("return document.querySelector('[data-filter=precision]').selectedIndex") == 0
    browser.execute_script("arguments[0].click()", browser.find_element("css selector", "tbody tr:not([hidden]) a"))
    test_browser.wait_for(browser, "location.pathname.endsWith('/report.html') && document.getElementById('s0').open")
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[attr-defined]
    assert severe == []
