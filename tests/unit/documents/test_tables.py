"""Tables of documents: what is written, read and compacted, in this process."""

import datetime
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.catalog import main as catalog
from siltstone.documents import recent
from siltstone.documents.commit import Staged, commit_changes, earliest_of
from siltstone.documents.expand import expand
from siltstone.documents.intake import record_fields
from siltstone.documents.language import Condition, Delta
from siltstone.documents.merge import run_here
from siltstone.documents.record import Change, CompactionRecord, Row, new_change_id, to_ms
from siltstone.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.commit import forget_logs
from siltstone.model import ManifestEntry
from siltstone.rows import merge
from siltstone.rows.job import BucketResult, RoundJob
from siltstone.service.lake_tables import LakeTables
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog
from siltstone.storage.parquet import read_data_file
from siltstone.table.completion import HOLD_PREFIX
from tests.unit.documents.naming import change as old
from tests.unit.documents.naming import record, t
from tests.unit.documents.tables import (
    NAME,
    ROOMY,
    Written,
    at,
    change_id,
    compact,
    completion_of,
    hold,
    kinds,
    make,
    request_of,
    rounds,
    source_of,
)
from tests.unit.service.cycling import trim_one

LEGACY = CompactionRecord(t(5), 2, t(1), t(3), "141fc11a031ef87df66d6c8cb5790144", None, t(2), None, None)


@pytest.fixture
def written(local_root: str) -> Written:
    return make(local_root)


@pytest.fixture
def docs(written: Written) -> siltstone.DocumentTable:
    return written.docs


