"""The conformance suite for storage implementations.

    check_signatures(my_storage)
    for check in CHECKS:
        check(my_storage, root=a_new_empty_root)

Each check needs a root of its own. A check raises AssertionError where the implementation does not conform.
"""

import contextlib
import datetime
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa

from siltstone import errors
from siltstone.model import (
    DEFAULT_STREAM,
    Delta,
    DeltaLocator,
    Follower,
    Idempotency,
    PartitionLocator,
    StreamLocator,
    TableRules,
)
from siltstone.model.properties import CLOSED_BEFORE_MS
from siltstone.storage import interface

Check = Callable[[Any, str], None]
CHECKS: list[Check] = []


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


SCHEMA = _schema(id=pa.int64(), name=pa.string())


def check_signatures(implementation: ModuleType, declared: type = interface.Storage) -> None:
    """Check that an implementation has every function of an interface, by default storage's, with the same signature."""
    for name, expected in inspect.getmembers(declared, inspect.isfunction):
        if name.startswith("_"):
            continue
        found = getattr(implementation, name, None)
        assert inspect.isfunction(found), f"{implementation.__name__} has no function {name}"
        method = inspect.signature(expected)
        wanted = method.replace(parameters=list(method.parameters.values())[1:])
        assert inspect.signature(found) == wanted, (
            f"{implementation.__name__}.{name}{inspect.signature(found)} is not {name}{wanted}"
        )
        assert found.__doc__, f"{implementation.__name__}.{name} has no docstring"


def _check(function: Check) -> Check:
    CHECKS.append(function)
    return function


@contextlib.contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    """Assert that the block raises `kind` with a message that has all `words`."""
    try:
        yield
    except kind as error:
        absent = [word for word in words if word not in str(error)]
        if absent:
            raise AssertionError(f"{error} does not say {absent}") from error
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def _stream(storage: Any, root: str, **settings: Any) -> StreamLocator:
    settings = {"schema": SCHEMA, "primary_keys": ["id"], **settings}
    rules = TableRules(**{name: settings.pop(name) for name in TableRules() if name in settings})
    version = storage.create_table_version("shop", "orders", rules=rules, create_parents=True, root=root, **settings)
    return StreamLocator(**version.locator, stream=DEFAULT_STREAM)


def _partition(stream: StreamLocator, *values: Any) -> PartitionLocator:
    return PartitionLocator(**stream, partition_values=list(values))


def _rows(*rows: tuple[int, str]) -> pa.Table:
    return pa.table({"id": [row[0] for row in rows], "name": [row[1] for row in rows]}, schema=SCHEMA)


def _write(storage: Any, root: str, stream: StreamLocator, data: pa.Table, **settings: Any) -> int:
    commit = {key: settings.pop(key) for key in ("stream_position", "idempotency") if key in settings}
    staged = storage.stage_deltas(data, stream, root=root, **settings)
    return int(storage.commit_deltas(staged, stream, root=root, **commit).stream_position)


@_check
def namespaces_can_be_created_listed_updated_and_deleted(storage: Any, root: str) -> None:
    """A namespace lives from its creation to its deletion, and its properties change."""
    assert storage.list_namespaces(root=root) == []
    storage.create_namespace("shop", properties={"user.owner": "ann", "user.tier": "1"}, root=root)
    storage.create_namespace("bank", root=root)
    assert [namespace.locator.namespace for namespace in storage.list_namespaces(root=root)] == ["bank", "shop"]
    storage.update_namespace("shop", properties={"user.tier": None, "user.zone": "eu"}, root=root)
    assert storage.get_namespace("shop", root=root).properties == {"user.owner": "ann", "user.zone": "eu"}
    storage.delete_namespace("bank", root=root)
    assert not storage.namespace_exists("bank", root=root)
    assert storage.namespace_exists("shop", root=root)


@_check
def a_second_creation_is_refused_and_changes_nothing(storage: Any, root: str) -> None:
    """What exists is not created again."""
    _stream(storage, root)
    with raises(errors.AlreadyExistsError, "shop"):
        storage.create_namespace("shop", root=root)
    with raises(errors.AlreadyExistsError, "shop.orders"):
        storage.create_table("shop", "orders", root=root)
    with raises(errors.AlreadyExistsError, "shop.orders"):
        _stream(storage, root, schema=_schema(other=pa.string()), primary_keys=[])
    with raises(errors.AlreadyExistsError, "1"):
        storage.create_table_version("shop", "orders", "1", schema=SCHEMA, root=root)
    assert storage.get_table_version_column_names("shop", "orders", root=root) == ["id", "name"]


@_check
def what_does_not_exist_is_not_found(storage: Any, root: str) -> None:
    """Every getter and every deletion names what is missing."""
    stream = _stream(storage, root)
    gone = StreamLocator(**{**stream, "table": "gone"})
    calls: list[Callable[[], object]] = [
        lambda: storage.get_namespace("gone", root=root),
        lambda: storage.delete_namespace("gone", root=root),
        lambda: storage.update_namespace("gone", properties={}, root=root),
        lambda: storage.list_tables("gone", root=root),
        lambda: storage.create_table("gone", "orders", root=root),
        lambda: storage.get_table("shop", "gone", root=root),
        lambda: storage.delete_table("shop", "gone", root=root),
        lambda: storage.update_table("shop", "gone", description="x", root=root),
        lambda: storage.list_table_versions("shop", "gone", root=root),
        lambda: storage.get_table_version("shop", "orders", "gone", root=root),
        lambda: storage.update_table_version("shop", "gone", description="x", root=root),
        lambda: storage.list_streams("shop", "gone", root=root),
        lambda: storage.get_stream(gone, root=root),
        lambda: storage.delete_stream(StreamLocator(**{**stream, "stream": "gone"}), root=root),
        lambda: storage.list_partitions(gone, root=root),
        lambda: storage.stage_deltas(_rows((1, "a")), gone, root=root),
        lambda: storage.list_deltas(gone, root=root),
    ]
    for call in calls:
        with raises(errors.NotFoundError, "gone"):
            call()
    calls = [
        lambda: storage.get_partition(_partition(stream), root=root),
        lambda: storage.delete_partition(_partition(stream), root=root),
        lambda: storage.list_partition_deltas(_partition(stream), root=root),
        lambda: storage.get_latest_delta(_partition(stream), root=root),
        lambda: storage.get_delta(DeltaLocator(**_partition(stream), stream_position=1), root=root),
        lambda: storage.delete_deltas(_partition(stream), last_stream_position=0, root=root),
    ]
    for call in calls:
        with raises(errors.NotFoundError, "shop/orders/1"):
            call()
    assert not storage.table_exists("shop", "gone", root=root)
    assert not storage.table_version_exists("shop", "orders", "2", root=root)
    assert not storage.stream_exists(gone, root=root)
    assert not storage.partition_exists(_partition(stream), root=root)


