"""Dict models: plain dictionaries with checked fields; locators are identities."""

import json
import pickle
from typing import Any

import orjson
import pytest

from siltstone.errors import InvalidInputError
from siltstone.model import (
    Delta,
    DeltaLocator,
    Idempotency,
    Manifest,
    ManifestEntry,
    Model,
    NamespaceLocator,
    Partition,
    PartitionLocator,
    StreamLocator,
    Table,
    TableLocator,
    TableVersion,
    TableVersionLocator,
    field,
)
from siltstone.model.locators import partition_id

LOCATOR = PartitionLocator(
    namespace="shop", table="orders", table_version="1", stream="deltas", partition_values=["eu", None, 7]
)
DELTA = Delta(
    locator=DeltaLocator(**LOCATOR, stream_position=7),
    type="upsert",
    manifest=Manifest(entries=[ManifestEntry(uri="a/b.parquet", record_count=3, content_length=99)]),
    idempotency=Idempotency(app_id="job", batch_id=1),
)


class Point(Model):
    x: int
    y: float = 0.0
    tags: list[str] = field(default_factory=list)
    color: str | None = None


def test_a_model_is_a_dictionary_of_its_fields() -> None:
    point = Point(x=1, tags=["a"])
    assert point == {"x": 1, "y": 0.0, "tags": ["a"], "color": None}
    point.y = 2
    assert (point["y"], type(point.y)) == (2.0, float)
    point["x"] = 5
    assert point.x == 5


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "missing x"),
        ({"x": 1, "z": 2}, "unknown z"),
        ({"x": "1"}, "Point.x: expected int, found str '1'"),
        ({"x": True}, "expected int, found bool"),
        ({"x": 1, "tags": ["a", 2]}, r"Point.tags\[1\]: expected str"),
        ({"x": 1, "tags": "abc"}, "Point.tags"),
        ({"x": 1, "color": 3}, "Point.color: expected str"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        Point(**values)
    if "x" in values:
        with pytest.raises(InvalidInputError):
            Point.from_serializable({**values, "x": values["x"], **({"y": []} if "z" in values else {})})


def test_setters_check_and_leave_the_old_value() -> None:
    point = Point(x=1)
    with pytest.raises(InvalidInputError, match=r"Point\.x"):
        point.x = "two"  # type: ignore[assignment]
    assert point.x == 1


def test_defaults_are_not_shared() -> None:
    Point(x=1).tags.append("mine")
    assert Point(x=1).tags == []


def test_unknown_keys_survive_a_round_trip() -> None:
    stored = {"x": 1, "from_the_future": {"deep": [1, None]}}
    point = Point.from_serializable(stored)
    assert point.to_serializable()["from_the_future"] == {"deep": [1, None]}
    assert Point.from_serializable(point.without_defaults()).to_serializable() == point.to_serializable()
    assert set(point.without_defaults()) == {"x", "from_the_future"}


def test_whole_models_are_checked_when_written_and_read() -> None:
    point = Point(x=1)
    dict.__setitem__(point, "x", "broken on purpose")
    with pytest.raises(InvalidInputError, match=r"Point\.x"):
        point.to_serializable()
    with pytest.raises(InvalidInputError, match="x is missing"):
        Point.from_serializable({})
    with pytest.raises(InvalidInputError, match="expected an object"):
        Point.from_serializable([1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "model", [LOCATOR, DELTA, Partition(locator=LOCATOR), Point(x=1)], ids=lambda m: type(m).__name__
)
def test_models_go_through_json_and_pickle_unchanged(model: Model) -> None:
    for dumps, loads in ((json.dumps, json.loads), (orjson.dumps, orjson.loads)):
        back = type(model).from_serializable(loads(dumps(model)))
        assert back == model
        assert back.to_serializable() == model.to_serializable()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(model, protocol))
        assert type(copy) is type(model)
        assert dict(copy) == dict(model)


def test_nested_plain_dictionaries_become_models() -> None:
    delta = Delta.from_serializable(json.loads(json.dumps(DELTA)))
    assert delta.manifest.record_count == 3
    assert isinstance(delta.locator, DeltaLocator)
    assert delta.stream_position == 7


def test_locators_are_equal_and_hash_by_identity() -> None:
    same = PartitionLocator.from_serializable({**LOCATOR, "note": "unknown keys do not make another identity"})
    assert same == LOCATOR
    assert len({same, LOCATOR}) == 1
    assert PartitionLocator(**{**LOCATOR, "partition_values": ["eu", None, 8]}) != LOCATOR
    table = TableLocator(namespace="a", table="b")
    assert table != NamespaceLocator(namespace="a")
    assert table != {"namespace": "a", "table": "b"}
    assert {LOCATOR: 1}[same] == 1


def test_canonical_strings_are_readable_and_nest() -> None:
    assert str(DELTA.locator) == "shop/orders/1/deltas/eu,!null,7/7"
    assert str(DELTA.locator.partition_locator) == str(LOCATOR) == "shop/orders/1/deltas/eu,!null,7"
    assert LOCATOR.stream_locator == StreamLocator(namespace="shop", table="orders", table_version="1", stream="deltas")
    assert str(LOCATOR.stream_locator.table_version_locator.table_locator) == "shop/orders"
    assert TableLocator(namespace="shop", table="orders").full_name == "shop.orders"


def test_different_partition_values_have_different_ids() -> None:
    values: list[list[Any]] = [
        [], [None], [""], ["_"], ["null"], ["!null"], ["!empty"], ["a,b"], ["a", "b"], ["a/b"], ["."], [".."], ["é"],
        ["a b"], ["a%20b"], ["x" * 300], ["x" * 301], [True], [1], [-1], ["~"], ["#1"], ["\n"], ["A"], ["a"],
    ]  # fmt: skip
    ids = [partition_id(value) for value in values]
    assert len(set(ids)) == len(ids)
    for text in ids:
        assert "/" not in text
        assert text not in (".", "..", "")
        assert len(text) <= 150
        assert text.isascii()


def test_metafiles_are_found_by_their_locator() -> None:
    one = Partition(locator=LOCATOR)
    two = Partition(locator=LOCATOR, stream_position=9)
    assert hash(one) == hash(two)
    assert one != two, "they are different states of one thing"


@pytest.mark.parametrize("name", ["../x", "", "x" * 300, "a/b", "-a", "a b", "a..b", "\n", "ä"])
def test_names_that_could_leave_the_root_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        NamespaceLocator(namespace=name)
    with pytest.raises(InvalidInputError):
        TableLocator(namespace="shop", table=name)


def test_a_namespace_has_no_dot_but_a_table_may() -> None:
    assert TableLocator(namespace="shop", table="orders.v2").full_name == "shop.orders.v2"
    with pytest.raises(InvalidInputError, match="dot"):
        NamespaceLocator(namespace="shop.eu")


def test_tables_and_versions_know_their_rules() -> None:
    locator = TableVersionLocator(namespace="shop", table="orders", table_version="1")
    fields = [{"name": "id", "type": "int64"}]
    version = TableVersion.from_serializable({"locator": locator, "fields": fields, "primary_keys": ["id"]})
    assert version.schema.names == ["id"]
    with pytest.raises(InvalidInputError, match="not a column"):
        TableVersion.from_serializable({"locator": locator, "fields": fields, "primary_keys": ["x"]})
    with pytest.raises(InvalidInputError, match="merge_engine"):
        TableVersion.from_serializable({"locator": locator, "fields": fields, "merge_engine": "magic"})
    assert Table(locator=locator.table_locator).versions == []
