"""What the worked examples leave open: pending changes, history, legacy and broken records, what is due."""

import pickle

import pytest

from siltstone.documents import expand as history
from siltstone.documents.expand import expand, resolve
from siltstone.documents.intake import sanitized
from siltstone.documents.language import parse_delta
from siltstone.documents.read import to_document
from siltstone.documents.record import Change, CompactionRecord, Row, check_tags, new_change_id
from siltstone.errors import CorruptionError, InvalidInputError
from tests.unit.documents.naming import Stored, applied, change, ms, numbers, record, t

MIN_ID = "00000000-0000-1000-8000-000000000000"
CHANGES = [change(1, '{"a":1}'), change(2, '{..,"b":2}'), change(3, '{..,"b":2}')]


def test_a_document_that_was_never_written() -> None:
    row = Row([], (), "k", "t")
    found = resolve(row)
    assert (found.version, found.deleted, found.signature) == (0, True, "0" * 32)
    assert not expand(row, fct=ms(9), raw=ms(9)).has_work
    assert to_document(found, row) == {
        "~id": "k",
        "~table": "t",
        "~version": 0,
        "~signature": "0" * 32,
        "~deleted": True,
    }


def test_a_document_shows_its_content_then_what_the_store_knows() -> None:
    row = Row([change(1, '{"a":1,"~version":9,"~other":1}'), change(2, '{..,"a":1}')], (), "k", "t")
    assert to_document(resolve(row), row) == {
        "a": 1,
        "~other": 1,
        "~version": 2,
        "~id": "k",
        "~table": "t",
        "~signature": "81068aba87bc95b3469a5fb4f3db72ef",
        "~deleted": False,
        "~firstUpdateAt": "2014-08-25T14:35:01.000Z",
        "~lastUpdateAt": "2014-08-25T14:35:02.000Z",
        "~lastMutateAt": "2014-08-25T14:35:01.000Z",
    }


def test_a_change_is_pending_until_it_can_no_longer_be_missing() -> None:
    found = resolve(Row([change(5, "{}")], [record(9, CHANGES)]))
    assert [found.is_pending(t(at), fct=ms(1)) for at in (1, 2, 3, 4, 5, 6)] == [False, False, False, True, False, True]
    assert not found.is_pending(t(6), fct=ms(6))
    assert found.is_pending(t(6), fct=ms(6) - 1)
    assert not resolve(Row([])).is_pending(MIN_ID, fct=0)
    assert not resolve(Row([])).is_redundant(MIN_ID)
    assert not found.is_redundant(MIN_ID)


def test_a_change_is_due_twice_to_be_absorbed_and_to_be_deleted() -> None:
    row = Row(CHANGES)
    found = resolve(row)
    assert found.due_ms == ms(1) + 1
    written = expand(row, fct=ms(9), raw=ms(9), new_id=t(10))
    assert written.due_ms == ms(10) + 1
    row = applied(row, written)
    held = expand(row, fct=ms(20), raw=ms(20), ctl=ms(2), new_id=t(21))
    assert (numbers(held.delete), held.due_ms) == ([3], ms(10) + 1)
    done = expand(row, fct=ms(20), raw=ms(20), new_id=t(21))
    assert (numbers(done.delete), done.due_ms) == ([1, 2, 3], None)


def test_history_keeps_each_absorbed_change_with_the_content_after_it() -> None:
    row = Row([*CHANGES, change(4, "~", "x")], [record(0.5, [change(0, '{"z":1}', "y")])])
    found = expand(row, fct=ms(9), raw=ms(9), new_id=t(9), keep_history=True)
    assert [(each.version, each.delta, each.tags, each.content) for each in found.archived] == [
        (2, '{"a":1}', (), '{"a":1}'),
        (3, '{..,"b":2}', (), '{"a":1,"b":2}'),
        (4, '{..,"b":2}', (), '{"a":1,"b":2}'),
        (5, "~", ("x",), None),
    ]
    assert found.archived[0].version == 5 - len(found.archived) + 1
    assert expand(row, fct=ms(9), raw=ms(9), new_id=t(9)).archived == ()
    assert expand(row, fct=ms(1), raw=ms(9), new_id=t(9), keep_history=True).archived == ()


@pytest.mark.parametrize(
    ("limit", "bytes_"), [("MAX_CHANGE_BYTES", 10), ("MAX_ARCHIVE_BYTES", 20), ("MAX_ARCHIVE_BYTES", 60)]
)
def test_history_that_is_too_large_is_left_out_and_compaction_goes_on(
    limit: str, bytes_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, limit, bytes_)
    found = expand(Row(CHANGES), fct=ms(9), raw=ms(9), new_id=t(9), keep_history=True)
    assert found.archived == ()
    assert found.write is not None


LEGACY = CompactionRecord(t(5), 2, t(1), t(3), "141fc11a031ef87df66d6c8cb5790144", None, t(2), None, None)


