"""The report's page in a real Chromium, at the width of a desk and of a phone, in both themes."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.report.calibration import calibrated_devices
from pipeline.report.charts import PRINT, specification
from pipeline.report.compare import sections
from pipeline.report.drawing import svg_of
from pipeline.report.page import page_html
from pipeline.report.scaling_axis import scaling_chart
from tests.made.calibration_records import calibration
from tests.made.patience import patience
from tests.made.report_records import A100, CELL, passed, record
from tests.pipeline.report.test_files import TWO, records
from tests.pipeline.report.test_tables import of, sweep

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
        *records(),
        *records(cell=TWO),
        *records(environment=A100, cell=CELL.model_copy(update={"benchmark": "cifar10"})),
        *records(environment=CPU, quick=True, replicates=1),
        record("jax", "scan.jit", outcome="failed", reason="a node died", result=None),
        *sweep(quick=True)[1:],
        of("torch", "loop.eager", 1, 1000, details={"phases": {"forward": [0.01], "backward": [0.03]}}, quick=True),
    ]
    calibrated = calibrated_devices([calibration(3)], ["CPU: A CPU", "NVIDIA A100", "NVIDIA H200"])
    path = tmp_path_factory.mktemp("page") / "report.html"
    html = page_html(sections(found, passed), found, (), Path("results"), calibrated)
    path.write_text(html, encoding="utf-8")
    return path


def show(browser: "WebDriver", page: Path, size: tuple[int, int], theme: str) -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get(page.as_uri())


def wait_for(browser: "WebDriver", condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, LONGEST_WAIT_S).until(lambda one: one.execute_script(f"return {condition}"), condition)


def scroll_through(browser: "WebDriver") -> None:
    """Every chart comes into view once."""
    for position in range(browser.execute_script(ALL_CHARTS)):
        element = f"document.querySelectorAll('[data-chart]')[{position}]"
        browser.execute_script(f"{element}.scrollIntoView()")
        wait_for(browser, f"['yes', 'failed'].includes({element}.dataset.drawn)")


def unfold(browser: "WebDriver") -> None:
    browser.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def colour(browser: "WebDriver", selector: str, name: str) -> str:
    script = f"return getComputedStyle(document.querySelector({selector!r})).getPropertyValue({name!r})"
    return str(browser.execute_script(script))


@pytest.mark.parametrize(("size", "theme"), [(DESK, "light"), (PHONE, "dark")], ids=["desk", "phone"])
def test_the_first_screen_answers_every_chart_is_drawn_and_only_tables_scroll_sideways(
    browser: "WebDriver", page: Path, size: tuple[int, int], theme: str
) -> None:
    show(browser, page, size, theme)
    seen = browser.execute_script(
        "return [...document.querySelectorAll('h1, .answer')]"
        ".filter((one) => one.getBoundingClientRect().bottom < innerHeight).map((one) => one.innerText)"
    )
    assert seen[0].startswith("On NVIDIA A100")
    first = next(one for one in seen[1:] if one.startswith("Train a small CNN"))
    assert "JAX, 1.50 × (1.50 to 1.50)" in first and "JAX 3,000 images/s, PyTorch 2,000 images/s" in first
    unfold(browser)
    scroll_through(browser)
    assert browser.execute_script(DRAWN) == browser.execute_script(ALL_CHARTS) > 10
    # Of use case 6: five modes of PyTorch at three numbers of models, JAX's at two and three; at each the best of both
    # once more.
    point = '[data-chart="throughput_over_models"] [aria-roledescription="point"]'
    assert len(browser.find_elements("css selector", point)) == 20 + 6
    assert browser.execute_script(CUT) == []
    root = "document.documentElement"
    assert browser.execute_script(f"return {root}.scrollWidth - {root}.clientWidth") == 0
    assert colour(browser, "body", "background-color") == PAPER[theme]
    assert colour(browser, ".answer.of-jax .axis u", "background-color") == JAX[theme]
    assert colour(browser, '[data-chart="throughput_over_batch_size"] .mark-symbol path', "fill") == JAX[theme]
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


def test_a_link_opens_its_section_and_filters_hide(browser: "WebDriver", page: Path) -> None:
    from selenium.webdriver.support.ui import Select

    show(browser, page, DESK, "light")
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


def test_a_point_tells_its_numbers_and_charts_follow_the_toggle_of_the_theme(browser: "WebDriver", page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    show(browser, page, DESK, "light")
    unfold(browser)
    chart = "document.querySelector('[data-chart=throughput_over_batch_size]')"
    browser.execute_script(f"{chart}.scrollIntoView({{block: 'center'}})")
    wait_for(browser, f"{chart}.dataset.drawn === 'yes'")
    points = browser.find_elements("css selector", '[data-chart="throughput_over_batch_size"] .role-mark path')
    ActionChains(browser).move_to_element(points[-1]).perform()
    wait_for(browser, "document.querySelector('#vg-tooltip-element.visible') !== null")
    told = browser.find_element("id", "vg-tooltip-element").text
    assert "execution mode" in told and "samples / s" in told and "flags" in told
    toggle = browser.find_element("id", "theme")
    for theme in ("dark", "light"):
        browser.execute_script("arguments[0].click()", toggle)
        assert colour(browser, "body", "background-color") == PAPER[theme]
        assert colour(browser, '[data-chart="throughput_over_batch_size"] .mark-symbol path', "fill") == JAX[theme]
        assert toggle.get_attribute("aria-pressed") == str(theme == "dark").lower()


def test_no_text_of_a_figure_s_file_is_cut_at_its_edge(browser: "WebDriver", tmp_path: Path) -> None:
    several = [one for cell in (CELL, TWO) for one in records(cell=cell, environment=CPU)]
    drawn = svg_of(specification(scaling_chart(sections(several, passed)), PRINT, title="JAX and PyTorch"))
    (tmp_path / "figure.html").write_text(f"<div data-chart>{drawn}</div>")
    show(browser, tmp_path / "figure.html", DESK, "light")
    assert browser.execute_script("return document.querySelectorAll('svg text').length") > 20
    assert browser.execute_script(CUT) == []
