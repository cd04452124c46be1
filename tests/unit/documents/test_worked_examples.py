"""The worked examples of the documents' protocol, by their numbers."""

import pytest

from siltstone.documents.expand import expand, resolve
from siltstone.documents.language import UNDEFINED, Value, parse_condition, parse_delta
from siltstone.documents.language.values import partition_of
from siltstone.documents.record import Change, CompactionRecord, Row, order_key
from siltstone.errors import InvalidInputError
from tests.unit.documents.naming import Stored, change, ms, numbers, record, t

BOB, CAROL, TED, ALICE, TOM = (f'{{"name":"{name}"}}' for name in ("Bob", "Carol", "Ted", "Alice", "Tom"))
APPROVED = '{..,"state":"APPROVED"}'


def test_the_first_change_id_is_the_one_of_the_examples() -> None:
    assert t(1) == "febb5880-2c64-11e4-8000-000000000000"


@pytest.mark.parametrize(
    ("last", "signature"),
    [
        (1, "f76470f617ced793cbbcf3d851e520bc"),
        (2, "81068aba87bc95b3469a5fb4f3db72ef"),
        (3, "141fc11a031ef87df66d6c8cb5790144"),
        (4, "1151718a130acf4d77ed6a39e28cc614"),
    ],
)
def test_signatures_hash_ids_and_nothing_else(last: int, signature: str) -> None:
    assert resolve(Row([change(each, "..") for each in range(1, last + 1)])).signature == signature
    assert resolve(Row([change(each, BOB) for each in range(1, last + 1)])).signature == signature


def test_the_signature_of_an_id_from_a_real_node() -> None:
    row = Row([Change("9e278d70-1e09-11e6-a07b-26a39ee5ccb6", BOB)])
    assert resolve(row).signature == "c7fb73f63ce47ec422bfccf2aaa37503"


def test_documents_spread_over_partitions_as_they_always_did() -> None:
    assert [partition_of("mytable", f"doc{each}", 64) for each in range(6)] == [22, 44, 55, 43, 44, 26]


@pytest.mark.parametrize(
    ("name", "text", "canonical"),
    [
        ("X1", '{..,"key":{}?}?', '{..,"key":~}?'),
        ("X1", '{..,"key":{}}?', '{..,"key":{}}'),
        ("X2a", '{"rating":~}', "{}"),
        ("X2b", "(..,~1, ~2, 3)", "(..,3,~1,~2)"),
        ("X2c", "{}?", "~"),
        ("X2d", '{"a":(2,1)}', '{"a":[1,2]}'),
        (
            "X3a",
            '(..,2.5,1,"do",123123123123123123,"re",false,null,"mi",5,{"a":1},true,[5,7,9])',
            '(..,null,false,true,[5,7,9],{"a":1},1,2.5,5,123123123123123123,"do","mi","re")',
        ),
        ("X3b", '{"b":1,"~x":2,"B":3}', '{"~x":2,"B":3,"b":1}'),
    ],
)
def test_canonical_text(name: str, text: str, canonical: str) -> None:
    assert str(parse_delta(text)) == canonical


@pytest.mark.parametrize(
    "text", ['[..,"N"]', '{"x":1,,"y":2}', "(..,1,~1)", '(..,{..,"f":1})', "if {}? then ~ end"], ids=str
)
def test_x4_what_is_no_delta(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"line 1, column \d+"):
        parse_delta(text)


def test_x4_no_condition_can_ask_for_the_version() -> None:
    with pytest.raises(InvalidInputError, match=r"line 1, column 1: .*~version.*use one of ~id"):
        parse_condition('intrinsic("~version":2)')