@_check
def bad_names_are_refused(storage: Any, root: str) -> None:
    """No name walks out of the root."""
    storage.create_namespace("shop", root=root)
    for name in ("../x", "", "x" * 300, "a/b", "a\\b", ".hidden", "a..b", "a b", "é", "a\n"):
        with raises(errors.InvalidInputError):
            storage.create_namespace(name, root=root)
        with raises(errors.InvalidInputError):
            storage.create_table("shop", name, root=root)
        with raises(errors.InvalidInputError):
            storage.create_table_version("shop", name, schema=SCHEMA, create_parents=True, root=root)
        with raises(errors.InvalidInputError):
            storage.get_table("shop", name, root=root)
    assert storage.list_tables(root=root) == []
    assert len(storage.list_namespaces(root=root)) == 1


@_check
def tables_can_be_renamed_moved_described_and_deleted(storage: Any, root: str) -> None:
    """A rename keeps everything; the old name is free again; a deletion takes all versions along."""
    stream = _stream(storage, root)
    _write(storage, root, stream, _rows((1, "a")))
    storage.create_namespace("bank", root=root)
    storage.create_table("bank", "taken", root=root)
    with raises(errors.AlreadyExistsError, "bank.taken"):
        storage.update_table("shop", "orders", new_namespace="bank", new_table="taken", root=root)
    storage.update_table(
        "shop",
        "orders",
        new_namespace="bank",
        new_table="sales",
        description="d",
        properties={"user.a": "1"},
        root=root,
    )
    assert [table.locator.full_name for table in storage.list_tables(root=root)] == ["bank.sales", "bank.taken"]
    assert storage.list_tables("shop", root=root) == []
    moved = StreamLocator(**{**stream, "namespace": "bank", "table": "sales"})
    (delta,) = storage.list_deltas(moved, root=root)
    assert delta.locator.stream_locator == moved
    assert storage.download_delta(delta, root=root).to_pylist() == [{"id": 1, "name": "a"}]
    fresh = _stream(storage, root)
    assert storage.list_deltas(fresh, root=root) == []
    with raises(errors.ConflictError, "bank"):
        storage.delete_namespace("bank", root=root)
    storage.delete_table("bank", "sales", root=root)
    assert not storage.table_exists("bank", "sales", root=root)


@_check
def properties_are_checked_when_they_are_set(storage: Any, root: str) -> None:
    """What has no meaning, or a value without one, is refused before anything is written."""
    _stream(storage, root)
    for wrong in ({"delta_retention": "5"}, {"delta_retention_seconds": "soon"}, {"siltstone.kind": "documents"}):
        with raises(errors.InvalidInputError, next(iter(wrong))):
            storage.create_table_version(
                "shop", "other", schema=SCHEMA, properties=wrong, create_parents=True, root=root
            )
        with raises(errors.InvalidInputError, next(iter(wrong))):
            storage.update_table_version("shop", "orders", lifecycle_state="deprecated", properties=wrong, root=root)
    assert not storage.table_exists("shop", "other", root=root)
    version = storage.get_table_version("shop", "orders", root=root)
    assert (version.properties, version.lifecycle_state) == ({}, "active")
    of_tables = {"delta_retention_seconds": "5"}
    other = StreamLocator(**version.locator, stream="other")
    calls: list[Callable[[], object]] = [
        lambda: storage.create_namespace("bank", properties=of_tables, root=root),
        lambda: storage.update_namespace("shop", properties=of_tables, root=root),
        lambda: storage.create_table("shop", "other", properties=of_tables, root=root),
        lambda: storage.update_table("shop", "orders", properties=of_tables, root=root),
        lambda: storage.stage_stream(other, properties=of_tables, root=root),
    ]
    for call in calls:
        with raises(errors.InvalidInputError, "delta_retention_seconds is a property of tables"):
            call()
    made = storage.create_table_version(
        "shop", "other", schema=SCHEMA, reserved_properties={"siltstone.kind": "rows"}, create_parents=True, root=root
    )
    assert made.properties == {"siltstone.kind": "rows"}


@_check
def a_table_that_is_dropped_and_created_again_starts_empty(storage: Any, root: str) -> None:
    """Nothing of a dropped table comes back under its name."""
    stream = _stream(storage, root)
    _write(storage, root, stream, _rows((1, "a")), idempotency=Idempotency(app_id="job", batch_id=1))
    storage.delete_table("shop", "orders", root=root)
    stream = _stream(storage, root)
    assert storage.list_deltas(stream, root=root) == []
    assert storage.find_commit(stream, Idempotency(app_id="job", batch_id=1), root=root) is None
    assert _write(storage, root, stream, _rows((2, "b"))) == 1