class TestWriting:
    def test_a_document_is_the_sum_of_its_deltas_with_what_is_known_about_it(
        self, docs: siltstone.DocumentTable
    ) -> None:
        first = docs.update("r1", {"stars": 4, "text": "good"})
        last = docs.update("r1", Delta.map().put("stars", 5).remove("text").build(), tags=["edit"])
        document = docs.get("r1")
        assert {name: each for name, each in document.items() if not name.startswith("~")} == {"stars": 5}
        assert (document["~id"], document["~table"], document["~version"]) == ("r1", NAME, 2)
        assert document["~deleted"] is False
        assert to_ms(first) <= to_ms(last)
        assert str(document["~lastUpdateAt"]).endswith("Z")

    def test_a_document_that_was_never_written_has_version_0(self, docs: siltstone.DocumentTable) -> None:
        assert docs.get("nobody") == {
            "~id": "nobody",
            "~table": NAME,
            "~version": 0,
            "~signature": "0" * 32,
            "~deleted": True,
        }

    def test_many_updates_come_as_tuples_mappings_and_tables_in_one_commit_each(
        self, docs: siltstone.DocumentTable
    ) -> None:
        assert docs.update_many([("a", {"n": 1}), {"key": "b", "delta": '{"n":2}', "tags": ["x"]}]) == 2
        assert docs.update_many(pa.table({"key": ["a", "c"], "delta": ['{..,"m":1}', "~"]})) == 2
        assert docs.update_many([]) == 0
        assert len(docs.table.deltas()) == 2
        a, b, c = docs.get_many(["a", "b", "c"])
        assert (a["n"], a["m"], b["n"], c["~deleted"]) == (1, 1, 2, True)

    @pytest.mark.parametrize(
        ("update", "message"),
        [
            (("k", '{"a":}'), "update 2, key 'k'"),
            (("k", "[1]"), "a document is a map"),
            (("", {}), "is not a document key"),
            ((7, {}), "is not a document key"),
            (("k", {}, ["a", "b", "c", "d"]), "4 tags are too many"),
            (("k", {}, (), "17"), "is not a change id"),
            (("k", 17), "is not a delta"),
            ({"key": "k", "detla": "~"}, "unknown field 'detla'; use"),
            (("k",), r"is not \(key, delta\)"),
            ("key", r"is not \(key, delta\)"),
        ],
    )
    def test_a_bad_update_is_named_and_nothing_is_written(
        self, docs: siltstone.DocumentTable, update: Any, message: str
    ) -> None:
        with pytest.raises(InvalidInputError, match=message):
            docs.update_many([("fine", {}), update])
        assert docs.table.deltas() == []

    def test_reserved_keys_are_left_out(self, docs: siltstone.DocumentTable) -> None:
        docs.update("r1", docs.get("r1") | {"stars": 1})
        assert docs.get("r1")["~version"] == 1
        assert docs.timeline("r1")[0].delta == '{"stars":1}'

    def test_the_same_change_twice_counts_once(self, written: Written) -> None:
        docs = written.docs
        for _ in range(2):
            docs.update("r1", {"n": 1}, ("x",), change_id(1))
        again = ("r1", '{"n":1}', ("x",), change_id(1))
        assert docs.update_many([again, again, ("r1", '{..,"m":1}'), ("r2", '{"n":1}', (), change_id(1))]) == 2
        assert docs.update_many([again]) == 0
        assert [delta.manifest.record_count for delta in docs.table.deltas()] == [1, 2]
        assert docs.get("r1")["~version"] == 2

    def test_a_change_that_two_writers_commit_at_once_counts_once(self, written: Written) -> None:
        written.write(1, "r1", '{"n":1}', "x")
        root = written.docs.lake.root
        rows = pa.table({"key": ["r1"], "change_id": [change_id(1)], "delta": ['{"n":2}'], "tags": [["x"]]})
        commit_changes(
            NAME,
            lambda stream: Staged(storage.stage_deltas(rows, stream, type="append", root=root), None, None),
            root=root,
        )
        written.check()
        (only,) = written.compact(30).rounds
        assert (only.accounting.delta_rows, only.accounting.duplicate_rows) == (2, 1)

    def test_another_delta_under_the_same_change_id_is_refused_however_it_is_written(self, written: Written) -> None:
        docs = written.docs
        written.write(1, "r1", '{"n":1}')
        written.write(19, "r1", '{"n":2}')

        def check() -> None:
            deltas = docs.table.deltas()
            with pytest.raises(AlreadyExistsError, match="never changes"):
                docs.update("r1", {"n": 3}, (), change_id(19))
            with pytest.raises(
                AlreadyExistsError, match=rf"change {change_id(19)} of document 'r1' is .*never changes"
            ):
                docs.update_many([("r2", {}), ("r1", {"n": 3}, (), change_id(19))])
            with pytest.raises(AlreadyExistsError, match=r'is \{"n":2\}, and never changes; give \{"n":2\} #x an id'):
                docs.update_many([("r1", {"n": 2}, ("x",), change_id(19))])
            with pytest.raises(AlreadyExistsError, match=r'document .r2. is \{"n":1\}, and never changes'):
                docs.update_many([("r2", {"n": 1}, (), change_id(50)), ("r2", {"n": 2}, (), change_id(50))])
            many = [(f"k{number}", "{}", (), change_id(50)) for number in range(1100)]
            with pytest.raises(AlreadyExistsError, match=f"change {change_id(19)} of document 'r1'"):
                docs.update_many([*many, ("r1", {"n": 3}, (), change_id(19))])
            assert docs.table.deltas() == deltas, "nothing is written"

        check()
        written.compact(20)
        assert kinds(docs, "r1") == "ddC", "the later delta is carried along"
        check()
        many = [(f"k{number}", "{}", (), change_id(50)) for number in range(1100)]
        assert docs.update_many([*many, ("r1", {"n": 2}, (), change_id(19))]) == len(many)

    def test_changes_older_than_the_delay_are_refused(self, docs: siltstone.DocumentTable) -> None:
        with pytest.raises(InvalidInputError, match=r"is complete up to .*: changes may be 10000 ms old at most"):
            docs.update("r1", {"n": 1}, (), change_id(-3600 - 60))

    def test_changes_at_the_full_consistency_time_or_before_are_refused(self, written: Written) -> None:
        written.write(1, "r1", '{"n":1}')
        compact(written.docs, 30)
        for second in (19, 20):
            with pytest.raises(InvalidInputError, match="is complete up to"):
                written.docs.update("r1", {"n": 2}, (), change_id(second))
        written.write(20.001, "r1", '{"n":2}')
        written.check()

    def test_a_change_that_is_committed_while_its_time_is_closed_is_refused_not_lost(self, written: Written) -> None:
        docs, root = written.docs, written.docs.lake.root
        written.write(1, "r1", '{"n":1}')
        passes: list[int] = []

        def stage(stream: StreamLog) -> Any:
            rows = pa.table({"key": ["r1"], "change_id": [change_id(2)], "delta": ['{"n":2}'], "tags": [["x"]]})
            staged = storage.stage_deltas(rows, stream, type="append", root=root)
            if not passes:
                compact(docs, 30)
            passes.append(1)
            return Staged(staged, earliest_of(rows.column("change_id")), None)

        with pytest.raises(InvalidInputError, match="is complete up to"):
            commit_changes(NAME, stage, root=root)
        assert len(passes) == 2
        written.check()

    def test_tables_of_rows_and_of_documents_are_not_mistaken_for_each_other(
        self, docs: siltstone.DocumentTable
    ) -> None:
        lake = docs.lake
        lake.create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
        with pytest.raises(InvalidInputError, match="is a table of rows, not of documents"):
            lake.document_table("shop.orders")
        with pytest.raises(InvalidInputError, match="is a table of documents"):
            lake.table(NAME).write(pa.table({"key": ["a"]}))
        with pytest.raises(NotFoundError):
            lake.document_table("shop.nothing")
        assert lake.document_table(NAME).full_consistency_delay == datetime.timedelta(seconds=10)
        with pytest.raises(InvalidInputError, match="full consistency delay of -1000 ms"):
            lake.create_document_table("shop.other", full_consistency_delay=-1)

    def test_after_a_rename_documents_and_conditions_still_see_the_name_that_the_table_was_created_under(
        self, written: Written
    ) -> None:
        delta = 'if intrinsic("~table":"shop.reviews") then {..,"mine":true} else {..,"mine":false} end'
        written.write(1, "r1", delta)
        lake = written.docs.lake
        written.docs.table.rename("shop.ratings")
        written.docs = lake.document_table("shop.ratings")
        written.write(2, "r1", delta)
        for second in (20, 40):
            document = written.docs.get("r1")
            assert (document["mine"], document["~table"]) == (True, NAME)
            written.compact(second)

    def test_uuids_are_taken_as_change_ids_as_keys_and_as_values(self, docs: siltstone.DocumentTable) -> None:
        key, change = uuid.uuid4(), uuid.UUID(change_id(1))
        assert docs.update(key, {"id": key}, change_id=change) == str(change)
        assert docs.update_many([(key, {"id": key}, (), change)]) == 0
        ids = pa.array([change.bytes], pa.uuid())
        assert docs.update_many(pa.table({"key": [str(key)], "delta": [f'{{"id":"{key}"}}'], "change_id": ids})) == 0
        assert (docs.get(key)["id"], docs.get(str(key))["~version"]) == (str(key), 1)
        assert docs.get_for_change(key, change).state == "resolved"
        assert [event.change_id for event in docs.timeline(key)] == [str(change)]
        with pytest.raises(InvalidInputError, match="is not a change id"):
            docs.update(key, {}, change_id=uuid.uuid4())

    def test_builders_are_taken_as_they_are(self, docs: siltstone.DocumentTable) -> None:
        docs.update("r1", Delta.map().put("stars", 5).update("labels", Delta.set().add("new")))
        docs.update_many([("r1", Delta.conditional().when(Condition.map({"stars": 5}), Delta.map().put("top", True)))])
        assert {name: each for name, each in docs.get("r1").items() if not name.startswith("~")} == {
            "stars": 5,
            "labels": ["new"],
            "top": True,
        }
        with pytest.raises(InvalidInputError, match="a document is a map, not a set"):
            docs.update("r1", Delta.set().add(1))