@pytest.mark.parametrize(
    ("name", "delta", "old", "new"),
    [
        ("X5", '{..,"state":"A"}', UNDEFINED, {"state": "A"}),
        ("X5", '{..,"state":"A"}', "str", {"state": "A"}),
        ("X6", '{..,"avatar":if + then {..,"s":1} end}', {"name": "Bob"}, {"name": "Bob"}),
        ("X7", '{..,"s":(..,null,~"Moe")}', {"s": ["Larry", "Curly", "Moe"]}, {"s": [None, "Curly", "Larry"]}),
        (
            "X8",
            '{"version":..,"private":{..,"uxid":"789"}}',
            {"name": "Bob", "version": 5, "private": {"uid": "bob", "uxid": "123"}},
            {"version": 5, "private": {"uid": "bob", "uxid": "789"}},
        ),
        ("X9", "(..,~5)?", [5], UNDEFINED),
        ("X9", '{..,"y":if + then 3 end}?', UNDEFINED, UNDEFINED),
        ("X9", '{"key":if + then 5 end}', {"xyz": 1}, {}),
        ("X10", 'if {..,"v":le(5)} then {"v":6} end', {"v": 5.0}, {"v": 6}),
        ("X10", 'if {..,"v":5} then {"v":6} end', {"v": 5.0}, {"v": 5.0}),
    ],
)
def test_evaluation(name: str, delta: str, old: Value, new: Value) -> None:
    assert parse_delta(delta).apply(old) == new


def test_x11_redundant_is_what_changes_nothing() -> None:
    texts = [BOB, APPROVED, APPROVED, BOB, TOM, TOM, TOM]
    stored = Stored(Row([change(at, text) for at, text in enumerate(texts, 1)]))
    before = stored.compact(0)
    assert (before.version, before.last_mutate_at, before.write) == (7, t(5), None)
    assert numbers(before.redundant) == [3, 6, 7]
    after = stored.compact(100, new=200)
    assert after.write is not None
    assert numbers(after.redundant) == [6, 7]
    assert numbers(stored.expand(0).redundant) == [6, 7]


def test_x12_other_tags_make_a_change_count() -> None:
    row = Row(
        [
            change(1, '{"name":"Bob","test":["what"]}'),
            change(2, APPROVED, "add"),
            change(3, APPROVED),
            change(4, BOB),
            change(5, TOM),
            change(6, TOM, "resubmit"),
            change(7, TOM, "resubmit"),
            *[change(at, '{..,"name":"Tom"}', "etl") for at in (8, 9, 10)],
        ]
    )
    stored = Stored(row)
    assert numbers(stored.expand(0).redundant) == [7, 9, 10]
    found = stored.expand(100)
    made = found.write
    assert made is not None
    assert (made.count, made.first, made.cutoff) == (10, t(1), t(10))
    assert (made.last_content_mutation, made.last_mutation, made.last_tags) == (t(5), t(8), ("etl",))
    assert numbers(found.redundant) == [9, 10]


def test_x13_updates_mutations_and_changes_of_tags_are_told_apart() -> None:
    row = Row(
        [
            change(1, '{..,"key":"value0"}'),
            change(2, '{..,"key":"value1"}'),
            change(3, ".."),
            change(4, "..", "tag1"),
            change(5, "..", "tag1"),
        ]
    )
    found = Stored(row).expand(100)
    made = found.write
    assert made is not None
    assert (made.count, made.first, made.cutoff) == (5, t(1), t(5))
    assert (made.last_content_mutation, made.last_mutation, made.last_tags) == (t(2), t(4), ("tag1",))
    assert (found.last_update_at, found.last_mutate_at) == (t(5), t(2))


def test_x14_a_record_remembers_the_last_tags() -> None:
    tagged = change(1, '{"a":1}', "x")
    row = Row([tagged, change(20, "..")], [record(10, [tagged])])
    assert resolve(row).redundant == ()
    forgetful = row._replace(records=[record(10, [tagged])._replace(last_tags=())])
    assert numbers(resolve(forgetful).redundant) == [20]


def test_x15_changes_of_two_places_merge_by_time() -> None:
    first, status, name = change(1, BOB), change(2, '{..,"status":"APPROVED"}'), change(3, TOM)
    assert resolve(Row([first, status])).version == resolve(Row([first, name])).version == 2
    merged = resolve(Row([name, status, first]))
    assert (merged.version, merged.content) == (3, {"name": "Tom"})


@pytest.mark.parametrize("delta", ["..", "~"])
def test_x15b_a_first_delta_that_leaves_nothing(delta: str) -> None:
    stored = Stored(Row([change(1, delta)]))
    found = stored.compact(0)
    assert (found.deleted, found.version, found.last_mutation) == (True, 1, None)
    assert found.first_update_at == found.last_update_at == found.last_mutate_at == t(1)
    assert numbers(found.redundant) == [1]
    assert stored.compact(50, new=60).redundant == ()
    assert not stored.expand(0).is_redundant(t(1))