@_check
def versions_count_up_and_the_newest_active_one_is_the_default(storage: Any, root: str) -> None:
    """Versions have lifecycles; their streams are apart."""
    stream = _stream(storage, root)
    storage.create_table_version("shop", "orders", schema=SCHEMA, lifecycle_state="unreleased", root=root)
    assert storage.get_latest_table_version("shop", "orders", root=root).locator.table_version == "2"
    assert storage.get_latest_active_table_version("shop", "orders", root=root).locator.table_version == "1"
    assert storage.get_table_version("shop", "orders", root=root).locator.table_version == "1"
    _write(storage, root, stream, _rows((1, "a")))
    storage.update_table_version("shop", "orders", "2", lifecycle_state="active", properties={"user.a": "b"}, root=root)
    chosen = storage.get_table_version("shop", "orders", root=root)
    assert (chosen.locator.table_version, chosen.lifecycle_state, chosen.properties) == ("2", "active", {"user.a": "b"})
    assert storage.list_deltas(StreamLocator(**chosen.locator, stream=DEFAULT_STREAM), root=root) == []
    states = [
        table_version.lifecycle_state for table_version in storage.list_table_versions("shop", "orders", root=root)
    ]
    assert states == ["active", "active"]


@_check
def keys_must_be_columns_and_rules_must_fit(storage: Any, root: str) -> None:
    """A table that could not work is not created."""
    nested = _schema(id=pa.int64(), tags=pa.list_(pa.string()), price=pa.float64())
    for settings, words in (
        ({"primary_keys": ["nope"]}, ("primary key", "nope")),
        ({"primary_keys": ["id", "id"]}, ("primary key",)),
        ({"sort_keys": ["nope"]}, ("sort key", "nope")),
        ({"partition_keys": ["nope"]}, ("partition key", "nope")),
        ({"schema": nested, "primary_keys": ["tags"]}, ("primary key", "tags")),
        ({"schema": nested, "partition_keys": ["price"]}, ("partition key", "price")),
        ({"primary_keys": [], "sort_keys": ["id"]}, ("primary key",)),
        ({"primary_keys": [], "merge_engine": "first_row"}, ("first_row",)),
        ({"merge_engine": "nope"}, ("merge_engine", "nope")),
        ({"schema": _schema(id=pa.int64(), ID=pa.int64())}, ("ID",)),
        ({"schema": _schema(id=pa.int64(), x=pa.null())}, ("x",)),
        ({"schema": pa.schema([]), "primary_keys": []}, ("columns",)),
    ):
        with raises(errors.InvalidInputError, *words):
            _stream(storage, root, **settings)
    assert storage.list_tables(root=root) == []
    assert storage.list_namespaces(root=root) == []


@_check
def staged_streams_partitions_and_deltas_are_invisible(storage: Any, root: str) -> None:
    """Only what is committed is seen, and it is committed once."""
    stream = _stream(storage, root)
    side = StreamLocator(**{**stream, "stream": "side"})
    staged = storage.stage_stream(side, root=root)
    assert not storage.stream_exists(side, root=root)
    assert len(storage.list_streams("shop", "orders", root=root)) == 1
    storage.commit_stream(staged, root=root)
    assert storage.stream_exists(side, root=root)
    with raises(errors.AlreadyExistsError, "side"):
        storage.commit_stream(storage.stage_stream(side, root=root), root=root)

    partition = storage.stage_partition(side, root=root)
    assert storage.list_partitions(side, root=root) == []
    storage.commit_partition(partition, root=root)
    assert storage.get_partition(partition.locator, root=root).stream_position == 0
    with raises(errors.AlreadyExistsError):
        storage.commit_partition(storage.stage_partition(side, root=root), root=root)

    delta = storage.stage_delta(_rows((1, "a")), partition.locator, root=root)
    assert storage.list_deltas(side, root=root) == []
    committed = storage.commit_delta(delta, root=root)
    assert committed.stream_position == 1
    assert storage.get_latest_delta(partition.locator, root=root).locator == committed.locator
    assert storage.get_delta_manifest(committed.locator, root=root).record_count == 1
    with raises(errors.InvalidInputError, "committed"):
        storage.commit_delta(committed, root=root)
    with raises(errors.InvalidInputError, "committed"):
        storage.discard_deltas([committed], root=root)
    storage.delete_partition(partition.locator, root=root)
    assert storage.list_deltas(side, root=root) == []
    storage.delete_stream(side, root=root)
    assert not storage.stream_exists(side, root=root)


@_check
def deltas_get_rising_positions_and_come_back_in_order(storage: Any, root: str) -> None:
    """Positions are previous plus one, or a given higher one; listing honours its bounds."""
    stream = _stream(storage, root)
    positions = [_write(storage, root, stream, _rows((number, "x"))) for number in range(3)]
    positions.append(_write(storage, root, stream, _rows((3, "x")), stream_position=10))
    positions.append(_write(storage, root, stream, _rows((4, "x"))))
    assert positions == [1, 2, 3, 10, 11]
    for wrong in (11, 5, 0, -1, 1 << 63):
        with raises(errors.InvalidInputError, str(wrong), "11"):
            _write(storage, root, stream, _rows((5, "x")), stream_position=wrong)
    listed = storage.list_deltas(stream, root=root)
    assert [each.stream_position for each in listed] == positions
    assert [each.previous_stream_position for each in listed] == [0, 1, 2, 3, 10]
    times = [each.committed_at for each in listed]
    assert times == sorted(times)
    assert all(times)
    some = storage.list_deltas(stream, first_stream_position=2, last_stream_position=10, ascending=False, root=root)
    assert [each.stream_position for each in some] == [10, 3, 2]
    ids = [storage.download_delta(each, columns=["id"], root=root).column("id").to_pylist() for each in listed]
    assert ids == [[0], [1], [2], [3], [4]]
    assert storage.get_stream(stream, root=root).stream_position == 11


