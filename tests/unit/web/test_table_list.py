"""Which tables are listed, and in which order."""

import pytest

from siltstone.table.report import TableReport
from siltstone.web.table_list import PAGE_ROWS, choose_tables
from tests.unit.web.serving import Service

TABLES = [
    TableReport("shop.orders", rows=5, bytes=10, oldest_at=50),
    TableReport("shop.Items", rows=9, bytes=1, backlog_bytes=7, oldest_at=20),
    TableReport("web.visits", problem="cannot be read"),
    TableReport("web.clicks", rows=7),
]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, ["web.clicks", "web.visits", "shop.Items", "shop.orders"]),
        ({"order": "name"}, ["shop.Items", "shop.orders", "web.clicks", "web.visits"]),
        ({"order": "rows"}, ["shop.Items", "web.clicks", "shop.orders", "web.visits"]),
        ({"order": "lag"}, ["shop.Items", "shop.orders", "web.clicks", "web.visits"]),
        ({"text": " ITEM "}, ["shop.Items"]),
        ({"text": "nothing"}, []),
        ({"order": "<script>"}, ["web.clicks", "web.visits", "shop.Items", "shop.orders"]),
    ],
)
def test_tables_are_found_and_sorted(asked: dict[str, str], names: list[str]) -> None:
    found = choose_tables(TABLES, {"web.clicks"}, **asked)  # type: ignore[arg-type]
    assert [table.name for table in found.tables] == names
    assert found.total == 4


@pytest.mark.parametrize(
    ("page", "first", "count"), [(1, 0, PAGE_ROWS), (3, 200, 50), (99, 200, 50), (-1, 0, PAGE_ROWS)]
)
def test_a_long_list_has_pages(page: int, first: int, count: int) -> None:
    tables = [TableReport(f"t.{number:03}") for number in range(250)]
    found = choose_tables(tables, (), page=page)
    assert (found.tables[0].name, len(found.tables), found.pages) == (f"t.{first:03}", count, 3)


def test_the_page_searches_sorts_and_keeps_what_was_asked_for(service: Service) -> None:
    browser = service.browser()
    page = browser.page('/tables?q=ord"<b>&order=rows')
    assert "No table has that in its name." in page
    assert "<b>" not in page
    page = browser.page("/tables?q=ord&order=rows")
    assert "shop.orders" in page
    assert "shop.items" not in page
    assert "/tables?q=ord&order=size&page=1" in page.replace("&amp;", "&")
    assert browser.get("/tables?page=x").status_code == 404
