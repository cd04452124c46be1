"""The pages in a real browser: headless Chromium, as Debian packages it; axe-core, from npm, looks for barriers."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dev.pictures import DOCUMENT_PAGE, FAILED_CYCLE, KEY_PAGE, PAGES, ServedShop, open_browser, served_shop
from dev.pictures import open_page as open_in
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.integration

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
LIMIT_MS = 1000 * LIMIT_SECONDS


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedShop]:
    with served_shop(tmp_path_factory.mktemp("browser")) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as started:
        yield started


@pytest.fixture
def visit(browser: Browser, demo: ServedShop) -> Iterator[Callable[..., Page]]:
    """Open pages; whatever goes wrong in them, or is asked of another host, fails the test."""
    opened: list[Page] = []
    problems: list[str] = []

    def open_page(path: str = "/", **settings: Any) -> Page:
        page = open_in(browser, "about:blank", **settings)
        opened.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if is_trouble(said) else None)
        page.on("request", lambda sent: None if sent.url.startswith(demo.address) else problems.append(sent.url))
        page.goto(demo.address + path)
        return page

    yield open_page
    for page in opened:
        page.context.close()
    assert problems == []


def is_trouble(said: ConsoleMessage) -> bool:
    """Tell whether a browser complains of anything but a connection that a test has cut, or an address of nothing."""
    is_expected = "ERR_INTERNET_DISCONNECTED" in said.text or "status of 40" in said.text
    return said.type in ("error", "warning") and not is_expected


def is_wider_than_window(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_a_button_triggers_a_cycle_and_the_page_shows_it_run_and_complete(
    visit: Callable[..., Page], demo: ServedShop
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
    expect(toggle).to_have_text("Switch to light")
    toggle.click()
    assert ground(dark) > 600
    expect(toggle).to_have_text("Switch to dark")
    dark.goto(dark.url + "tables")
    assert ground(dark) > 600, "it is remembered"


def test_all_pages_fit_a_phone(visit: Callable[..., Page]) -> None:
    for path in PAGES.values():
        page = visit(path, viewport={"width": 375, "height": 760}, has_touch=True)
        assert not is_wider_than_window(page), path
        assert not page.evaluate(
            "[...document.querySelectorAll('button, nav a')].filter(each => each.offsetParent)"
            ".some(each => each.getBoundingClientRect().height < 36)"
        ), path


def test_from_the_chart_to_a_cycle_and_from_there_to_a_table(visit: Callable[..., Page], demo: ServedShop) -> None:
    demo.shop.go_on()
    page = visit()
    page.locator(".chart rect.is-failed").first.click()
    expect(page.locator("h1")).to_have_text(f"Cycle {FAILED_CYCLE} failed")
    expect(page.get_by_role("table", name="What each worker did")).to_contain_text("node-1")
    expect(page.locator("#timeline")).to_be_visible()
    expect(page.get_by_role("heading", name="What failed")).to_be_visible()
    page.locator(".timeline").get_by_role("link", name="shop.orders").first.click()
    expect(page.locator("h1")).to_have_text("shop.orders")
    expect(page.get_by_role("img", name="Rows after each of the last")).to_be_visible()
    expect(page.get_by_role("table", name="Buckets with their rows and files")).to_be_visible()
    expect(page.get_by_role("img", name="Bytes carried on by each of the last")).to_be_visible()
    expect(page.get_by_role("img", name="Age of the oldest delta in each of the last")).to_be_visible()
    expect(page.get_by_role("img", name="bucket of depth 0; the largest")).to_be_visible()
    # What is known of a table may be a few seconds old; the page shows it once it is known.
    expect(page.get_by_role("table", name="Deltas that no round has read")).to_be_visible(timeout=LIMIT_MS)


def test_a_key_is_typed_and_its_answer_has_an_address(visit: Callable[..., Page]) -> None:
    page = visit("/tables/shop.orders")
    page.get_by_role("link", name="Key", exact=True).click()
    page.get_by_label("order_id").fill("seven")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").filter(has_text="order_id cannot be 'seven': its type is int64.")).to_be_visible()
    page.get_by_label("order_id").fill("7")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Events of the key")).to_be_visible()
    assert page.url.endswith(KEY_PAGE)
    expect(page.locator("tr.winner")).to_have_count(1)


def test_a_document_is_found_among_others_and_its_timeline_is_shown(visit: Callable[..., Page]) -> None:
    page = visit("/tables/shop.reviews/rows")
    page.get_by_role("link", name="r7", exact=True).click()
    assert page.url.endswith(DOCUMENT_PAGE)
    expect(page.locator(".events > li").first).to_contain_text("version 1")
    page.locator(".events summary").last.click()
    expect(page.locator(".events pre").last).to_contain_text('"helpful"')


def test_lines_are_copied_by_a_button_and_without_scripts_there_is_none(visit: Callable[..., Page]) -> None:
    page = visit("/tables/shop.orders/schema", permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy the lines for Polars")
    button.click()
    expect(button).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert re.search(r"\.table\('shop\.orders'\)\.scan\(\)\.to_polars\(\)$", copied)
    plain = visit("/tables/shop.orders/schema", java_script_enabled=False)
    expect(plain.get_by_text("to_polars()")).to_be_visible()
    expect(plain.locator(".copy").first).to_be_hidden()


def test_a_table_that_is_wider_than_a_phone_says_that_it_scrolls(visit: Callable[..., Page]) -> None:
    page = visit("/tables/shop.orders/rows", viewport={"width": 375, "height": 760}, has_touch=True)
    rim = page.locator(".rim")
    expect(rim).to_have_class("rim has-more")
    page.evaluate("document.querySelector('.scroll').scrollLeft = 100000")
    expect(rim).to_have_class("rim")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Callable[..., Page], scheme: str) -> None:
    assert AXE.is_file(), f"{AXE} is not there; `make axe` installs it"
    found = []
    for name, path in PAGES.items():
        page = visit(path, color_scheme=scheme)
        page.evaluate(AXE.read_text())
        violations = page.evaluate("axe.run(document, { resultTypes: ['violations'] }).then((said) => said.violations)")
        found += [
            f"{name}: {each['id']}, {each['help']}: {node['html'][:200]}"
            for each in violations
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"][:3]
        ]
    assert found == []


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
        for path in PAGES.values():
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