class TestCompaction:
    def test_a_record_first_then_the_deltas_go_then_there_is_nothing_to_do(self, written: Written) -> None:
        for second in (1, 2, 3):
            written.write(second, "r1", f'{{..,"n{second}":1}}')
        assert rounds(written.compact(20)) == [{"added": 1, "deleted": 0}]
        assert kinds(written.docs, "r1") == "dddC"
        assert rounds(written.compact(30)) == []
        assert rounds(written.compact(30.001)) == [{"added": 0, "deleted": 3}]
        assert kinds(written.docs, "r1") == "C"
        assert rounds(written.compact(10_000)) == []

    def test_what_is_recent_waits(self, written: Written) -> None:
        written.write(1, "r1", '{"a":1}')
        written.write(8, "r1", '{..,"b":1}')
        assert rounds(written.compact(12)) == [{"added": 1, "deleted": 0}]
        assert rounds(written.compact(22.5)) == [{"added": 1, "deleted": 1}]
        assert kinds(written.docs, "r1") == "dCC"
        assert rounds(written.compact(33)) == [{"added": 0, "deleted": 2}]
        assert kinds(written.docs, "r1") == "C"

    def test_only_touched_and_due_buckets_are_visited(self, written: Written) -> None:
        settings = replace(ROOMY, bucket_rows=4)
        written.docs.update_many([(f"r{number}", '{"n":1}', (), change_id(1)) for number in range(40)])
        visits: list[int] = []

        def counted(job: RoundJob) -> Iterator[BucketResult]:
            for result in run_here(job):
                visits.append(result.number)
                yield result

        def visited(second: float) -> int:
            visits.clear()
            compact(written.docs, second, settings, engine=counted)
            return len(visits)

        assert visited(20) >= 8
        due = [bucket for bucket in completion_of(written.docs).buckets if bucket.due_at is not None]
        assert visited(25) == 0
        assert visited(30.001) == len(due) >= 8
        assert visited(1000) == 0
        written.docs.update("r7", '{"n":2}', (), change_id(1001))
        assert visited(1002) == 1
        assert visited(1011) == 0
        assert visited(1011.002) == 1
        assert written.docs.get("r7")["~version"] == 2

    def test_rounds_that_leave_out_deltas_absorb_nothing(self, written: Written) -> None:
        written.write(5, "r1", '{"a":1}')
        written.write(2, "r1", '{"b":1}')
        written.write(3, "r2", '{"b":1}')
        result = written.compact(30, max_round_bytes=1)
        assert rounds(result) == [*[{"added": 0, "deleted": 0}] * 2, {"added": 2, "deleted": 0}]
        partial = make(written.docs.lake.root + "-other")
        partial.write(5, "r1", '{"a":1}')
        partial.write(2, "r1", '{"b":1}')
        assert rounds(partial.compact(30, last_stream_position=1)) == [{"added": 0, "deleted": 0}]
        assert rounds(partial.compact(30)) == [{"added": 1, "deleted": 0}]

    def test_a_full_round_rewrites_everything_and_changes_nothing(self, written: Written) -> None:
        written.write(1, "r1", '{"a":1}', "x")
        written.write(2, "r2", "~")
        written.compact(30)
        assert rounds(written.compact(31, replace(ROOMY, full=True))) == [{"added": 0, "deleted": 0}]
        written.compact(50, replace(ROOMY, full=True))
        assert kinds(written.docs, "r1") + kinds(written.docs, "r2") == "CC"

    def test_a_rebase_and_a_rollback_change_no_document(self, written: Written) -> None:
        docs = written.docs
        written.write(1, "r1", '{"a":1}')
        written.compact(30)
        written.compact(50)
        written.write(51, "r1", '{..,"b":1}')
        written.compact(70, rebase_source=source_of(docs))
        assert kinds(docs, "r1") == "ddC"
        written.compact(90)
        docs.table.rollback(1)
        written.check()
        written.compact(200)

    def test_vacuum_and_check_know_holds(self, written: Written) -> None:
        written.write(1, "r1", '{"a":1}')
        written.compact(30)
        held = hold(written.docs, 5, 7200)
        assert written.docs.fsck(deep=True) == []
        written.compact(50)
        written.write(51, "r1", '{"a":2}')
        written.compact(70)
        for keeps in (True, False):
            if not keeps:
                written.docs.release(held)
            planned = written.docs.vacuum(retention_ms=0, orphan_grace_ms=0, dry_run=True)
            report = written.docs.vacuum(retention_ms=0, orphan_grace_ms=0)
            assert replace(report, dry_run=True) == planned
            assert (held.round_id in report.expired_rounds) == (not keeps)
            if keeps:
                assert [each["a"] for each in written.docs.scan(hold=held)] == [1]
        written.check()

    def test_an_engine_for_rows_is_refused(self, written: Written) -> None:
        written.write(1, "r1", '{"a":1}')
        with pytest.raises(InvalidInputError, match="cannot compact a table of documents"):
            compact(written.docs, 30, engine=merge.run_here)

    def test_a_damaged_delta_is_named_with_its_document(self, written: Written) -> None:
        root = written.docs.lake.root
        rows = pa.table({"key": ["r1"], "change_id": [change_id(1)], "delta": ["{"], "tags": [["x"]]})
        commit_changes(
            NAME,
            lambda stream: Staged(storage.stage_deltas(rows, stream, type="append", root=root), None, None),
            root=root,
        )
        for act in (lambda: written.docs.get("r1"), lambda: compact(written.docs, 30)):
            with pytest.raises(CorruptionError, match=f"{NAME}: document 'r1': change {change_id(1)}"):
                act()

    def test_a_log_that_was_set_back_behind_its_rounds_is_noticed_by_reads_and_updates_with_an_id(
        self, tmp_path: Path
    ) -> None:
        root = str(tmp_path / "lake")
        docs = siltstone.open(root).create_document_table(NAME)
        docs.update("r1", '{"a":1}')
        folder = Path(root, catalog.version_folder(NAME, root=root), "log")
        shutil.copytree(folder, tmp_path / "copy")
        docs.update("r1", '{"a":2}')
        docs.compact(engine="local")
        for file in folder.iterdir():
            if not (tmp_path / "copy" / file.name).exists():
                file.unlink()
        forget_logs(root)
        change = new_change_id()
        for use in (
            lambda: docs.get("r1"),
            lambda: list(docs.scan()),
            lambda: docs.update("r1", "~", change_id=change),
        ):
            with pytest.raises(
                CorruptionError, match=r"log: it ends at position 1 .* read it up to 2.* missing; restore"
            ):
                use()

    def test_the_service_finds_tables_that_are_due(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        tables = LakeTables(written.docs.lake)
        written.write(1, "r1", '{"a":1}')
        compact(written.docs, 30)
        assert tables.find_work(lambda: None) == []
        monkeypatch.setattr("siltstone.clock.now_ms", lambda: at(41))
        (found,) = tables.find_work(lambda: None)
        assert found.deltas == 0


class TestHolds:
    def test_deletions_wait_and_records_do_not(self, written: Written) -> None:
        docs = written.docs
        written.write(1, "r1", '{"a":1}')
        written.compact(20)
        held = hold(docs, 25, 1000)
        written.write(26, "r1", '{..,"b":1}')
        assert rounds(written.compact(40)) == [{"added": 1, "deleted": 0}]
        assert kinds(docs, "r1") == "dCdC"
        assert rounds(written.compact(60)) == [{"added": 0, "deleted": 1}], "what came after the hold goes"
        assert rounds(written.compact(70)) == [], "the bucket waits for the hold to end"
        docs.release(held)
        assert rounds(written.compact(80)) == [{"added": 0, "deleted": 2}]
        assert kinds(docs, "r1") == "C"

    def test_a_hold_ends_by_itself(self, written: Written) -> None:
        written.write(1, "r1", '{"a":1}')
        written.compact(20)
        hold(written.docs, 25, 100)
        written.compact(60)
        assert kinds(written.docs, "r1") == "dC"
        written.compact(100)
        assert kinds(written.docs, "r1") == "C"

    def test_a_hold_that_comes_while_a_round_is_under_way_is_kept(self, written: Written) -> None:
        written.write(1, "r1", '{"a":1}')
        written.compact(20)

        def holding(job: RoundJob) -> Iterator[BucketResult]:
            yield from run_here(job)
            if not written.docs.holds():
                hold(written.docs, 25, 1000)

        result = written.compact(60, engine=holding)
        assert result.conflicts == 1
        assert kinds(written.docs, "r1") == "dC"

    def test_an_export_under_a_hold_sees_its_time(self, written: Written) -> None:
        docs = written.docs
        written.write(1, "r1", '{"a":1}')
        written.write(2, "gone", '{"a":1}')
        held = hold(docs, 5, 7200)
        before = [written.expected("gone"), written.expected("r1")]
        written.write(6, "r1", '{"a":2}')
        written.write(7, "gone", "~")
        written.write(8, "new", '{"a":1}')
        for second in (30, 50, 70, 90):
            written.compact(second)
            assert sorted(docs.scan(hold=held), key=lambda each: str(each["~id"])) == before
        docs.release(held)
        with pytest.raises(NotFoundError, match="there is no hold"):
            list(docs.scan(hold=held))
        with pytest.raises(NotFoundError, match="it may be released already"):
            docs.release(held)

    def test_a_change_of_an_earlier_time_that_comes_after_a_hold_does_not_change_its_export(
        self, written: Written
    ) -> None:
        docs = written.docs
        written.write(1, "r1", '{"a":1}')
        written.compact(10)
        written.write(3, "r1", '{..,"b":1}')
        held = hold(docs, 5, 7200)
        before = [written.expected("r1")]
        assert list(docs.scan(hold=held)) == before
        written.write(2, "r1", '{..,"late":1}')
        written.write(4, "late", "{}")
        assert list(docs.scan(hold=held)) == before
        for second in (30, 50, 70):
            written.compact(second)
            assert list(docs.scan(hold=held)) == before
        trimmed = trim_one(LakeTables(docs.lake, delta_retention_seconds=0), source_of(docs), 4)
        assert (trimmed, held.high_watermark, held.stream_position) == (1, 1, 2)
        docs.vacuum(retention_ms=0, orphan_grace_ms=0)
        assert list(docs.scan(hold=held)) == before

    def test_a_hold_of_a_time_whose_deltas_are_deleted_is_refused_with_the_earliest_one_that_is_not(
        self, written: Written
    ) -> None:
        docs = written.docs
        written.write(1, "r1", '{"n":1}')
        written.write(3, "r1", '{"n":2}')
        written.write(2, "r2", '{"n":1}')
        written.compact(20)
        early = hold(docs, 2, 7200)
        assert sorted(str(each["n"]) for each in docs.scan(hold=early)) == ["1", "1"], "they are all there yet"
        docs.release(early)
        written.compact(40)
        assert kinds(docs, "r1") + kinds(docs, "r2") == "CC"
        earliest = rf"as of .*\({at(2.5)} ms\).*earliest time that can still be held is .*\({at(3)} ms\)"
        with pytest.raises(InvalidInputError, match=earliest):
            hold(docs, 2.5, 7200)
        assert docs.holds() == [], "a hold that is refused is not left behind"
        assert list(docs.scan(hold=hold(docs, 0.5, 7200))) == [], "before the first delta there was nothing"
        assert {each["~id"]: each["n"] for each in docs.scan(hold=hold(docs, 3, 7200))} == {"r1": 2, "r2": 1}

    def test_a_hold_between_two_records_is_answered_from_the_earlier_one(self, written: Written) -> None:
        docs = written.docs
        written.write(1, "r1", '{"n":1}')
        written.write(2, "r1", '{"n":2}')
        written.compact(20)
        written.write(21, "r1", '{..,"m":1}')
        written.write(22, "r1", '{..,"m":2}')
        written.compact(40)
        assert kinds(docs, "r1") == "CddC"
        assert [(each["m"], each["~version"]) for each in docs.scan(hold=hold(docs, 21, 7200))] == [(1, 3)]
        with pytest.raises(InvalidInputError, match=rf"earliest .*\({at(2)} ms\)"):
            hold(docs, 1.5, 7200)
        assert [each["~version"] for each in docs.scan(hold=hold(docs, 2, 7200))] == [2]

    def test_holds_of_earlier_versions_are_read_by_time_and_refused_where_nothing_is_left(
        self, written: Written
    ) -> None:
        docs = written.docs
        written.write(1, "r1", '{"n":1}')
        before = [written.expected("r1")]
        written.compact(20)
        entry = {"hold_id": "old", "since_ms": at(5), "until_ms": at(7200), "reason": ""}
        docs._destination().log.commit("hold", lambda state: {f"{HOLD_PREFIX}old": entry})
        written.write(21, "r1", '{"n":2}')
        for second in (40, 60):
            written.compact(second)
            assert list(docs.scan(hold="old")) == before
        docs.release("old")
        written.compact(80)
        docs._destination().log.commit("hold", lambda state: {f"{HOLD_PREFIX}old": entry})
        with pytest.raises(InvalidInputError, match="document 'r1' is not known as of"):
            list(docs.scan(hold="old"))

    def test_holds_are_listed_while_they_are_on(self, docs: siltstone.DocumentTable) -> None:
        held = docs.hold(until=datetime.timedelta(hours=1), reason="export")
        later = docs.hold(until=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2))
        assert docs.holds() == [held, later]
        docs.release(held.hold_id)
        assert docs.holds() == [later]
        with pytest.raises(InvalidInputError, match="ends before it begins"):
            docs.hold(until=1)
        with pytest.raises(InvalidInputError, match="has no time zone"):
            docs.hold(until=datetime.datetime(2030, 1, 1))