@_check
def chrono_deltas_are_placed_by_time(storage: Any, root: str) -> None:
    """A chrono delta's position is about the time in milliseconds, and still rises."""
    stream = _stream(storage, root)
    first = _write(storage, root, stream, _rows((1, "a")), type="chrono")
    second = _write(storage, root, stream, _rows((2, "b")), type="chrono")
    assert 1_700_000_000_000 < first < second
    assert _write(storage, root, stream, _rows((3, "c"))) == second + 1


@_check
def an_idempotency_id_commits_once(storage: Any, root: str) -> None:
    """The same id twice is one commit, at the first one's position; other ids are others."""
    stream = _stream(storage, root)
    one, two = Idempotency(app_id='job "1"/é', batch_id=7), Idempotency(app_id='job "1"/é', batch_id=8)
    first = _write(storage, root, stream, _rows((1, "a")), idempotency=one)
    _write(storage, root, stream, _rows((2, "b")))
    assert _write(storage, root, stream, _rows((1, "other")), idempotency=one) == first
    assert storage.find_commit(stream, one, root=root) == first
    assert storage.find_commit(stream, two, root=root) is None
    assert _write(storage, root, stream, _rows((3, "c")), idempotency=two) == 3
    assert [delta.stream_position for delta in storage.list_deltas(stream, root=root)] == [1, 2, 3]


@_check
def an_idempotency_id_that_is_given_up_never_commits(storage: Any, root: str) -> None:
    """What is given up stays so, and what was committed cannot be given up."""
    stream = _stream(storage, root)
    one, two, three = (Idempotency(app_id="ingest:drops", batch_id=number) for number in range(3))
    first = _write(storage, root, stream, _rows((1, "a")), idempotency=one)
    assert storage.give_up_commit(stream, one, root=root) == first
    staged = storage.stage_deltas(_rows((2, "b")), stream, root=root)
    for _ in range(2):
        assert storage.give_up_commit(stream, two, root=root) is None
    assert storage.find_commit(stream, two, root=root) is None
    with raises(errors.ConflictError, "given up"):
        storage.commit_deltas(staged, stream, idempotency=two, root=root)
    assert _write(storage, root, stream, _rows((3, "c")), idempotency=three) == 2
    assert storage.find_commit(stream, three, root=root) == 2
    assert [delta.stream_position for delta in storage.list_deltas(stream, root=root)] == [1, 2]


@_check
def deltas_that_are_committed_again_under_their_id_stay(storage: Any, root: str) -> None:
    """Who did not hear that its commit happened may repeat it, with what it has staged."""
    stream = _stream(storage, root)
    staged = storage.stage_deltas(_rows((1, "a")), stream, root=root)
    for _ in range(2):
        found = storage.commit_deltas(staged, stream, idempotency=Idempotency(app_id="job", batch_id=1), root=root)
        assert found.stream_position == 1
    (delta,) = storage.list_deltas(stream, root=root)
    assert storage.download_delta(delta, root=root).to_pylist() == [{"id": 1, "name": "a"}]


@_check
def one_commit_spans_partitions_at_one_position(storage: Any, root: str) -> None:
    """Rows go to the partition of their values, null and awkward ones too, all in one commit."""
    schema = _schema(id=pa.int64(), zone=pa.string(), shard=pa.int32())
    stream = _stream(storage, root, schema=schema, partition_keys=["zone", "shard"], unique_within_partition=True)
    zones = ["eu", None, "", "a/b", "é %+", "eu", ".", "x" * 500]
    data = pa.table({"id": range(8), "zone": zones, "shard": [1, 1, 2, 2, None, 1, 3, 4]}, schema=schema)
    assert _write(storage, root, stream, data) == 1
    deltas = storage.list_deltas(stream, root=root)
    found = {
        tuple(delta.partition_values): storage.download_delta(delta, root=root).column("id").to_pylist()
        for delta in deltas
    }
    assert found == {
        ("eu", 1): [0, 5], (None, 1): [1], ("", 2): [2], ("a/b", 2): [3], ("é %+", None): [4], (".", 3): [6],
        ("x" * 500, 4): [7],
    }  # fmt: skip
    assert {delta.stream_position for delta in deltas} == {1}
    assert len(storage.list_partitions(stream, root=root)) == 7
    assert _write(storage, root, stream, data.slice(0, 1)) == 2
    own = storage.list_partition_deltas(_partition(stream, "eu", 1), root=root)
    assert [each.stream_position for each in own] == [1, 2]
    with raises(errors.InvalidInputError, "partition"):
        storage.stage_delta(data, _partition(stream, "eu", 1), root=root)
    with raises(errors.InvalidInputError, "partition"):
        storage.stage_partition(stream, ["eu"], root=root)


@_check
def a_delete_without_partition_keys_meets_every_partition(storage: Any, root: str) -> None:
    """A delete by key concerns all partitions; one by partition key only its own."""
    schema = _schema(id=pa.int64(), zone=pa.string())
    stream = _stream(storage, root, schema=schema, partition_keys=["zone"], unique_within_partition=True)
    _write(storage, root, stream, pa.table({"id": [1, 2], "zone": ["eu", "us"]}))
    _write(storage, root, stream, pa.table({"id": [1]}), type="delete")
    _write(storage, root, stream, pa.table({"zone": ["us"]}), type="delete", delete_columns=["zone"])
    kinds = [(delta.stream_position, delta.partition_values) for delta in storage.list_deltas(stream, root=root)]
    assert sorted(kinds) == [(1, ["eu"]), (1, ["us"]), (2, ["eu"]), (2, ["us"]), (3, ["us"])]