def test_x15c_another_kind_of_number_is_a_mutation() -> None:
    found = resolve(Row([change(1, '{"a":1}'), change(2, '{"a":1.0}')]))
    assert (found.last_mutate_at, found.redundant) == (t(2), ())


def test_x16_to_x20_the_life_of_a_row() -> None:
    stored = Stored(Row([change(10, BOB), change(20, CAROL), change(30, TED), change(40, ALICE)]))

    def shows_alice(found_version: int, content: Value) -> bool:
        return (found_version, content) == (4, {"name": "Alice"})

    x16 = stored.compact(0)
    assert not x16.has_work
    assert shows_alice(x16.version, x16.content)

    x17 = stored.compact(25, new=100)
    assert x17.write == CompactionRecord(
        t(100), 2, t(10), t(20), resolve(Row(stored.row.changes[:2])).signature, t(20), t(20), CAROL, ()
    )
    assert x17.delete == ()
    assert shows_alice(x17.version, x17.content)

    assert not stored.compact(60, new=105).has_work  # X18

    x19 = stored.compact(101, new=110)
    assert x19.write is not None
    assert (x19.write.count, x19.write.first, x19.write.cutoff) == (4, t(10), t(40))
    assert (x19.write.compacted_delta, x19.write.last_mutation) == (ALICE, t(40))
    assert numbers(x19.delete) == [10, 20]
    assert stored.ids() == [30, 40, 100, 110]

    x20 = stored.compact(111, new=120)
    assert x20.write is None
    assert numbers(x20.delete) == [30, 40, 100]
    assert stored.ids() == [110]
    assert shows_alice(x20.version, x20.content)
    assert not stored.compact(111, new=121).has_work


def test_x21_what_was_redundant_after_the_last_mutation_stays_so() -> None:
    stored = Stored(Row([change(10, BOB), *[change(at, TED) for at in (20, 30, 40, 50, 60)]]))
    first = stored.compact(45, new=100)
    assert first.write is not None
    assert (first.write.count, first.write.cutoff, first.write.last_mutation) == (4, t(40), t(20))
    assert numbers(first.redundant) == [30, 40, 50, 60]
    second = stored.compact(102, new=110)
    assert second.write is not None
    assert (second.write.count, second.write.cutoff, second.write.last_mutation) == (6, t(60), t(20))
    assert numbers(second.delete) == [10, 20, 30, 40]
    assert numbers(second.redundant) == [30, 40, 50, 60]
    later = stored.expand(102)
    assert [later.is_redundant(t(at)) for at in (10, 20, 30, 40, 50, 60)] == [False] * 2 + [True] * 4


X22_CHANGES = [
    change(1, BOB),
    change(2, '{..,"status":"PENDING"}'),
    change(3, TOM),
    change(4, '{..,"status":"APPROVED"}'),
]


def test_x22_of_racing_records_the_one_of_more_deltas_counts() -> None:
    row = Row(X22_CHANGES, [record(10, X22_CHANGES), record(11, X22_CHANGES, 3)])
    early = Stored(row).expand(5)
    assert (early.version, early.has_work) == (4, False)
    assert early.content == {"name": "Tom", "status": "APPROVED"}
    late = Stored(row).expand(12)
    assert late.base is not None
    assert (late.base.change_id, late.write) == (t(10), None)
    assert numbers(late.delete) == [1, 2, 3, 4, 11]


def test_x23_of_records_of_as_many_deltas_the_latest_counts() -> None:
    earlier = [each._replace(change_id=t(at)) for at, each in zip((-4, -3, -2, -1), X22_CHANGES, strict=True)]
    records = [record(1, earlier), record(2, earlier), record(3, earlier, 3)]
    stored = Stored(Row([], records))
    assert not stored.expand(1.5).has_work
    found = stored.expand(2.5)
    assert found.base is not None
    assert found.base.change_id == t(2)
    assert numbers(found.delete) == [1, 3]