class TestHistory:
    def test_the_timeline_tells_what_is_redundant_and_why(self, written: Written) -> None:
        written.write(1, "r1", '{"a":1}')
        redundant = written.write(2, "r1", '{..,"a":1}')
        first, second = written.docs.timeline("r1")
        assert (first.is_redundant, second.is_redundant) == (False, True)
        assert second.note == "leaves content and tags as they were"
        written.compact(30)
        _, second, record = written.docs.timeline("r1")
        assert (second.is_redundant, second.state, second.change_id) == (True, "compacted", redundant)
        assert second.note == f"leaves content and tags as they were, owned by compaction {record.change_id}"
        assert (record.state, record.note) == ("in effect", f"stands for 2 deltas up to {redundant}")
        assert written.docs.timeline("nobody") == []

    def test_what_became_of_a_change(self, written: Written) -> None:
        docs = written.docs
        mutation = written.write(1, "r1", '{"a":1}')
        redundant = written.write(2, "r1", '{..,"a":1}')
        states = {mutation: "resolved", redundant: "redundant", change_id(3): "pending"}
        assert {state: docs.get_for_change("r1", state).state for state in states} == states
        written.compact(30)
        written.compact(50)
        states[change_id(3)] = "resolved"
        assert kinds(docs, "r1") == "C"
        assert {state: docs.get_for_change("r1", state).state for state in states} == states
        assert docs.get_for_change("r1", change_id(99)).state == "pending"
        assert docs.get_for_change("r1", mutation).document == written.expected("r1")


