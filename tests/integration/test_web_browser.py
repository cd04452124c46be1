"""The pages in a real browser: headless Chromium, as Debian packages it.

With SILTSTONE_SCREENSHOTS=1, pictures of the pages are kept in docs/images.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from examples.demo_service import Shop
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from siltstone.cli.output import Output
from siltstone.cli.process import ServeOptions, Serving, run_service
from siltstone.lake import Lake
from siltstone.log.commit import forget_logs
from siltstone.rows.job import BucketResult, RoundJob
from siltstone.rows.merge import run_here
from siltstone.service import Database, controls, default_address, open_database, service_settings
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.integration

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LIMIT_MS = 1000 * LIMIT_SECONDS
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
)


class Gate:
    """An engine that waits at a bucket until it is let through."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()

    def __call__(self, job: RoundJob) -> Iterator[BucketResult]:
        for result in run_here(job):
            assert self.is_open.wait(LIMIT_SECONDS)
            yield result


class Announced(Output):
    """Tells the test when the service has started."""

    def __init__(self) -> None:
        super().__init__()
        self.is_started = threading.Event()
        self.address = ""

    def emit(self, result: object, text: object, *, one_line: bool = False) -> None:
        assert isinstance(result, Serving)
        self.address = (result.address or "").rstrip("/")
        self.is_started.set()


@dataclass
class Demo:
    """A shop that is served."""

    address: str
    shop: Shop
    gate: Gate
    database: Database
    root: Path

    def run_cycle(self) -> str | None:
        request = controls.trigger_cycle(self.database)
        return controls.wait_for_request(self.database, request.request_id, timeout_seconds=LIMIT_SECONDS).outcome


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    root = tmp_path_factory.mktemp("browser") / "lake"
    shop, gate, output, stopping = Shop(Lake(root)), Gate(), Announced(), threading.Event()
    shop.open()
    options = ServeOptions(
        str(root),
        port=0,
        node="node-1",
        settings=service_settings(interval=900, tick=0.1, retention=60),
        engine=gate,
    )
    thread = threading.Thread(target=run_service, args=(options, output, stopping))
    thread.start()
    assert output.is_started.wait(LIMIT_SECONDS)
    database = open_database(default_address(str(root)))
    made = Demo(output.address, shop, gate, database, root)
    fill(made)
    yield made
    gate.is_open.set()
    stopping.set()
    thread.join(LIMIT_SECONDS)
    database.close()
    forget_logs(str(root))


