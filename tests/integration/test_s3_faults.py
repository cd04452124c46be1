"""Between us and S3, requests are throttled, answers are lost or late: every write is there once, and none is half there."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import AccessDeniedError, InvalidInputError, StorageError
from siltstone.objects import open_objects
from siltstone.objects.s3 import TIMEOUT_VARIABLE
from siltstone.objects.store import PART_BYTES
from siltstone.rounds.request import Request as CompactionRequest
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition, source_partitions
from siltstone.testing.oracle import oracle_of, same_rows
from tests.integration.s3_proxy import Fault, Proxy, Request, proxy_to

pytestmark = pytest.mark.integration

SCHEMA = {"id": "int64", "v": "string"}


@pytest.fixture
def proxy(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy_to(s3_endpoint) as started:
        monkeypatch.setenv("AWS_ENDPOINT_URL", started.url)
        yield started


@pytest.fixture
def table(proxy: Proxy, new_root: Callable[[str], str]) -> siltstone.Table:
    return siltstone.open(new_root("s3")).create_table("shop.orders", schema=SCHEMA, primary_keys=["id"])


def is_any(request: Request) -> bool:
    return True


def is_batch(request: Request) -> bool:
    """A put of a log batch: the one request that commits."""
    folder, _, name = request.key.rpartition("/")
    return request.method == "PUT" and folder.endswith("/log") and name.isdecimal()


def write_and_compact(table: siltstone.Table) -> None:
    """Write three deltas, compact after two of them and at the end, and compare with what the deltas mean."""
    table.write(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
    table.write(pa.table({"id": [2, 4], "v": ["B", "d"]}))
    compact(table)
    table.write(pa.table({"id": [3]}), type="delete")
    compact(table)
    assert [delta.stream_position for delta in table.deltas()] == [1, 2, 3]
    same_rows(table.to_arrow(), oracle_of(table).rows())
    assert [row["v"] for row in table.to_arrow().sort_by("id").to_pylist()] == ["a", "B", "d"]
    assert table.fsck(deep=True) == []
    table.vacuum(orphan_grace_ms=0)
    assert table.fsck(deep=True) == []


def compact(table: siltstone.Table) -> None:
    root = table.lake.root
    (source,) = source_partitions(table.name, root=root)
    run_session(CompactionRequest(source, compacted_partition(source), ("id",), root), run_here)


@pytest.mark.parametrize("fault", ["throttle", "fail"])
def test_requests_that_are_throttled_or_fail_are_tried_again(proxy: Proxy, table: siltstone.Table, fault: str) -> None:
    rule = proxy.add("throttle" if fault == "throttle" else "fail", is_any)
    write_and_compact(table)
    assert len(rule.hits) > 20


def test_a_commit_whose_answer_is_lost_happens_once(proxy: Proxy, table: siltstone.Table) -> None:
    rule = proxy.add("lose", is_batch)
    write_and_compact(table)
    assert len(rule.hits) >= 5


def test_lost_answers_to_whatever_else_do_no_harm(proxy: Proxy, table: siltstone.Table) -> None:
    rule = proxy.add("lose", lambda request: not is_batch(request))
    write_and_compact(table)
    assert len(rule.hits) > 20


def test_a_commit_whose_answer_comes_too_late_happens_once(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, new_root: Callable[[str], str]
) -> None:
    monkeypatch.setenv(TIMEOUT_VARIABLE, "1")
    table = siltstone.open(new_root("s3")).create_table("shop.orders", schema=SCHEMA, primary_keys=["id"])
    rule = proxy.add("hold", lambda request: is_batch(request) and "/tables/" in request.key and not rule_hits(proxy))
    assert table.write(pa.table({"id": [1], "v": ["a"]})) == 1
    assert len(rule.hits) == 1
    assert [delta.stream_position for delta in table.deltas()] == [1]


def rule_hits(proxy: Proxy) -> int:
    return sum(len(rule.hits) for rule in proxy.rules)


def test_a_conflict_with_a_request_under_way_is_not_yet_a_loss(proxy: Proxy, table: siltstone.Table) -> None:
    rule = proxy.add("conflict", is_batch, times=2)
    write_and_compact(table)
    assert len(rule.hits) >= 10


def test_throttling_that_does_not_end_is_an_error_that_names_the_object(
    proxy: Proxy, new_root: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    root = new_root("s3")
    rule = proxy.add("throttle", lambda request: request.key.endswith(".parquet"), times=None)
    other = siltstone.open(root).create_table("shop.orders", schema=SCHEMA, primary_keys=["id"])
    with pytest.raises(StorageError, match=rf"{root}/tables/.*parquet.*SlowDown"):
        other.write(pa.table({"id": [1], "v": ["a"]}))
    assert len(rule.hits) == 2
    assert other.deltas() == []


def test_large_files_go_up_in_parts_and_a_part_that_fails_goes_up_again(
    proxy: Proxy, new_root: Callable[[str], str]
) -> None:
    objects = open_objects(new_root("s3"))
    rule = proxy.add("fail", lambda request: "partNumber=2" in request.path)
    piece = bytes(range(256)) * 4096
    with objects.open_writer("large") as writer:
        for _ in range(3 * PART_BYTES // len(piece)):
            writer.write(piece)
    parts = [request for request in proxy.requests if "partNumber=" in request.path]
    assert max(len(part.body) for part in parts) <= PART_BYTES
    assert len({part.path for part in parts}) == 3
    assert len(rule.hits) == 1
    assert b"".join(objects.stream("large")) == piece * (3 * PART_BYTES // len(piece))


def test_a_small_parquet_file_is_opened_and_read_by_one_request(proxy: Proxy, table: siltstone.Table) -> None:
    table.write(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    compact(table)
    proxy.requests.clear()
    assert table.to_arrow().num_rows == 2
    data = [request for request in proxy.requests if request.key.endswith(".parquet")]
    assert [request.method for request in data] == ["GET"]


def test_a_store_that_ignores_the_condition_of_a_write_is_refused_before_anything_is_committed(
    proxy: Proxy, new_root: Callable[[str], str]
) -> None:
    proxy.add("ignore_condition", is_any, times=None)
    root = new_root("s3")
    with pytest.raises(InvalidInputError, match=rf"{root}: the store ignores If-None-Match.*siltstone doctor"):
        siltstone.open(root).create_table("shop.orders", schema=SCHEMA)
    assert not [request for request in proxy.requests if is_batch(request)]
    assert siltstone.open(root).tables() == []


@pytest.mark.parametrize("fault", ["not_implemented", "invalid_argument"])
def test_a_store_without_conditional_writes_is_named_and_the_commit_did_not_happen(
    proxy: Proxy, new_root: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    rule = proxy.add(fault, lambda request: "if-none-match" in request.headers, times=None)
    root = new_root("s3")
    with pytest.raises(InvalidInputError, match=rf"{root}: the store has no create-if-absent .* was not written"):
        siltstone.open(root).create_table("shop.orders", schema=SCHEMA)
    assert len(rule.hits) == 1
    assert siltstone.open(root).tables() == []


@pytest.mark.parametrize("fault", ["not_implemented", "invalid_argument", "not_allowed", "expired"])
def test_a_commit_that_the_store_refuses_did_not_happen(
    proxy: Proxy, new_root: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    other = siltstone.open(new_root("s3")).create_table("shop.orders", schema=SCHEMA, primary_keys=["id"])
    rule = proxy.add(fault, is_batch, times=None)
    with pytest.raises((InvalidInputError, AccessDeniedError)) as caught:
        other.write(pa.table({"id": [1], "v": ["a"]}))
    assert "not known" not in str(caught.value)
    assert len(rule.hits) == 1
    assert other.deltas() == []