def test_a_legacy_record_drops_what_its_race_left_and_keeps_the_last_mutation() -> None:
    row = Row([change(2, '{"lost":1}'), change(3, '{"key":1}'), change(6, "..")], [LEGACY])
    found = expand(row, fct=ms(20), raw=0, ctl=ms(100), new_id=t(21))
    assert (found.content, found.version, found.first_update_at) == ({"key": 1}, 4, t(1))
    assert found.write is not None
    assert (found.write.last_mutation, found.write.cutoff) == (t(2), t(6))
    assert numbers(found.delete) == [2, 3, 5, 6]
    early = expand(row, fct=ms(3), raw=0, new_id=t(21))
    assert (early.write, numbers(early.delete), early.version) == (None, [2], 4)


def test_a_legacy_record_whose_content_is_gone_is_damage() -> None:
    for changes in ([], [change(2, "{}")], [change(4, "{}")]):
        with pytest.raises(CorruptionError, match=f"{t(3)}, which is missing"):
            resolve(Row(changes, [LEGACY]))
    with pytest.raises(CorruptionError, match="not a constant"):
        resolve(Row([change(3, '{..,"a":1}')], [LEGACY]))


def test_records_that_cannot_be_started_from_are_damage() -> None:
    good = record(9, CHANGES)
    for bad in (
        good._replace(cutoff=None),
        good._replace(first=None),
        good._replace(cutoff_signature=None),
        good._replace(cutoff_signature="xyz"),
        good._replace(cutoff_signature="00"),
        good._replace(first=t(4)),
    ):
        with pytest.raises(CorruptionError, match=f"compaction record {t(9)}"):
            resolve(Row([], [bad]))


def test_a_record_of_no_deltas_never_counts() -> None:
    empty = CompactionRecord(t(8), 0, None, None, None, None, None, None, ())
    alone = Row(CHANGES, [empty])
    assert resolve(alone).version == 3
    found = expand(alone, fct=ms(7), raw=ms(7), new_id=t(9))
    assert found.write is not None
    assert found.write.count == 3
    beside = Stored(Row(CHANGES, [empty, record(9, CHANGES)]))
    assert numbers(beside.expand(10).delete) == [1, 2, 3, 8]


def test_a_record_without_content_mutation_tells_the_last_mutation() -> None:
    old = record(9, CHANGES)._replace(last_content_mutation=None, last_mutation=t(3), last_tags=None)
    found = resolve(Row([], [old]))
    assert (found.last_mutate_at, found.last_tags) == (t(3), ())


def test_a_change_that_is_stored_twice_counts_once() -> None:
    assert resolve(Row([*CHANGES, *CHANGES])).version == 3
    assert resolve(Row([change(1, "{}", "x", "y"), change(1, "{}", "y", "x")])).version == 1
    for other in (change(1, '{"a":2}'), change(1, '{"a":1}', "x")):
        with pytest.raises(InvalidInputError, match=f"{t(1)} has two deltas"):
            resolve(Row([*CHANGES, other]))


def test_a_record_is_not_written_over_something_else() -> None:
    for taken in (t(1), t(9)):
        with pytest.raises(InvalidInputError, match="already an id in the row; use a new one"):
            Stored(Row([*CHANGES, change(10, "{}")], [record(9, CHANGES)])).expand(11, new=1 if taken == t(1) else 9)


def test_a_bad_delta_in_a_row_is_named() -> None:
    with pytest.raises(InvalidInputError, match=rf"change {t(2)}: delta, line 1, column 2"):
        resolve(Row([change(1, "{}"), change(2, "{,}")]))


def test_rows_are_plain_tuples_and_all_of_it_pickles() -> None:
    row = Row([(new_change_id(), "{}", None), (new_change_id(), "{..}", ["x"])])
    found = expand(row, fct=1 << 50, raw=1 << 50)
    assert pickle.loads(pickle.dumps((row, found))) == (row, found)
    assert found.write is not None
    assert Change(*row.changes[0]).tags is None


def test_tags_are_few_and_short() -> None:
    assert check_tags(["b", "a", "b"]) == ("a", "b")
    for bad in (["a", "b", "c", "d"], ["x" * 9], [""], "abc"):
        with pytest.raises(InvalidInputError, match="tag"):
            check_tags(bad)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('{"a":1,"~id":2,"~mine":3}', '{"~mine":3,"a":1}'),
        ('{..,"~version":~,"~tags":[1],"b":{"~id":1}}', '{..,"b":{"~id":1}}'),
        ('{"~deleted":..}', "{}"),
        ('{..,"a":~,"~signature":..}?', '{..,"a":~}?'),
        (
            'if + then {"~table":1} elif ~ then {..,"~placement":1} else if 1 then {} end end',
            "if + then {} elif ~ then {..} elif 1 then {} end",
        ),
        ("~", "~"),
        ("..", ".."),
    ],
)
def test_reserved_keys_are_not_written(written: str, kept: str) -> None:
    assert str(sanitized(parse_delta(written))) == kept
    delta = parse_delta(kept)
    assert sanitized(delta) is delta


@pytest.mark.parametrize(
    "text", ["1", "null", '"a"', "[]", "(1)", "(..)", "if + then 1 end", "if + then ~ else () end"]
)
def test_a_document_is_a_map(text: str) -> None:
    with pytest.raises(InvalidInputError, match="a document is a map"):
        sanitized(parse_delta(text))
