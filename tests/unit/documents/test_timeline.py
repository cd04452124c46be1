"""What is known of a document's past: its timeline with contents, and the history that a table keeps, for how long."""

import contextlib
import datetime
from dataclasses import replace

import pytest

import siltstone
from siltstone.documents.expand import resolve
from siltstone.documents.language.values import UNDEFINED, Json, Value
from siltstone.documents.record import Change, CompactionRecord, Row, order_key
from siltstone.documents.schema import StoredRow
from siltstone.documents.timeline import Difference, TimelineEvent, differences, timeline_of
from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.testing import Killed, faults
from tests.unit.documents.tables import ROOMY, Written, at, change_id, hold, kinds, make, rounds

DAY = 24 * 3600


def check_timeline(written: Written, key: str, *, unknown: int = 0) -> list[TimelineEvent]:
    """Check all deltas of a document's timeline but the first few, which are not known any more."""
    events = [event for event in written.docs.timeline(key) if event.kind == "delta"]
    changes = sorted(written.changes[key], key=lambda change: order_key(change.change_id))
    states = [resolve(Row(changes[:count], (), key, written.docs.name)) for count in range(1, len(changes) + 1)]
    assert len(events) == len(changes) - unknown
    before: Value = UNDEFINED
    for number, (change, state) in enumerate(zip(changes, states, strict=True)):
        if number >= unknown:
            event = events[number - unknown]
            content = None if state.deleted else state.content
            assert (event.change_id, event.version, event.content) == (change.change_id, state.version, content)
            assert event.is_redundant == (change.change_id in state.redundant)
            if number > unknown or not unknown:
                assert event.differences == tuple(differences(before, state.content))
        before = state.content
    return events


def written_to(root: str, *, keep_history: bool = False) -> Written:
    written = make(root, keep_history=keep_history)
    written.write(1, "r1", '{"a":1,"m":{"x":1}}', "new")
    written.write(2, "r1", '{..,"a":1,"m":{..,"y":[1]}}')
    written.write(3, "r1", '{..,"a":1}')
    written.write(4, "r1", "~")
    return written


def test_contents_differ_key_by_key() -> None:
    before: Json = {"a": 1, "m": {"x": 1, "l": [1]}, "gone": None}
    after: Json = {"a": 1.0, "m": {"l": [2], "x": 1}, "new": None}
    assert differences(before, after) == [
        Difference(("a",), "changed", 1, 1.0),
        Difference(("m", "l"), "changed", [1], [2]),
        Difference(("gone",), "removed", None, None),
        Difference(("new",), "added", None, None),
    ]
    assert differences(UNDEFINED, {"a": {}}) == [Difference(("a",), "added", None, {})]
    assert differences({"a": {}}, UNDEFINED) == [Difference(("a",), "removed", {}, None)]
    assert differences({"a": {"b": 1}}, {"a": 1}) == [Difference(("a",), "changed", {"b": 1}, 1)]
    assert differences(UNDEFINED, UNDEFINED) == []


class TestTimeline:
    def test_each_delta_has_what_it_made_of_the_document_wherever_it_stands(self, local_root: str) -> None:
        written = written_to(local_root, keep_history=True)
        states = []
        for second in (5, 20, 40):
            written.write(second, "r1", f'{{..,"at":{second}}}')
            written.compact(second + 11)
            states.append([event.state for event in check_timeline(written, "r1")])
        written.write(60, "r1", '{"back":true}')
        states.append([event.state for event in check_timeline(written, "r1")])
        assert states == [
            ["compacted"] * 5,
            ["history"] * 5 + ["compacted"],
            ["history"] * 6 + ["compacted"],
            ["history"] * 6 + ["compacted", "waiting"],
        ]

    def test_what_a_table_without_history_has_deleted_is_missing_and_the_rest_is_known(self, local_root: str) -> None:
        written = written_to(local_root)
        written.compact(20)
        check_timeline(written, "r1")
        written.write(21, "r1", '{"b":1}')
        written.compact(40)
        (event,) = check_timeline(written, "r1", unknown=4)
        assert (event.version, event.differences) == (5, None)
        written.compact(60)
        check_timeline(written, "r1", unknown=5)

    def test_deltas_that_a_hold_keeps_beside_a_gap_are_shown_without_content(self, written: Written) -> None:
        for second in (1, 11, 21):
            written.write(second, "r1", f'{{..,"n{second}":1}}')
        written.compact(40)
        hold(written.docs, 11, 7200)
        written.compact(60)
        events = written.docs.timeline("r1")
        assert [(event.kind, event.version) for event in events] == [
            ("delta", None),
            ("delta", None),
            ("compaction", 3),
        ]
        assert {event.content is None for event in events[:2]} == {True}

    def test_an_imported_legacy_record_begins_with_the_delta_at_its_cutoff(self) -> None:
        record = CompactionRecord(change_id(5), 2, change_id(1), change_id(3), "ab" * 16, None, None, None)
        row = Row([Change(change_id(3), '{"n":1}'), Change(change_id(6), '{..,"m":2}')], [record], "old", "t")
        first, legacy, last = timeline_of(StoredRow(row, [0, 1], [2], [], []), resolve(row))
        assert (first.version, first.content, first.state) == (3, {"n": 1}, "compacted")
        assert (legacy.kind, legacy.version, legacy.state) == ("compaction", None, "in effect")
        assert (last.version, last.content, last.state) == (4, {"n": 1, "m": 2}, "waiting")
        assert last.differences == (Difference(("m",), "added", None, 2),)