class TestKeptHistory:
    def test_every_delta_is_known_with_the_content_after_it_whatever_is_compacted(self, local_root: str) -> None:
        written = make(local_root, keep_history=True)
        few = replace(ROOMY, bucket_rows=4)
        for number in range(12):
            written.write(1, f"r{number}", f'{{"n":{number}}}', "x", "y")
            written.write(2, f"r{number}", '{..,"a":1}' if number % 2 else "~")
        written.check_history()
        for second, how in ((20, few), (40, few), (60, replace(few, full=True)), (80, few), (100, few)):
            written.write(second - 1, "r3", f'{{..,"at":{second}}}', "z")
            written.compact(second, how)
            written.check_history()
        assert kinds(written.docs, "r5") == "C", "what is owned is deleted all the same"
        written.compact(120)
        written.compact(140)
        assert rounds(written.compact(10_000)) == [], "archived rows leave nothing to do"
        assert written.docs.fsck(deep=True) == []
        written.compact(10_001, rebase_source=source_of(written.docs))
        written.check_history()
        written.docs.table.rollback(3)
        written.compact(10_020)
        written.check_history()

    def test_history_begins_when_it_is_switched_on(self, written: Written) -> None:
        docs = written.docs
        written.write(1, "r1", '{"n":1}')
        written.compact(20)
        with pytest.raises(InvalidInputError, match=r"keeps no history.*keep_history=true"):
            docs.history("r1")
        docs.table.alter(properties={"keep_history": "true"})
        written.write(21, "r1", '{..,"m":1}')
        for second in (40, 60, 80):
            assert [(entry.version, entry.content) for entry in docs.history("r1")][-1:] == [(2, {"n": 1, "m": 1})]
            written.compact(second)
        assert [entry.version for entry in docs.history("r1")] == [2]
        assert docs.history("nobody") == []
        docs.table.alter(properties={"keep_history": None})
        written.write(81, "r1", '{..,"m":2}')
        written.compact(100)
        written.compact(120)
        docs.table.alter(properties={"keep_history": "true"})
        assert [entry.version for entry in docs.history("r1")] == [2], "what was absorbed in between is gone"

    def test_a_hold_reads_past_archived_rows(self, local_root: str) -> None:
        written = make(local_root, keep_history=True)
        written.write(1, "r1", '{"n":1}')
        written.compact(20)
        held = hold(written.docs, 25, 7200)
        before = [written.expected("r1")]
        written.compact(40)
        assert list(written.docs.scan(hold=held)) == before