@_check
def an_overwrite_replaces_partitions_in_one_commit(storage: Any, root: str) -> None:
    """Deltas that replace all before them, with or without rows, and rows of other partitions are refused."""
    schema = _schema(id=pa.int64(), zone=pa.string())
    stream = _stream(storage, root, schema=schema, partition_keys=["zone"], unique_within_partition=True)
    _write(storage, root, stream, pa.table({"id": [1, 2], "zone": ["eu", "us"]}))

    def overwrite(what: Any, zones: list[str]) -> list[tuple[list[Any], int, bool]]:
        data = pa.table({"id": pa.array(range(len(zones)), pa.int64()), "zone": pa.array(zones, pa.string())})
        staged = storage.stage_deltas(data, stream, root=root)
        planned = storage.plan_overwrite(staged, stream, what, root=root)
        position = storage.commit_deltas(staged, stream, overwrite=what, root=root).stream_position
        deltas = storage.list_deltas(stream, first_stream_position=position, root=root)
        assert {each.locator.partition_id for each in planned} == {each.locator.partition_id for each in deltas}
        return sorted((each.partition_values, each.manifest.record_count, each.replaces) for each in deltas)

    assert overwrite("partitions", ["eu"]) == [(["eu"], 1, True)]
    assert overwrite([["us"], ["asia"]], []) == [(["us"], 0, True)]
    assert overwrite("table", ["asia"]) == [(["asia"], 1, True), (["eu"], 0, True), (["us"], 0, True)]
    with raises(errors.InvalidInputError, "eu", "replaced"):
        overwrite([["us"]], ["eu"])
    gone = storage.stage_deltas(pa.table({"id": [1]}), stream, type="delete", root=root)
    with raises(errors.InvalidInputError, "delete"):
        storage.commit_deltas(gone, stream, overwrite="table", root=root)
    assert storage.get_stream(stream, root=root).stream_position == 4


@_check
def a_partition_begins_with_the_floor_of_its_stream(storage: Any, root: str) -> None:
    """What a truncate let in no more stays out of partitions that begin later, until the table is overwritten."""
    schema = _schema(id=pa.int64(), zone=pa.string())
    stream = _stream(storage, root, schema=schema, partition_keys=["zone"], unique_within_partition=True)

    def write(*zones: str, floor: str | None = None, overwrite: str | None = None) -> dict[str, str | None]:
        staged = storage.stage_deltas(pa.table({"id": [1] * len(zones), "zone": list(zones)}), stream, root=root)
        if floor is not None:
            (truncate,) = storage.stage_deltas(pa.table({"id": [1]}), stream, type="delete", root=root)
            # It comes before the rows of its own commit.
            for delta in staged:
                delta.place = 1
            truncate.floor = floor
            staged.append(truncate)
        position = storage.commit_deltas(staged, stream, overwrite=overwrite, root=root).stream_position
        deltas = storage.list_deltas(stream, first_stream_position=position, root=root)
        return {each.partition_values[0]: each.inherited_floor for each in deltas}

    assert write("eu") == {"eu": None}
    assert write("us", floor="05") == {"us": "05"}
    assert write("eu", "asia", floor="03") == {"eu": None, "asia": "05"}
    assert write("us", "africa") == {"us": None, "africa": "05"}
    assert write("moon", overwrite="partitions") == {"moon": None}
    assert write("eu", overwrite="table")["eu"] is None
    assert write("mars") == {"mars": None}


@_check
def deltas_are_checked_before_anything_is_committed(storage: Any, root: str) -> None:
    """Wrong data and wrong rules are refused, the column is named, and the stream stays as it was."""
    schema = _schema(id=pa.int64(), at=pa.timestamp("us")).append(pa.field("qty", pa.int32(), nullable=False))
    stream = _stream(storage, root, schema=schema, sort_keys=["at"])
    at = pa.array([0], pa.timestamp("us"))
    good = {"id": [1], "at": at, "qty": pa.array([1], pa.int32())}
    for data, settings, words in (
        ({**good, "id": ["one"]}, {}, ("'id'", "int64", "string")),
        ({**good, "at": [1.5]}, {}, ("'at'", "timestamp", "double")),
        ({**good, "ID": [1]}, {}, ("'ID'",)),
        ({**good, "_siltstone_row": [1]}, {}, ("_siltstone_row",)),
        ({**good, "extra": pa.nulls(1)}, {}, ("'extra'",)),
        ({**good, "at": pa.array([1], pa.timestamp("ns"))}, {}, ("'at'",)),
        ({"id": [1], "qty": [1]}, {}, ("sort key", "'at'")),
        ({"at": at, "qty": [1]}, {}, ("primary key", "'id'")),
        ({"id": [1], "at": at}, {}, ("'qty'",)),
        ({**good, "qty": pa.array([None], pa.int32())}, {}, ("'qty'", "null")),
        ({**good, "op": ["x"]}, {"op_column": "op"}, ("'op'", "'x'")),
        ({**good, "op": pa.array([None], pa.string())}, {"op_column": "op"}, ("'op'", "None")),
        (good, {"op_column": "op"}, ("'op'",)),
        (good, {"type": "merge"}, ("merge",)),
        (good, {"delete_columns": ["id"]}, ("delete",)),
        (good, {"type": "append", "op_column": "op"}, ("append",)),
        ({"id": [1]}, {"type": "delete", "delete_columns": ["nope"]}, ("nope",)),
        ({"qty": [1]}, {"type": "delete"}, ("'id'",)),
        ({"id": ["one"]}, {"type": "delete"}, ("'id'", "int64", "string")),
    ):
        with raises(errors.InvalidInputError, "shop.orders", *words):
            storage.stage_deltas(pa.table(data), stream, root=root, **settings)
    assert storage.get_stream(stream, root=root).stream_position == 0
    assert storage.get_table_version_column_names("shop", "orders", root=root) == ["id", "at", "qty"]


