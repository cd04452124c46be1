"""The catalog of tables that are published as Iceberg, asked by pyiceberg and by hand."""

from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError, UnauthorizedError

from siltstone.publish.iceberg import publish_iceberg
from siltstone.web.app import WebServer
from siltstone.web.site import Access, LakeReader, Site
from tests.unit.web.serving import Service

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def server(service: Service) -> Iterator[WebServer]:
    lake = service.tables[0].lake
    orders = lake.create_table("published.orders", schema={"id": "int64", "note": "string"}, primary_keys=["id"])
    orders.write(pa.table({"id": [1, 2, 3], "note": ["a", "b", "c"]}))
    orders.compact(engine="local")
    orders.write(pa.table({"id": [2], "note": ["B"]}))
    orders.compact(engine="local")
    lake.create_table("published.unpublished", schema={"id": "int64"})
    publish_iceberg("published.orders", root=lake.root)
    site = Site(service.database, LakeReader(lake), access=Access(TOKEN), is_private=True)
    server = WebServer(site, host="127.0.0.1", port=0)
    server.start()
    yield server
    server.stop()


def catalog(server: WebServer, token: str = TOKEN) -> RestCatalog:
    return RestCatalog("siltstone", uri=f"{server.address}iceberg", token=token)


def test_pyiceberg_finds_and_reads_a_published_table_by_its_name(server: WebServer) -> None:
    found = catalog(server)
    assert ("published",) in found.list_namespaces()
    assert found.list_tables("published") == [("published", "orders")]
    assert found.table_exists("published.orders")
    rows = found.load_table("published.orders").scan().to_arrow().sort_by("id")
    assert rows.to_pydict() == {"id": [1, 2, 3], "note": ["a", "B", "c"]}


def test_what_is_not_published_is_not_there(server: WebServer) -> None:
    found = catalog(server)
    for name in ("published.unpublished", "published.nobody", "nowhere.orders", "published.a'b"):
        with pytest.raises(NoSuchTableError):
            found.load_table(name)
        assert not found.table_exists(name)


def test_a_catalog_is_only_for_those_who_have_the_token(server: WebServer) -> None:
    with pytest.raises(UnauthorizedError):
        catalog(server, "another-token-of-that-length")


def test_nothing_can_be_written_through_the_catalog(server: WebServer) -> None:
    with httpx.Client(base_url=f"{server.address}iceberg/v1", headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        endpoints = client.get("/config").json()["endpoints"]
        assert {each.split()[0] for each in endpoints} == {"GET", "HEAD"}
        for method, path in (
            ("POST", "/namespaces"),
            ("DELETE", "/namespaces/published"),
            ("POST", "/namespaces/published/tables"),
            ("POST", "/namespaces/published/tables/orders"),
            ("DELETE", "/namespaces/published/tables/orders"),
            ("POST", "/transactions/commit"),
        ):
            answer = client.request(method, path, json={})
            assert answer.status_code in (404, 405), (method, path)
            assert answer.json()["error"]["type"]