def test_x24_a_record_is_kept_until_the_one_on_top_of_it_is_old() -> None:
    old = [change(1, '{"a":1}'), change(2, '{..,"b":2}')]
    recent = [change(6, '{..,"c":3}'), change(7, '{..,"d":4}'), change(8, '{..,"e":5}')]
    base = record(5, old)
    one = Stored(Row([*old, *recent], [base]))
    written = one.compact(6.5, new=10)
    assert written.write is not None
    assert (written.write.count, written.write.cutoff) == (3, t(6))
    assert numbers(written.delete) == [1, 2]
    # The other place has seen the deletes, but not the record.
    other = Stored(Row(recent, [base])).expand(9, new=11)
    assert other.write is not None
    assert (other.write.count, other.write.cutoff) == (5, t(8))
    merged = Stored(Row(one.row.changes, [*one.row.records, other.write])).expand(12)
    assert (merged.version, merged.content) == (5, {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5})
    assert numbers(merged.delete) == [5, 6, 7, 8, 10]


@pytest.mark.parametrize(("name", "ctl", "deleted"), [("X25", 30, []), ("X26", -1, [0, 10, 20]), ("X27", 15, [20])])
def test_what_a_running_snapshot_needs_is_not_deleted(name: str, ctl: int, deleted: list[int]) -> None:
    changes = [change(0, '{"key1":1}'), change(10, '{"key2":2}'), change(20, '{..,"key3":3}')]
    found = Stored(Row(changes, [record(35, changes)])).expand(40, ctl=ctl)
    assert numbers(found.delete) == deleted
    assert found.has_work == bool(deleted)


def test_x28_a_deleted_document_that_is_written_again_goes_on_counting() -> None:
    changes = [change(1, '{"a":1}'), change(2, "~")]
    made = record(10, changes)
    assert (made.count, made.first, made.cutoff, made.compacted_delta) == (2, t(1), t(2), "~")
    found = resolve(Row([change(12, '{..,"b":2}')], [made]))
    assert (found.content, found.version, found.first_update_at) == ({"b": 2}, 3, t(1))


def test_x29_a_condition_on_the_signature_holds_before_and_after_compaction() -> None:
    old = [change(1, '{"a":1}'), change(2, '{..,"b":2}')]
    asks = change(3, 'if intrinsic("~signature":"81068aba87bc95b3469a5fb4f3db72ef") then {..,"ok":true} end')
    for row in (Row([*old, asks]), Row([*old, asks], [record(10, old)]), Row([asks], [record(10, old)])):
        assert resolve(row).content == {"a": 1, "b": 2, "ok": True}


def test_x30_a_delta_that_comes_late_is_ignored_and_deleted() -> None:
    row = Row([change(2, '{..,"late":1}'), change(6, '{..,"x":1}')], [record(9, X22_CHANGES)])
    early = Stored(row).expand(5)
    assert early.content == {"name": "Tom", "status": "APPROVED", "x": 1}
    assert (early.version, early.has_work) == (5, False)
    late = Stored(row).expand(9.5, new=15)
    assert late.write is not None
    assert (late.write.count, late.write.cutoff) == (5, t(6))
    assert numbers(late.delete) == [2]


def test_x31_deltas_and_records_have_clocks_of_their_own() -> None:
    old = change(1, '{"a":1}')
    found = Stored(Row([old, change(8, '{..,"b":2}')], [record(9, [old])])).expand(5, raw=10)
    assert (numbers(found.delete), found.write, found.version) == ([1], None, 2)


def test_x32_a_legacy_record_becomes_a_record() -> None:
    legacy = CompactionRecord(t(5), 2, t(1), t(3), "141fc11a031ef87df66d6c8cb5790144", None, t(3), None, ())
    stored = Stored(Row([change(3, '{"key":"value"}'), change(6, '{..,"key2":"change"}')], [legacy]))
    found = stored.compact(20, new=21)
    assert (found.version, found.content) == (4, {"key": "value", "key2": "change"})
    assert found.write is not None
    assert (found.write.count, found.write.first, found.write.cutoff) == (4, t(1), t(6))
    assert numbers(found.delete) == [3, 5, 6]
    alone = stored.expand(0)
    assert stored.ids() == [21]
    assert (alone.version, alone.content, alone.signature) == (found.version, found.content, found.signature)


def test_ids_are_compared_by_time_and_times_by_milliseconds() -> None:
    assert sorted([t(4), t(3), t(1)], key=order_key) == [t(1), t(3), t(4)]
    row = Row([change(1, BOB)])
    assert expand(row, fct=ms(1), raw=ms(1), new_id=t(9)).write is None
    assert expand(row, fct=ms(1) + 1, raw=ms(1), new_id=t(9)).write is not None