@_check
def a_table_without_key_cannot_be_deleted_from_without_columns(storage: Any, root: str) -> None:
    """A delete needs to know by what."""
    stream = _stream(storage, root, primary_keys=[])
    with raises(errors.InvalidInputError, "delete columns"):
        storage.stage_deltas(_rows((1, "a")), stream, type="delete", root=root)
    assert _write(storage, root, stream, _rows((1, "a")), type="delete", delete_columns=["name"]) == 1
    with raises(errors.InvalidInputError, "primary key"):
        storage.stage_deltas(_rows((1, "a")), stream, op_column="name", root=root)


@_check
def columns_are_renamed_and_dropped_without_writing_a_file(storage: Any, root: str) -> None:
    """A column keeps its id and values under a new name; one that comes back after a drop is another one."""
    stream = _stream(storage, root)
    position = _write(storage, root, stream, _rows((1, "a")))
    (delta,) = storage.list_deltas(stream, first_stream_position=position, root=root)
    before = storage.get_table_version("shop", "orders", root=root)
    renamed = storage.update_table_version("shop", "orders", rename_columns={"name": "title"}, root=root)
    assert [(column.name, column.id) for column in renamed.fields] == [
        ({"name": "title"}.get(column.name, column.name), column.id) for column in before.fields
    ]
    assert storage.download_delta(delta, root=root).to_pylist() == [{"id": 1, "title": "a"}]
    dropped = storage.update_table_version("shop", "orders", drop_columns=["title"], root=root)
    assert dropped.schema.names == ["id"]
    assert storage.download_delta(delta, root=root).to_pylist() == [{"id": 1}]
    again = storage.update_table_version("shop", "orders", add_columns=_schema(title=pa.string()), root=root)
    assert again.fields[-1].id == renamed.fields[-1].id + 1
    assert storage.download_delta(delta, root=root).to_pylist() == [{"id": 1}]
    with raises(errors.InvalidInputError, "primary keys"):
        storage.update_table_version("shop", "orders", drop_columns=["id"], root=root)
    with raises(errors.InvalidInputError, "'nope'"):
        storage.update_table_version("shop", "orders", rename_columns={"nope": "x"}, root=root)


@_check
def a_strict_write_adds_and_widens_nothing(storage: Any, root: str) -> None:
    """Without `evolve`, or by the table's property, what would change the schema is refused."""
    stream = _stream(storage, root)
    wider = pa.table({"id": pa.array([1], pa.int64()), "name": ["a"], "extra": [1]})
    with raises(errors.InvalidInputError, "'extra'"):
        storage.stage_deltas(wider, stream, evolve=False, root=root)
    storage.update_table_version("shop", "orders", properties={"schema_evolution": "strict"}, root=root)
    with raises(errors.InvalidInputError, "'extra'"):
        storage.stage_deltas(wider, stream, root=root)
    _write(storage, root, stream, _rows((1, "a")))


@_check
def the_schema_evolves_with_the_commit(storage: Any, root: str) -> None:
    """New columns and wider types are taken over when the delta is committed, not before."""
    schema = _schema(id=pa.int32(), price=pa.decimal128(8, 2), rate=pa.float32())
    stream = _stream(storage, root, schema=schema)
    data = pa.table(
        {"id": pa.array([1], pa.int64()), "rate": [1.5], "note": ["n"], "price": pa.array([1], pa.decimal128(10, 3))}
    )
    staged = storage.stage_deltas(data, stream, root=root)
    assert storage.get_table_version_schema("shop", "orders", root=root) == schema
    storage.commit_deltas(staged, stream, root=root)
    assert storage.get_table_version_schema("shop", "orders", root=root) == _schema(
        id=pa.int64(), price=pa.decimal128(10, 3), rate=pa.float64(), note=pa.string()
    )
    _write(storage, root, stream, pa.table({"id": pa.array([1], pa.int8())}))
    version = storage.get_table_version("shop", "orders", root=root)
    assert version.schema_id == 2
    altered = storage.update_table_version("shop", "orders", add_columns=_schema(more=pa.bool_()), root=root)
    assert altered.schema.names == ["id", "price", "rate", "note", "more"]
    with raises(errors.InvalidInputError, "'note'"):
        storage.update_table_version("shop", "orders", add_columns=_schema(note=pa.bool_()), root=root)


@_check
def racing_schema_changes_do_not_contradict_each_other(storage: Any, root: str) -> None:
    """Of two staged deltas that add one column with two types, the second to commit is refused."""
    stream = _stream(storage, root)
    texts = storage.stage_deltas(pa.table({"id": [1], "note": ["a"]}), stream, root=root)
    numbers = storage.stage_deltas(pa.table({"id": [1], "note": [1]}), stream, root=root)
    storage.commit_deltas(texts, stream, root=root)
    with raises(errors.InvalidInputError, "'note'", "string", "int64"):
        storage.commit_deltas(numbers, stream, root=root)
    assert storage.get_stream(stream, root=root).stream_position == 1


@_check
def a_commit_holds_only_on_the_properties_it_expects(storage: Any, root: str) -> None:
    """What was staged on a property that has changed since is refused, and can be committed on what it is now."""
    stream = _stream(storage, root)
    staged = storage.stage_deltas(_rows((1, "a")), stream, root=root)
    storage.update_table_version("shop", "orders", properties={"user.closed": "17"}, root=root)
    for expected in (None, "16"):
        with raises(errors.ConflictError, "closed", "17"):
            storage.commit_deltas(staged, stream, expected_properties={"user.closed": expected}, root=root)
    assert storage.get_stream(stream, root=root).stream_position == 0
    storage.commit_deltas(staged, stream, expected_properties={"user.closed": "17", "user.other": None}, root=root)
    assert storage.get_stream(stream, root=root).stream_position == 1