class TestHistoryRetention:
    def test_history_is_kept_for_its_retention_and_dropped_by_a_round_after_it(self, local_root: str) -> None:
        written = make(local_root, keep_history=datetime.timedelta(days=1))
        assert written.docs.table.properties["history_retention_seconds"] == "86400"
        written.write(1, "r1", '{"n":1}')
        written.write(1, "r2", '{"n":1}')
        written.compact(20)
        written.compact(40)
        written.write(5000, "r1", '{..,"n":2}')
        written.compact(5020)
        written.compact(5040)
        assert rounds(written.compact(19 + DAY)) == [], "nothing is past its retention"
        written.check_history()
        assert rounds(written.compact(20 + DAY)) == [], (
            "it is not due at once, so that a bucket is not read again and again"
        )
        assert rounds(written.compact(30 + DAY + DAY // 10)) == [{"added": 0, "deleted": 3}]
        assert written.docs.history("r1") == written.docs.history("r2") == []
        assert kinds(written.docs, "r1") == "C"
        written.check()
        assert rounds(written.compact(2 * DAY)) == []
        assert written.docs.fsck(deep=True) == []

    def test_a_round_that_reads_a_bucket_anyway_drops_what_is_past_its_retention_and_nothing_else(
        self, local_root: str
    ) -> None:
        written = make(local_root, keep_history=datetime.timedelta(seconds=100))
        for second in (1, 61):
            written.write(second, "r1", f'{{..,"n":{second}}}')
            written.compact(second + 19)
            written.compact(second + 39)
        written.docs.table.alter(properties={"keep_history": "false"})
        written.compact(121, replace(ROOMY, full=True))
        written.docs.table.alter(properties={"keep_history": "true"})
        assert [entry.version for entry in written.docs.history("r1")] == [2]

    def test_history_that_was_kept_forever_gets_a_retention_by_a_full_round(self, local_root: str) -> None:
        written = make(local_root, keep_history=True)
        written.write(1, "r1", '{"n":1}')
        written.compact(20)
        written.compact(40)
        written.docs.table.alter(properties={"history_retention_seconds": "50"})
        assert rounds(written.compact(100)) == []
        assert rounds(written.compact(110, replace(ROOMY, full=True))) == [{"added": 0, "deleted": 1}]
        assert written.docs.history("r1") == []

    def test_a_round_that_is_killed_anywhere_keeps_history_with_records_or_neither(self, local_root: str) -> None:
        for at_call in range(1, 200, 5):
            written = make(f"memory://{local_root}/{at_call}", keep_history=datetime.timedelta(seconds=50))
            written.write(1, "r1", '{"n":1}')
            written.compact(20)
            written.write(101, "r1", '{..,"n":2}')
            ignored = contextlib.suppress(SiltstoneError, Killed)
            with faults(written.docs.lake.root, at_call=at_call, kind="kill_after") as store, ignored:
                written.compact(120)
            written.check()
            versions = [entry.version for entry in written.docs.history("r1")]
            assert versions in ([1, 2], [2])
            written.compact(120)
            assert [entry.version for entry in written.docs.history("r1")] == [2], "both in one commit"
            if store.calls < at_call:
                return
        pytest.fail("a round makes two hundred calls")


class TestHistoryOfATable:
    def test_the_history_of_all_documents_is_a_table_of_changes(self, local_root: str) -> None:
        written = written_to(local_root, keep_history=True)
        written.compact(20)
        written.compact(40)
        written.write(41, "r2", '{"n":1}', "x")
        rows = written.docs.to_dataset(history=True).scanner().to_table().sort_by("changed_at").to_pylist()
        assert [(row["key"], row["version"], row["redundant"], row["tags"]) for row in rows] == [
            ("r1", 1, False, ["new"]),
            ("r1", 2, False, []),
            ("r1", 3, True, []),
            ("r1", 4, False, []),
            ("r2", 1, False, ["x"]),
        ]
        assert [row["compacted_at"] is None for row in rows] == [False] * 4 + [True]
        assert rows[3]["content"] is None
        assert rows[0]["changed_at"] == datetime.datetime.fromtimestamp(at(1) / 1000, datetime.UTC)
        query = written.docs.lake.sql(
            'select key, count(*) as changes from shop."reviews$history" where not redundant group by key order by key'
        )
        assert query.to_arrow().to_pylist() == [{"key": "r1", "changes": 3}, {"key": "r2", "changes": 1}]

    def test_a_table_without_history_says_so(self, written: Written) -> None:
        with pytest.raises(InvalidInputError, match="keeps no history"):
            written.docs.to_dataset(history=True)
        lake = written.docs.lake
        lake.create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
        with pytest.raises(InvalidInputError, match="is a table of rows"):
            lake.sql('select * from shop."orders$history"')

    def test_all_files_that_have_anything_of_a_document_are_known(self, local_root: str) -> None:
        written = written_to(local_root, keep_history=True)
        docs: siltstone.DocumentTable = written.docs
        deltas = {entry.uri for delta in docs.table.deltas() for entry in delta.manifest.entries}
        written.write(5, "r2", '{"n":1}')
        assert set(docs.files_of("r1")) == deltas
        written.compact(20)
        written.compact(40)
        of_rounds = {file.uri for round_ in docs.rounds() for bucket in round_.buckets for file in bucket.files}
        assert set(docs.files_of("r1")) == deltas | of_rounds
        assert docs.files_of("nobody") == []


@pytest.fixture
def written(local_root: str) -> Written:
    return make(local_root)
