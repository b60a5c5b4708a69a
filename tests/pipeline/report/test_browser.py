"""The report's page in a real Chromium, at the width of a desk and of a phone, in both themes."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.report.calibration import calibrated_devices
from pipeline.report.compare import sections
from pipeline.report.page import page_html
from tests.made.calibration_records import calibration
from tests.made.constructed_records import of_models, on, sweep, trained
from tests.made.patience import patience
from tests.made.report_records import A100, CELL, passed, record

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

pytestmark = pytest.mark.browser

DESK, PHONE = (1280, 900), (390, 844)
LONGEST_WAIT_S = patience(15)
JAX = {"light": "rgb(0, 114, 178)", "dark": "rgb(86, 180, 233)"}
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
CPU_NAME = "Intel(R) Xeon(R) CPU           E5540  @ 2.53GHz"
"""Blanks as the CPU itself has them."""
CPU = {"cpu": {"model": CPU_NAME}, "scheduler": "local", "framework": {"platform": "cpu"}}
DRAWN = "return [...document.querySelectorAll('[data-chart]')].filter((one) => one.dataset.drawn === 'yes').length"
ALL_CHARTS = "return document.querySelectorAll('[data-chart]').length"
CUT = """return [...document.querySelectorAll('[data-chart] svg text')].filter((one) => {
  const text = one.getBoundingClientRect(), figure = one.closest('svg').getBoundingClientRect();
  return text.width > 0 && (text.left < figure.left - 1 || text.right > figure.right + 1);
}).map((one) => one.textContent)"""
"""Texts that reach out of their figure, where nobody sees them."""
VISIBLE = "return [...document.querySelectorAll('details.place')].filter((one) => !one.hidden).map((one) => one.id)"


def _executable(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    if os.environ.get("REQUIRE_BROWSER") == "1":
        pytest.fail(f"REQUIRE_BROWSER=1, and none of {', '.join(names)} is there")
    pytest.skip(f"none of {', '.join(names)} is there (Debian: chromium and chromium-driver)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["WebDriver"]:
    chromium, driver = _executable("chromium", "chromium-browser", "google-chrome"), _executable("chromedriver")
    webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        "--host-resolver-rules=MAP * ~NOTFOUND",  # no network: the page must do without
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """H200 with one and two GPUs, A100 with another benchmark, a quick run, and a quick run of many models at once."""
    found = [
        *trained(),
        *trained(cell=on(2)),
        *trained(environment=A100, cell=CELL.model_copy(update={"benchmark": "cifar10"})),
        *trained(environment=CPU, quick=True, replicates=1),
        record("jax", "scan.jit", outcome="failed", reason="a node died", result=None),
        *sweep(quick=True)[1:],
        of_models(
            "torch", "loop.eager", 1, 1000, details={"phases": {"forward": [0.01], "backward": [0.03]}}, quick=True
        ),
    ]
    calibrated = calibrated_devices([calibration(3)], ["CPU: A CPU", "NVIDIA A100", "NVIDIA H200"])
    path = tmp_path_factory.mktemp("page") / "report.html"
    html = page_html(sections(found, passed), found, (), Path("results"), calibrated)
    path.write_text(html, encoding="utf-8")
    return path


def emulate(browser: "WebDriver", size: tuple[int, int], theme: str) -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)


def wait_for(browser: "WebDriver", condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, LONGEST_WAIT_S).until(lambda one: one.execute_script(f"return {condition}"), condition)


def colour(browser: "WebDriver", selector: str, name: str) -> str:
    script = f"return getComputedStyle(document.querySelector({selector!r})).getPropertyValue({name!r})"
    return str(browser.execute_script(script))


def test_page_at_a_desk_and_on_a_phone(browser: "WebDriver", page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import Select

    emulate(browser, DESK, "light")
    browser.get(page.as_uri())
    # The first screen answers.
    seen = browser.execute_script(
        "return [...document.querySelectorAll('h1, .answer')]"
        ".filter((one) => one.getBoundingClientRect().bottom < innerHeight).map((one) => one.innerText)"
    )
    assert seen[0].startswith("On NVIDIA A100")
    assert "JAX, 1.50 × (1.50 to 1.50)" in next(one for one in seen[1:] if one.startswith("Train a small CNN"))
    # A link opens its section, and filters hide.
    first = browser.find_element("css selector", ".answer .work a")
    target = str(first.get_attribute("href")).rpartition("#")[2]
    browser.execute_script("arguments[0].click()", first)
    wait_for(browser, f"document.getElementById('{target}').open")
    assert len(browser.execute_script(VISIBLE)) == 5
    device, benchmark, use_case = (
        Select(browser.find_element("id", f"filter-{name}")) for name in ("device", "benchmark", "use-case")
    )
    device.select_by_index(1)
    assert device.first_selected_option.get_attribute("value") == f"CPU: {CPU_NAME}"
    assert len(browser.execute_script(VISIBLE)) == 1
    device.select_by_visible_text("NVIDIA H200")
    assert browser.find_element("id", "shown").text == "3 of 5 sections are shown."
    benchmark.select_by_visible_text("cifar10")
    assert browser.execute_script(VISIBLE) == []
    device.select_by_index(0)
    benchmark.select_by_index(0)
    use_case.select_by_value("2")
    assert len(browser.execute_script(VISIBLE)) == 1
    use_case.select_by_index(0)
    # Every chart is drawn once it comes into view, and no text of it is cut.
    browser.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for position in range(browser.execute_script(ALL_CHARTS)):
        element = f"document.querySelectorAll('[data-chart]')[{position}]"
        browser.execute_script(f"{element}.scrollIntoView()")
        wait_for(browser, f"['yes', 'failed'].includes({element}.dataset.drawn)")
    assert browser.execute_script(DRAWN) == browser.execute_script(ALL_CHARTS) > 10
    assert browser.execute_script(CUT) == []
    # A point tells its numbers.
    chart = "[data-chart=throughput_over_batch_size]"
    browser.execute_script(f"document.querySelector('{chart}').scrollIntoView({{block: 'center'}})")
    points = browser.find_elements("css selector", f"{chart} .role-mark path")
    ActionChains(browser).move_to_element(points[-1]).perform()
    wait_for(browser, "document.querySelector('#vg-tooltip-element.visible') !== null")
    assert "samples / s" in browser.find_element("id", "vg-tooltip-element").text
    # Charts follow the toggle of the theme, which begins as the device's own.
    toggle = browser.find_element("id", "theme")
    for theme in ("light", "dark", "light"):
        assert colour(browser, "body", "background-color") == PAPER[theme]
        assert colour(browser, ".answer.of-jax .axis u", "background-color") == JAX[theme]
        assert colour(browser, f"{chart} .mark-symbol path", "fill") == JAX[theme]
        browser.execute_script("arguments[0].click()", toggle)
    # Only tables scroll sideways.
    for size in (DESK, PHONE):
        emulate(browser, size, "dark")
        root = "document.documentElement"
        assert browser.execute_script(f"return {root}.scrollWidth - {root}.clientWidth") == 0
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