def imported(key: str, changes: list[Change], records: list[CompactionRecord] | None = None) -> dict[str, object]:
    """A document as another store gives it."""
    deltas = [{"id": id_, "delta": delta, "tags": list(tags or ())} for id_, delta, tags in changes]
    return {"key": key, "deltas": deltas, "compactions": [record_fields(each) for each in records or []]}


class TestImport:
    def test_documents_come_with_deltas_and_records_of_any_time_and_are_compacted_like_others(
        self, written: Written
    ) -> None:
        docs = written.docs
        changes = {
            key: [old(1, f'{{"n":"{key}"}}'), old(2, '{..,"a":1}', "x"), old(3, '{..,"b":1}')] for key in "pqrst"
        }
        signature = "141fc11a031ef87df66d6c8cb5790144"
        legacy = CompactionRecord(t(5), 2, t(1), t(3), signature, None, t(3), None, None)
        documents = [
            imported("p", changes["p"]),
            imported("q", changes["q"], [record(9, changes["q"])]),
            imported("r", changes["r"][2:], [record(9, changes["r"], 2)]),
            imported("s", [], [record(9, changes["s"])]),
            imported("t", [old(3, '{"n":"t","a":1,"b":1}')], [legacy]),
        ]
        written.write(1, "mine", "{}")
        assert docs.import_documents(documents, dry_run=True).imported == 5
        assert len(docs.table.deltas()) == 1
        assert docs.import_documents(documents).imported == 5
        for key, own in changes.items():
            for each in own:
                written.note(key, each)
        assert docs.get("t")["~signature"] == signature
        written.check()
        written.write(25, "q", '{..,"new":1}')
        for second in (20, 40, 60, 80):
            written.compact(second)
        assert {kinds(docs, key) for key in written.changes} == {"C"}
        assert docs.get("t")["~version"] == 3

    @pytest.mark.parametrize(
        "value", [Delta.literal(5), Delta.noop(), Condition.gt(3), datetime.date(2026, 1, 1)], ids=repr
    )
    def test_what_is_not_json_is_not_imported(self, written: Written, value: object) -> None:
        document = {"key": "new", "deltas": [{"id": t(1), "delta": {"a": value}}]}
        with pytest.raises(InvalidInputError, match="JSON"):
            written.docs.import_documents([document])
        assert not written.docs.table.deltas()

    def test_files_of_recent_updates_are_read_once_and_forgotten_in_time(
        self, written: Written, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files: list[str] = []

        def counted(root: str, file: ManifestEntry, *columns: Sequence[str]) -> pa.Table:
            files.append(file.uri)
            return read_data_file(root, file, *columns)

        monkeypatch.setattr(recent, "read_data_file", counted)
        monkeypatch.setattr(recent, "recent_deltas", recent.RecentDeltas())
        for number in range(4):
            written.write(number + 1, f"r{number % 2}", f'{{..,"n{number}":1}}')
        for _ in range(3):
            written.check()
        assert len(files) == len(set(files)) == 4
        # Where only one fits, all others are read again.
        monkeypatch.setattr(recent, "_KEPT_BYTES", 1)
        monkeypatch.setattr(recent, "recent_deltas", recent.RecentDeltas())
        written.write(5, "r1", '{..,"n5":1}')
        files.clear()
        for _ in range(2):
            written.check()
        assert len(files) > 5

    def test_a_column_of_updates_is_there_once(self, written: Written) -> None:
        updates = pa.table([["order-1"], ["customer-9"], ["{}"]], ["key", "key", "delta"])
        with pytest.raises(InvalidInputError, match="not key, key, delta"):
            written.docs.update_many(updates)

    def test_a_document_that_is_there_is_not_imported_over(self, written: Written) -> None:
        docs = written.docs
        written.write(1, "here", '{"n":1}')
        documents = [imported("here", [old(1, "{}")]), imported("new", [old(1, "{}")])]
        for second in (20, 40, 60):
            with pytest.raises(AlreadyExistsError, match="document 'here' cannot be imported"):
                docs.import_documents(documents)
            assert len(docs.table.deltas()) == 1
            written.compact(second)
        assert docs.import_documents(documents, skip_existing=True)[:3] == (1, 1, 0)
        assert docs.import_documents(documents, skip_existing=True)[:3] == (0, 1, 1)
        written.note("new", old(1, "{}"))
        written.check()

    def test_a_document_that_is_written_and_absorbed_meanwhile_is_not_imported_over(self, written: Written) -> None:
        docs, staged = written.docs, storage.stage_deltas
        documents = [imported("late", [old(1, '{"n":1}')])]

        with pytest.MonkeyPatch.context() as patch:

            def compacting(*given: Any, **more: Any) -> Any:
                patch.undo()
                written.write(1, "late", '{"n":2}')
                compact(docs, 20)
                return staged(*given, **more)

            patch.setattr("siltstone.storage.object_store.stage_deltas", compacting)
            with pytest.raises(AlreadyExistsError, match="document 'late' cannot be imported"):
                docs.import_documents(documents)
        written.check()

    def test_a_record_of_a_time_that_is_still_open_is_refused(self, docs: siltstone.DocumentTable) -> None:
        changes = [Change(change_id(1), "{}", ())]
        written = expand(Row(changes), fct=1 << 60, raw=1 << 60, new_id=change_id(2)).write
        assert written is not None
        for dry_run in (True, False):
            with pytest.raises(InvalidInputError, match=r"stands for deltas up to .* can still be written here"):
                docs.import_documents([imported("k", changes, [written])], dry_run=dry_run)
        assert docs.import_documents([imported("k", changes)]).imported == 1

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            ({"key": "", "deltas": []}, "is not a document key"),
            ({"key": "k"}, "has neither deltas nor compactions"),
            ({"key": "k", "delta": []}, "unknown field 'delta'; use"),
            ({"key": "k", "deltas": [{"id": "x", "delta": "{}"}]}, r"deltas\[0\].id"),
            ({"key": "k", "deltas": [{"id": t(1), "delta": "[1]"}]}, "a document is a map"),
            (imported("k", [old(1, "{}"), old(1, "{}")]), f"change {t(1)} occurs twice"),
            (imported("k", [], [LEGACY]), f"{t(3)}, which is missing"),
            (imported("k", [], [LEGACY._replace(compacted_delta="{..}")]), "is not the content of a document"),
            (imported("k", [], [LEGACY._replace(count=-1)]), "are too few"),
            (imported("fine", [old(1, "{}")]), "occurs twice"),
        ],
    )
    def test_a_bad_document_is_named_and_nothing_is_imported(
        self, docs: siltstone.DocumentTable, document: dict[str, object], message: str
    ) -> None:
        with pytest.raises(InvalidInputError, match=f"document 2, key .*{message}"):
            docs.import_documents([imported("fine", [old(1, "{}")]), document])
        assert docs.table.deltas() == []

    def test_imported_deltas_have_a_history_too(self, local_root: str) -> None:
        written = make(local_root, keep_history=True)
        changes = [old(1, '{"n":1}'), old(2, '{..,"a":1}', "x"), old(3, '{..,"b":1}')]
        written.docs.import_documents([imported("k", changes)])
        for change in changes:
            written.note("k", change)
        for second in (20, 40):
            written.check_history()
            written.compact(second)
        written.check_history()


def test_requests_for_documents_name_their_key(written: Written) -> None:
    assert request_of(written.docs, 1).primary_keys == ("key",)
