"""Pictures of the service's pages for the manual, of a lake with the same content each time: `python -m dev.pictures`.

`--every FOLDER` takes each page in light, dark and on a phone instead, to look at.
"""

import contextlib
import io
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from examples.demo_service import Shop
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from siltstone.cli.output import Output
from siltstone.cli.process import ServeOptions, Serving, run_service
from siltstone.documents.merge import run_here
from siltstone.lake import Lake
from siltstone.log.commit import forget_logs
from siltstone.rows.job import BucketResult, RoundJob
from siltstone.service import Database, controls, default_address, open_database, service_settings

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LIMIT_SECONDS = 120
CYCLES = 12
# The cycle that finds a damaged table.
FAILED_CYCLE = 10
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
# Wide enough for all columns; the height of those that are cut off.
WINDOW = {"width": 1200, "height": 900}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
KEY_PAGE = "/tables/shop.orders/keys?key.order_id=7"
DOCUMENT_PAGE = "/tables/shop.reviews/documents?key=r7"
# Every page that there is, by what its picture is called.
PAGES = {
    "overview": "/",
    "cycle": f"/cycles/{FAILED_CYCLE}",
    "tables": "/tables",
    "table": "/tables/shop.orders",
    "partitions": "/tables/shop.stock",
    "schema": "/tables/shop.orders/schema",
    "rows": "/tables/shop.orders/rows",
    "key": KEY_PAGE,
    "key-form": "/tables/shop.stock/keys?key.city=Oslo&key.item=many",
    "documents": "/tables/shop.reviews/rows",
    "document": DOCUMENT_PAGE,
    "api": "/api",
    "login": "/login",
    "missing": "/tables/shop.nothing",
}
# The pictures of the manual: the page, how the browser is set, and whether all of the page is taken.
MANUAL: Mapping[str, tuple[str, dict[str, Any], bool]] = {
    "overview": ("overview", {}, False),
    "overview-dark": ("overview", {"color_scheme": "dark"}, False),
    "cycle": ("cycle", {}, True),
    "tables": ("tables", {}, True),
    "table": ("table", {}, True),
    "table-dark": ("partitions", {"color_scheme": "dark"}, False),
    "key": ("key", {}, True),
    "document": ("document", {}, True),
    "schema": ("schema", {}, True),
    "phone": ("overview", PHONE, False),
}
SHORT_ROOT = """(root) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(root, "/data/lake");
}"""


class Gate:
    """An engine that waits at a bucket until it is let through."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()

    def __call__(self, job: RoundJob) -> Iterator[BucketResult]:
        """Merge, bucket by bucket."""
        for result in run_here(job):
            if not self.is_open.wait(LIMIT_SECONDS):
                raise TimeoutError("nobody opened the gate")
            yield result


class Announced(Output):
    """Says when the service has started, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.is_started = threading.Event()
        self.address = ""

    def emit(self, result: object, text: object, *, one_line: bool = False) -> None:
        """Take the address."""
        if isinstance(result, Serving):
            self.address = (result.address or "").rstrip("/")
            self.is_started.set()


@dataclass
class ServedShop:
    """A shop with some history that is served."""

    address: str
    shop: Shop
    gate: Gate
    database: Database
    root: Path

    def run_cycle(self) -> str | None:
        """Ask for a cycle, and return how it ended."""
        request = controls.trigger_cycle(self.database)
        return controls.wait_for_request(self.database, request.request_id, timeout_seconds=LIMIT_SECONDS).outcome


@contextlib.contextmanager
def served_shop(folder: Path) -> Iterator[ServedShop]:
    """Serve a shop, with cycles that have run, one of which failed, and deltas that wait."""
    root = folder / "lake"
    shop, gate, output, stopping = Shop(Lake(root)), Gate(), Announced(), threading.Event()
    shop.open()
    shop.lake.create_document_table(
        "shop.reviews", full_consistency_delay=1, keep_history=True, description="What customers say of items"
    )
    settings = service_settings(interval=900, tick=0.1, retention=3600)
    options = ServeOptions(str(root), port=0, node="node-1", settings=settings, engine=gate)
    serving = threading.Thread(target=run_service, args=(options, output, stopping))
    serving.start()
    try:
        if not output.is_started.wait(LIMIT_SECONDS):
            raise TimeoutError("the service did not start")
        database = open_database(default_address(str(root)))
        try:
            served = ServedShop(output.address, shop, gate, database, root)
            run_history(served)
            yield served
        finally:
            database.close()
    finally:
        gate.is_open.set()
        stopping.set()
        serving.join(LIMIT_SECONDS)
        forget_logs(str(root))