@_check
def empty_writes_are_commits(storage: Any, root: str) -> None:
    """No rows is a legal delta, in tables with and without partitions."""
    stream = _stream(storage, root)
    assert _write(storage, root, stream, SCHEMA.empty_table()) == 1
    (delta,) = storage.list_deltas(stream, root=root)
    empty = storage.download_delta(delta, root=root)
    assert (empty.num_rows, empty.schema) == (0, SCHEMA)
    storage.delete_table("shop", "orders", root=root)
    stream = _stream(storage, root, partition_keys=["name"], unique_within_partition=True)
    assert _write(storage, root, stream, SCHEMA.empty_table()) == 1
    assert _write(storage, root, stream, _rows((1, "a"))) == 2
    with raises(errors.InvalidInputError, "'id'"):
        storage.stage_deltas(pa.table({"id": pa.array([], pa.string()), "name": []}), stream, root=root)


@_check
def all_shapes_of_arrow_data_are_taken(storage: Any, root: str) -> None:
    """Tables, batches, readers, iterables and anything that exports Arrow; nested and foreign types."""
    stream = _stream(storage, root)
    table = _rows((1, "a"), (2, "b"))
    shapes = (table, table.to_batches()[0], table.to_reader(), table.to_batches(), iter(table.to_batches()))
    for data in shapes:
        staged = storage.stage_deltas(data, stream, root=root)
        assert sum(each.manifest.record_count for each in staged) == 2
        storage.discard_deltas(staged, root=root)
    with raises(errors.InvalidInputError):
        storage.stage_deltas({"id": [1]}, stream, root=root)
    rich = pa.table(
        {
            "id": pa.array([1], pa.uint32()),
            "name": pa.array(["x"]).dictionary_encode(),
            "tags": pa.array([["a", None]], pa.large_list(pa.large_string())),
            "at": pa.array([1_000], pa.timestamp("ns", tz="Europe/Paris")),
            "more": pa.array([{"a": 1, "b": [1.5]}]),
            "kv": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    _write(storage, root, stream, rich)
    (delta,) = storage.list_deltas(stream, root=root)
    read = storage.download_delta(delta, root=root)
    (row,) = read.to_pylist()
    assert row["tags"] == ["a", None]
    assert row["kv"] == [("k", 1)]
    assert read.schema.field("at").type == pa.timestamp("us", tz="UTC")


@_check
def trimming_forgets_deltas_and_remembers_that(storage: Any, root: str) -> None:
    """Trimmed deltas are gone, positions go on, and the partition knows."""
    stream = _stream(storage, root)
    for number in range(4):
        _write(storage, root, stream, _rows((number, "x")), idempotency=Idempotency(app_id="job", batch_id=number))
    assert storage.delete_deltas(_partition(stream), last_stream_position=2, root=root) == 2
    assert storage.delete_deltas(_partition(stream), last_stream_position=2, root=root) == 0
    assert [delta.stream_position for delta in storage.list_deltas(stream, root=root)] == [3, 4]
    assert storage.get_partition(_partition(stream), root=root).trimmed_stream_position == 2
    assert storage.find_commit(stream, Idempotency(app_id="job", batch_id=0), root=root) == 1
    with raises(errors.InvalidInputError, "9"):
        storage.delete_deltas(_partition(stream), last_stream_position=9, root=root)
    assert _write(storage, root, stream, _rows((9, "x"))) == 5


@_check
def partitions_are_trimmed_together_or_not_at_all(storage: Any, root: str) -> None:
    """One commit trims several partitions of a stream; what is wrong with one of them stops it."""
    stream = _stream(storage, root, primary_keys=["name", "id"], partition_keys=["name"])
    _write(storage, root, stream, _rows((1, "a"), (2, "b")))
    _write(storage, root, stream, _rows((3, "a"), (4, "b")))
    one, two = _partition(stream, "a"), _partition(stream, "b")
    with raises(errors.InvalidInputError, "9"):
        storage.trim_partitions({one: 1, two: 9}, root=root)
    with raises(errors.NotFoundError, "c"):
        storage.trim_partitions({one: 1, _partition(stream, "c"): 1}, root=root)
    follower = Follower(locator=one, folder="tables/a/compacted/_")
    with raises(errors.ConflictError, "followers"):
        storage.trim_partitions({one: 1, two: 2}, followers=[follower], root=root)
    assert len(storage.list_deltas(stream, root=root)) == 4
    assert storage.trim_partitions({one: 1, two: 2}, followers=[], root=root) == {one: 1, two: 2}
    assert storage.trim_partitions({one: 1, two: 2}, root=root) == {one: 0, two: 0}
    assert [storage.get_partition(each, root=root).trimmed_stream_position for each in (one, two)] == [1, 2]


@_check
def followers_are_remembered_and_a_trim_goes_by_them(storage: Any, root: str) -> None:
    """A follower is there once, after the latest round it was added for; what changes while trimming stops the trim."""
    stream = _stream(storage, root)
    partition = _partition(stream)
    assert storage.list_followers(stream, root=root) == []
    first = Follower(locator=partition, folder="tables/a/compacted/_", start_position=3, after_round=2)
    assert storage.add_follower(first, root=root)
    assert not storage.add_follower(first, root=root)
    lower = Follower.from_serializable({**first, "start_position": 1})
    assert storage.add_follower(lower, root=root)
    assert not storage.add_follower(first, root=root)
    later = Follower.from_serializable({**first, "after_round": 5})
    assert storage.add_follower(later, root=root)
    assert not storage.add_follower(lower, root=root)
    other = Follower(locator=partition, folder="tables/b/compacted/_")
    assert storage.add_follower(other, root=root)
    assert storage.list_followers(stream, root=root) == [later, other]
    _write(storage, root, stream, _rows((1, "x")))
    with raises(errors.ConflictError, "followers"):
        storage.delete_deltas(partition, last_stream_position=1, followers=[later], root=root)
    assert len(storage.list_deltas(stream, root=root)) == 1
    assert not storage.remove_follower(lower, root=root)
    assert storage.remove_follower(other, root=root)
    assert storage.delete_deltas(partition, last_stream_position=1, followers=[later], root=root) == 1
    storage.delete_stream(stream, root=root)
    with raises(errors.NotFoundError):
        storage.list_followers(stream, root=root)
    with raises(errors.NotFoundError):
        storage.add_follower(later, root=root)
    storage.commit_stream(storage.stage_stream(stream, root=root), root=root)
    assert storage.list_followers(stream, root=root) == []


@_check
def a_stream_is_found_by_its_name_and_by_its_folder(storage: Any, root: str) -> None:
    """A folder stays what it is when the table gets another name, and is found until the table is dropped."""
    stream = _stream(storage, root)
    found = storage.find_stream("shop", "orders", root=root)
    assert (found.locator, found.root) == (stream, root)
    assert storage.locate_stream(_partition(stream, "any"), root=root).locator == stream
    storage.update_table("shop", "orders", new_table="sales", root=root)
    with raises(errors.NotFoundError, "shop.orders"):
        storage.find_stream("shop", "orders", root=root)
    renamed = storage.find_stream_in(found.folder, root=root)
    assert (renamed.locator.table, renamed.folder, renamed.version_folder) == (
        "sales",
        found.folder,
        found.version_folder,
    )
    other = storage.find_stream("shop", "sales", stream="other", root=root)
    assert other.folder != renamed.folder
    with raises(errors.NotFoundError, "other"):
        other.read(lambda state: state.stream_position)
    storage.delete_table("shop", "sales", root=root)
    assert storage.find_stream_in(found.folder, root=root) is None


@_check
def a_stream_is_read_at_one_moment(storage: Any, root: str) -> None:
    """What one state says of positions, partitions and deltas fits together; each read is of the newest."""
    stream = _stream(storage, root, primary_keys=["name", "id"], partition_keys=["name"])
    found = storage.locate_stream(stream, root=root)
    assert found.read(lambda state: (state.stream_position, state.partitions(), list(state.deltas("b")))) == (0, {}, [])
    _write(storage, root, stream, _rows((1, "a"), (2, "b")))
    _write(storage, root, stream, _rows((3, "b")))
    storage.delete_deltas(_partition(stream, "a"), last_stream_position=1, root=root)
    follower = Follower(locator=_partition(stream, "b"), folder="tables/x/compacted/b")
    storage.add_follower(follower, root=root)

    kept: list[Sequence[Delta]] = []

    def check(state: interface.StreamState) -> None:
        assert (state.locator, state.stream_position) == (stream, 2)
        assert state.version == storage.get_table_version("shop", "orders", root=root)
        partitions = state.partitions()
        assert {key: each.stream_position for key, each in partitions.items()} == {"a": 1, "b": 2}
        assert state.partition("a") == partitions["a"]
        assert state.partition("c") is None
        assert state.followers() == [follower]
        deltas = storage.list_partition_deltas(_partition(stream, "b"), root=root)
        assert [delta.stream_position for delta in deltas] == [1, 2]
        assert (list(state.deltas("a")), list(state.deltas("b"))) == ([], deltas)
        assert (list(state.deltas("b", 1)), list(state.deltas("b", upto=1))) == (deltas[1:], deltas[:1])
        kept.append(state.deltas("b"))
        assert state.position_at(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)) == 2

    found.read(check)
    with found.announced():
        _write(storage, root, stream, _rows((4, "b")))
    assert found.read(lambda state: state.stream_position) == 3
    travelled = pickle.loads(pickle.dumps(kept[0]))  # noqa: S301
    assert [delta.stream_position for delta in travelled] == [1, 2]
    expiry_ms = found.expiry_ms()
    assert found.read(lambda state: state.expiry_ms()) >= expiry_ms > 0
    assert found.time_warning(expiry_ms) is None


@_check
def a_stream_is_closed_up_to_the_latest_time(storage: Any, root: str) -> None:
    """It never opens again, and a writer that relied on an earlier time is refused."""
    stream = _stream(storage, root)
    assert storage.close_stream(stream, before_ms=2000, root=root)
    assert not storage.close_stream(stream, before_ms=1000, root=root)
    assert not storage.close_stream(stream, before_ms=2000, root=root)
    name = CLOSED_BEFORE_MS.name
    assert storage.get_table_version("shop", "orders", root=root).properties[name] == "2000"
    staged = storage.stage_deltas(_rows((1, "x")), stream, root=root)
    assert storage.close_stream(stream, before_ms=3000, root=root)
    with raises(errors.ConflictError, name):
        storage.commit_deltas(staged, stream, expected_properties={name: "2000"}, root=root)
    storage.commit_deltas(staged, stream, expected_properties={name: "3000"}, root=root)


@_check
def concurrent_commits_are_all_kept(storage: Any, root: str) -> None:
    """Racing writers all get a position of their own; none is lost, none is doubled."""
    stream = _stream(storage, root)
    positions: list[int] = []
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for number in range(5):
                positions.append(_write(storage, root, stream, _rows((writer * 10 + number, "x"))))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert sorted(positions) == list(range(1, 21))
    ids = [
        storage.download_delta(delta, root=root).column("id").to_pylist()[0]
        for delta in storage.list_deltas(stream, root=root)
    ]
    assert sorted(ids) == sorted(writer * 10 + number for writer in range(4) for number in range(5))