def fill(demo: Demo) -> None:
    """Run cycles, one of which finds a damaged table."""
    for number in range(12):
        for _ in range(1 + number * 7 % 4):
            demo.shop.go_on()
        damaged = next(demo.root.glob("tables/shop/customers/*/compacted/_/rounds/*"), None) if number == 9 else None
        if damaged is None:
            assert demo.run_cycle() == "COMPLETED"
            continue
        rounds = sorted(damaged.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        kept = rounds[-1].read_bytes()
        rounds[-1].write_bytes(b"damaged")
        assert demo.run_cycle() == "FAILED"
        rounds[-1].write_bytes(kept)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None, "chromium is not installed; `make browser` installs it"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, headless=True, args=[*FLAGS])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Browser, demo: Demo) -> Iterator[Callable[..., Page]]:
    """Open pages; whatever goes wrong in them, or is asked of another host, fails the test."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_page(path: str = "/", **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        contexts.append(context)
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if is_trouble(said) else None)
        page.on("request", lambda sent: None if sent.url.startswith(demo.address) else problems.append(sent.url))
        page.goto(demo.address + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def is_trouble(said: ConsoleMessage) -> bool:
    """Tell whether a browser complains of anything but a connection that a test has cut."""
    return said.type in ("error", "warning") and "ERR_INTERNET_DISCONNECTED" not in said.text


def picture(page: Page, name: str, root: Path, *, is_whole: bool = False) -> None:
    """Keep a picture, where that was asked for; the lake is shown as if it were in /data."""
    if os.environ.get("SILTSTONE_SCREENSHOTS"):
        page.evaluate(SHORT_ROOT, str(root))
        IMAGES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=IMAGES / f"{name}.png", full_page=is_whole)


SHORT_ROOT = """(root) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(root, "/data/lake");
}"""


def is_wider_than_window(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_pictures_for_the_manual(visit: Callable[..., Page], demo: Demo) -> None:
    pages: dict[str, tuple[str, dict[str, Any]]] = {
        "overview": ("/", {}),
        "overview-dark": ("/", {"color_scheme": "dark"}),
        "cycle": ("/cycles/10", {}),
        "tables": ("/tables", {}),
        "table": ("/tables/shop.orders", {}),
        "table-dark": ("/tables/shop.stock", {"color_scheme": "dark"}),
        "phone": ("/", {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}),
    }
    for name, (path, settings) in pages.items():
        page = visit(path, **settings)
        assert not is_wider_than_window(page)
        picture(page, name, demo.root, is_whole=name in ("cycle", "tables", "table"))


def test_a_button_triggers_a_cycle_and_the_page_shows_it_run_and_complete(
    visit: Callable[..., Page], demo: Demo
) -> None:
    demo.shop.go_on()
    page = visit()
    number = int(page.locator("h1").inner_text().split()[1])
    expect(page.locator("h1")).to_have_text(f"Cycle {number} completed")
    demo.gate.is_open.clear()
    page.get_by_role("button", name="Trigger a cycle").click()
    expect(page.locator("#notice")).to_contain_text("A cycle was asked for")
    expect(page.locator("h1")).to_have_text(f"Cycle {number + 1} is running", timeout=LIMIT_MS)
    expect(page.locator("#live-partitions .pill.is-started")).to_have_count(1, timeout=LIMIT_MS)
    expect(page.locator("#live-partitions")).to_contain_text("node-1")
    picture(page, "running", demo.root)
    demo.gate.is_open.set()
    expect(page.locator("h1")).to_have_text(f"Cycle {number + 1} completed", timeout=LIMIT_MS)
    expect(page.locator("#announce")).to_have_text(f"Cycle {number + 1} completed")
    expect(page.locator("#live-history tbody tr").first).to_contain_text(str(number + 1))


def test_controls_are_used_with_the_keyboard_alone(visit: Callable[..., Page]) -> None:
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if reached[-1] == "Freeze for":
            break
    assert reached == ["Trigger a cycle", "Trigger and trim", "Freeze for"]
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Cycles are frozen")
    page.get_by_role("button", name="Unfreeze").focus()
    page.keyboard.press("Space")
    expect(page.locator("h1")).not_to_have_text("Cycles are frozen")
    page.get_by_text("Disable…").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Cycles are disabled")
    page.get_by_role("button", name="Enable").click()
    expect(page.locator("h1")).not_to_have_text("Cycles are disabled")


def test_light_and_dark_follow_the_system_until_somebody_chooses(visit: Callable[..., Page]) -> None:
    def ground(page: Page) -> int:
        colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))

    light, dark = visit(), visit(color_scheme="dark")
    assert ground(light) > 600 > 150 > ground(dark)
    toggle = dark.locator("#theme")
    expect(toggle).to_have_text("Light theme")
    toggle.click()
    assert ground(dark) > 600
    dark.goto(dark.url + "tables")
    assert ground(dark) > 600, "it is remembered"


def test_all_pages_fit_a_phone(visit: Callable[..., Page]) -> None:
    for path in ("/", "/cycles/10", "/tables", "/tables/shop.stock", "/api", "/login"):
        page = visit(path, viewport={"width": 375, "height": 760}, has_touch=True)
        assert not is_wider_than_window(page), path
        assert not page.evaluate(
            "[...document.querySelectorAll('button, nav a')].filter(each => each.offsetParent)"
            ".some(each => each.getBoundingClientRect().height < 36)"
        ), path


def test_from_the_chart_to_a_cycle_and_from_there_to_a_table(visit: Callable[..., Page]) -> None:
    page = visit()
    page.locator(".chart rect.is-failed").first.click()
    expect(page.locator("h1")).to_have_text("Cycle 10 failed")
    expect(page.locator("#timeline")).to_be_visible()
    expect(page.get_by_role("heading", name="What failed")).to_be_visible()
    page.locator(".timeline").get_by_role("link", name="shop.orders").first.click()
    expect(page.locator("h1")).to_have_text("shop.orders")
    expect(page.get_by_role("img", name="Rows after each of the last")).to_be_visible()
    expect(page.get_by_role("table", name="Buckets with their rows and files")).to_be_visible()


def test_a_page_says_that_it_may_be_old_and_recovers(visit: Callable[..., Page]) -> None:
    page = visit()
    expect(page.locator("#lost")).to_be_hidden()
    page.context.set_offline(True)
    expect(page.locator("#lost")).to_be_visible(timeout=LIMIT_MS)
    page.context.set_offline(False)
    expect(page.locator("#lost")).to_be_hidden(timeout=LIMIT_MS)


def test_without_scripts_the_pages_still_work(visit: Callable[..., Page]) -> None:
    page = visit(java_script_enabled=False)
    expect(page.locator("#theme")).to_be_hidden()
    page.get_by_role("button", name="Freeze for").click()
    expect(page.locator("h1")).to_have_text("Cycles are frozen")
    page.get_by_role("button", name="Unfreeze").click()
    expect(page.locator("#notice")).to_have_text("Cycles may begin again.")


def test_contrast_is_enough_to_read(visit: Callable[..., Page]) -> None:
    for scheme in ("light", "dark"):
        for path in ("/", "/cycles/10", "/tables"):
            weak = visit(path, color_scheme=scheme).evaluate(WEAK_CONTRASTS)
            assert weak == [], f"{path}, {scheme}"


# For each text: the contrast of its colour with the nearest ground below it, by the formula of the WCAG.
WEAK_CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter((each) => each.offsetParent &&
    !each.closest("svg, .unseen, .skip") && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return texts.map((each) => {
    const [a, b] = [light(parse(getComputedStyle(each).color)), light(ground(each))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), each.className, each.textContent.trim().slice(0, 30)];
  }).filter(([ratio]) => ratio < 4.5);
}"""