def run_history(served: ServedShop) -> None:
    """Run cycles over what the shop writes; one of them finds a damaged table."""
    for number in range(1, CYCLES + 1):
        for _ in range(1 + number * 7 % 4):
            served.shop.go_on()
        review(served.shop.lake, number)
        rounds = served.root.glob("tables/shop/customers/*/compacted/_/rounds/*")
        newest = max(rounds, key=lambda path: path.stat().st_mtime_ns) if number == FAILED_CYCLE else None
        kept = None if newest is None else newest.read_bytes()
        if newest is not None:
            newest.write_bytes(b"damaged")
        outcome = served.run_cycle()
        if newest is not None and kept is not None:
            newest.write_bytes(kept)
        if outcome != ("COMPLETED" if newest is None else "FAILED"):
            raise AssertionError(f"cycle {number} ended {outcome}")
    served.shop.go_on()


def review(lake: Lake, number: int) -> None:
    """Write a few reviews, and change what the seventh one says."""
    reviews = lake.document_table("shop.reviews")
    for each in range(number * 3, number * 3 + 3):
        reviews.update(f"r{each}", {"item": each % 5, "stars": 1 + each % 5, "text": f"Review {each}"})
    if number % 3 == 0:
        reviews.update("r7", f'{{..,"stars":{1 + number % 5},"helpful":{number}}}', tags=["edited"])


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a headless Chromium."""
    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("chromium is not installed; `make browser` installs it")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, headless=True, args=[*FLAGS])
        yield started
        started.close()


def open_page(browser: Browser, address: str, **settings: Any) -> Page:
    """Open an address in a context of its own."""
    context = browser.new_context(**{"viewport": WINDOW, **settings})
    context.set_default_timeout(1000 * LIMIT_SECONDS)
    page = context.new_page()
    page.goto(address)
    return page


def take(page: Page, root: Path, path: Path, *, is_whole: bool) -> None:
    """Keep a picture of a page, with few colours; the lake is shown as if it were in /data."""
    page.evaluate(SHORT_ROOT, str(root))
    # Few colours make bands of shadows.
    page.evaluate("document.documentElement.style.setProperty('--shadow', 'none')")
    picture = Image.open(io.BytesIO(page.screenshot(full_page=is_whole))).convert("RGB")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


def take_manual(browser: Browser, served: ServedShop) -> None:
    """Take the pictures of the manual."""
    for name, (page_name, settings, is_whole) in MANUAL.items():
        page = open_page(browser, served.address + PAGES[page_name], **settings)
        take(page, served.root, IMAGES / f"{name}.png", is_whole=is_whole)
        page.context.close()
    served.gate.is_open.clear()
    request = controls.trigger_cycle(served.database)
    page = open_page(browser, served.address)
    page.locator("#live-partitions .pill.is-started").wait_for()
    take(page, served.root, IMAGES / "running.png", is_whole=False)
    served.gate.is_open.set()
    controls.wait_for_request(served.database, request.request_id, timeout_seconds=LIMIT_SECONDS)
    page.context.close()


def take_every(browser: Browser, address: str, root: Path, folder: Path, pages: Mapping[str, str] = PAGES) -> None:
    """Take whole pages in light, in dark and on a phone."""
    looks: dict[str, dict[str, Any]] = {"light": {}, "dark": {"color_scheme": "dark"}, "phone": PHONE}
    for look, settings in looks.items():
        for name, path in pages.items():
            page = open_page(browser, address + path, **settings)
            take(page, root, folder / f"{name}-{look}.png", is_whole=True)
            page.context.close()


def main(
    every: Annotated[Path | None, typer.Option("--every", help="Take each page in each look into this folder.")] = None,
) -> None:
    """Prepare a lake, serve it, and take pictures of its pages."""
    folder = Path(tempfile.mkdtemp(prefix="siltstone-pictures-"))
    try:
        with served_shop(folder) as served, open_browser() as browser:
            if every is not None:
                take_every(browser, served.address, served.root, every)
            else:
                take_manual(browser, served)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for path in sorted((every or IMAGES).glob("*.png")):
        print(f"{path.name:<24} {path.stat().st_size:>9,} bytes")


if __name__ == "__main__":
    typer.run(main)
