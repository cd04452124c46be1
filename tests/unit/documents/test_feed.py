"""Changes of documents: in the order of commits, without redundant ones, exactly once for who keeps the position."""

import contextlib
import datetime
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone.documents.record import Change
from siltstone.errors import ConflictError, InvalidInputError, NotFoundError, SiltstoneError
from siltstone.storage import object_store as storage
from siltstone.table.followers import trim_limit
from siltstone.testing import Killed, faults
from siltstone.testing.faults import FaultKind
from tests.unit.cli.command_line import Cli
from tests.unit.documents.feed_oracle import Commits, Seen, seen
from tests.unit.documents.tables import NAME, at, change_id, compact, make, source_of


class Feed:
    """A table with what its changes must be."""

    def __init__(self, root: str) -> None:
        self.written = make(root)
        self.commits = Commits()

    @property
    def docs(self) -> siltstone.DocumentTable:
        return self.written.docs

    def write(self, second: float, key: str, delta: str, *tags: str, node: int = 0) -> str:
        id_ = self.written.write(second, key, delta, *tags, node=node)
        self.commits.commit([(key, Change(id_, delta, tags))])
        return id_

    def check(self, after: int = 0) -> None:
        expected = [each for each in self.commits.expected if each.position > after]
        assert seen(self.docs.changes(after)) == expected

    def trim(self) -> int:
        """Trim as the service does when all retentions are over; return up to where."""
        source = source_of(self.docs)
        limit = trim_limit(source, at(0), root=self.docs.lake.root)
        if limit.position:
            storage.delete_deltas(source, last_stream_position=limit.position, root=self.docs.lake.root)
        return limit.position


@pytest.fixture
def feed(local_root: str) -> Feed:
    return Feed(local_root)


def filled(feed: Feed) -> Feed:
    """Make inserts, updates, redundant changes, late ones, deletes and changes of tags alone."""
    feed.write(1, "a", '{"n":1}', "new")
    feed.write(1, "b", '{"n":1}')
    feed.write(5, "a", '{..,"n":2}')
    feed.write(5, "b", '{..,"n":1}')  # redundant
    feed.write(6, "a", '{..,"n":2}', "etl")  # its tags alone are news
    feed.write(6, "a", '{..,"n":2}', "etl", node=1)  # redundant
    feed.write(3, "a", '{..,"late":true,"n":9}')  # comes late, and is overwritten in part
    feed.write(4, "b", "..")  # redundant, and late
    feed.write(7, "b", "~")
    feed.write(8, "b", '{"back":1}')
    return feed


def test_changes_come_in_the_order_of_commits_without_redundant_ones(feed: Feed) -> None:
    shown = [(each.position, each.change_type) for each in filled(feed).docs.changes()]
    assert shown == [
        (1, "insert"),
        (2, "insert"),
        (3, "update"),
        (5, "update"),
        (7, "update"),
        (9, "delete"),
        (10, "insert"),
    ]
    feed.check()
    late = next(each for each in feed.docs.changes(6))
    assert (late.content, late.content_before) == ({"n": 2, "late": True}, {"n": 2})
    assert (late.version, late.tags, late.delta) == (5, (), '{..,"late":true,"n":9}')


@pytest.mark.parametrize("seconds", [(20,), (20, 40), (20, 40, 60)])
def test_compaction_changes_nothing_of_what_is_shown_from_any_position(feed: Feed, seconds: tuple[int, ...]) -> None:
    filled(feed)
    for second in seconds:
        feed.written.compact(second)
        feed.write(second + 1, "a", f'{{..,"at":{second}}}')
        feed.write(second - 4, "c", '{..,"late":1}', node=second)
    for after in range(feed.commits.position + 1):
        feed.check(after)


def test_a_rollback_a_rebase_and_a_rename_change_nothing_of_what_is_shown(feed: Feed) -> None:
    filled(feed)
    feed.write(9, "a", 'if intrinsic("~table":"shop.reviews") then {..,"mine":1} end')
    for second in (20, 40):
        feed.written.compact(second)
        feed.write(second + 1, "b", f'{{..,"at":{second}}}')
    feed.docs.table.rollback(1)
    for after in range(feed.commits.position + 1):
        feed.check(after)
    feed.written.compact(60, rebase_source=source_of(feed.docs))
    feed.write(61, "a", '{..,"late":false}')
    for after in range(feed.commits.position + 1):
        feed.check(after)
    docs = feed.docs.lake.rename_table(NAME, "shop.renamed").lake.document_table("shop.renamed")
    assert seen(docs.changes()) == feed.commits.expected


def test_one_commit_of_many_changes_is_shown_by_key_and_time(feed: Feed) -> None:
    updates = [
        ("b", '{..,"n":2}', (), change_id(2)),
        ("a", '{"x":1}', (), change_id(3)),
        ("b", '{"n":1}', (), change_id(1)),
    ]
    feed.docs.update_many(updates)
    feed.commits.commit([(key, Change(id_, delta, tags)) for key, delta, tags, id_ in updates])
    assert [(each.key, each.content) for each in feed.docs.changes()] == [
        ("a", {"x": 1}),
        ("b", {"n": 1}),
        ("b", {"n": 2}),
    ]
    feed.check()


def test_a_late_change_that_is_redundant_by_itself_is_shown_where_it_changes_what_a_condition_saw(feed: Feed) -> None:
    feed.write(1, "a", '{"n":1}')
    signature = feed.docs.get("a")["~signature"]
    feed.write(5, "a", f'if intrinsic("~signature":"{signature}") then {{..,"only":true}} end')
    feed.write(3, "a", "..")
    assert [each.content for each in feed.docs.changes()] == [{"n": 1}, {"n": 1, "only": True}, {"n": 1}]
    feed.check()


def test_large_commits_and_many_documents_are_read_in_parts(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.documents.feed._WINDOW_ROWS", 3)
    monkeypatch.setattr("siltstone.documents.feed._MOST_DOCUMENTS", 2)
    for turn in range(3):
        updates = [
            (f"k{number % 4}", Change(change_id(turn + number / 10), f'{{..,"n":{number % 3}}}', ()))
            for number in range(9)
        ]
        feed.docs.update_many([(key, each.delta, each.tags, each.change_id) for key, each in updates])
        feed.commits.commit(updates)
    for after in range(4):
        feed.check(after)
    feed.written.changes = feed.commits.changes
    feed.written.compact(30)
    feed.check(1)


def test_bounds_are_positions_times_and_rounds(feed: Feed) -> None:
    filled(feed)
    feed.written.compact(20)
    feed.write(21, "z", "{}")
    docs = feed.docs
    assert [each.position for each in docs.changes(2, 5)] == [3, 5]
    assert [each.position for each in docs.changes("round:1")] == [11]
    assert [each.position for each in docs.changes(upto="3")] == [1, 2, 3]
    assert list(docs.changes(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1))) == []
    assert (docs.changes(upto=99).upto, docs.changes().after) == (11, 0)
    for after, upto, error, message in (
        (12, None, NotFoundError, "there is no position 12 yet; the newest one is 11"),
        (5, 3, InvalidInputError, "position 3 is before 5"),
        ("round:9", None, NotFoundError, "there is no round 9"),
        ({"_": 1}, None, InvalidInputError, "go by positions"),
        (-1, None, InvalidInputError, "position"),
    ):
        with pytest.raises(error, match=message):
            docs.changes(after, upto)
    with pytest.raises(InvalidInputError, match=r"document_table\('shop.reviews'\).changes"):
        docs.table.changes()


def test_changes_are_chosen_by_the_document_before_or_after_them_and_by_tags(feed: Feed) -> None:
    feed.write(1, "a", '{"n":1}', "new")
    feed.write(2, "a", '{"n":2}', "etl")
    feed.write(3, "a", '{"n":3}')
    feed.write(4, "b", '{"n":2}')
    docs = feed.docs

    def positions(**chosen: object) -> list[int]:
        return [each.position for each in docs.changes(**chosen)]  # type: ignore[arg-type]

    assert positions(where='{..,"n":2}') == [2, 3, 4], "what no longer meets it is shown once more"
    assert positions(where='intrinsic("~id":"b")') == [4]
    assert positions(where=siltstone.documents.language.Condition.parse('{..,"n":1}')) == [1, 2]
    assert positions(tags=["etl", "new"]) == [1, 2]
    assert positions(without_tags="etl") == [1, 3, 4]
    with pytest.raises(InvalidInputError, match="condition"):
        docs.changes(where='{..,"n":')


def test_an_imported_document_is_one_change_where_it_comes_with_records(feed: Feed) -> None:
    old = change_id(-9000), change_id(-8000), change_id(-7000)
    record = {
        "id": old[1],
        "count": 3,
        "first": old[0],
        "cutoff": old[0],
        "cutoff_signature": "ab" * 16,
        "compacted_delta": '{"n":1}',
        "last_tags": ["x"],
    }
    changes = [
        {"id": old[1], "delta": '{..,"m":1}'},
        {"id": old[2], "delta": '{..,"m":1}'},
        {"id": change_id(-6000), "delta": "~"},
    ]
    feed.docs.import_documents(
        [{"key": "r", "compactions": [record], "deltas": changes[:1]}, {"key": "d", "deltas": changes}]
    )
    shown = [(each.key, each.change_id, each.delta, each.version, each.change_type) for each in feed.docs.changes()]
    assert shown == [
        ("d", old[1], '{..,"m":1}', 1, "insert"),
        ("d", change_id(-6000), "~", 3, "delete"),
        ("r", old[1], None, 4, "insert"),
    ]
    feed.docs.update("r", '{..,"m":1}', (), change_id(1))
    assert [each.position for each in feed.docs.changes(1)] == [], "it is redundant after what was imported"


class TestConsumers:
    @pytest.mark.parametrize("kind", ["lose", "kill_after"])
    def test_who_dies_anywhere_goes_on_where_it_was_and_misses_nothing(self, local_root: str, kind: FaultKind) -> None:
        feed = filled(Feed(f"memory://{local_root}"))
        taken: list[Seen] = []
        by_name: list[Seen] = []
        kept = 0
        for at_call in range(1, 25):
            ignored = contextlib.suppress(SiltstoneError, Killed)
            with faults(feed.docs.lake.root, at_call=at_call, kind=kind), ignored:
                # What was taken, and up to where, is kept together: in one transaction of who takes it.
                changes = feed.docs.changes(kept, min(kept + 2, feed.commits.position))
                taken, kept = [*taken, *seen(changes)], changes.upto
                named = feed.docs.changes(upto=min(kept, feed.commits.position), consumer="c")
                by_name += seen(named)
                named.acknowledge()
        named = feed.docs.changes(consumer="c")
        by_name += seen(named)
        taken += seen(feed.docs.changes(kept))
        assert taken == feed.commits.expected, "each once"
        assert list(dict.fromkeys(map(repr, by_name))) == list(map(repr, feed.commits.expected)), "at least once"

    def test_a_name_goes_on_after_what_it_acknowledged(self, feed: Feed) -> None:
        filled(feed)
        first = feed.docs.changes(3, 5, consumer="search")
        again = feed.docs.changes(consumer="search")
        assert again.after == 0, "nothing is acknowledged yet"
        first.acknowledge()
        with pytest.raises(ConflictError, match="had acknowledged position None, but has acknowledged position 5"):
            again.acknowledge()
        rest = feed.docs.changes(consumer="search")
        assert seen(rest) == [each for each in feed.commits.expected if each.position > 5]
        rest.acknowledge()
        assert list(feed.docs.changes(consumer="search")) == []
        (consumer,) = feed.docs.consumers()
        assert (consumer.name, consumer.high_watermark, consumer.round_id) == ("search", 10, 0)
        feed.docs.remove_consumer("search")
        assert feed.docs.consumers() == []
        with pytest.raises(InvalidInputError, match="no consumer"):
            feed.docs.changes().acknowledge()

    def test_a_vacuum_and_a_trim_keep_what_a_consumer_needs(self, feed: Feed) -> None:
        filled(feed)
        feed.written.compact(20)
        feed.write(21, "a", '{..,"n":1}')
        feed.write(22, "a", '{..,"n":2}')
        feed.docs.changes(upto=11, consumer="slow").acknowledge()
        feed.written.compact(40)
        feed.written.compact(60)
        feed.written.compact(80)
        feed.docs.vacuum(retention_ms=0, orphan_grace_ms=0)
        assert feed.trim() == 10, "the round that the consumer goes on from has read so far"
        feed.docs.vacuum(retention_ms=0, orphan_grace_ms=0)
        changes = feed.docs.changes(consumer="slow")
        assert seen(changes) == [each for each in feed.commits.expected if each.position > 11]
        changes.acknowledge()
        feed.docs.vacuum(retention_ms=0, orphan_grace_ms=0)
        assert feed.trim() == 12

    def test_what_is_trimmed_is_refused_and_the_beginning_is_all_documents_as_they_are(self, feed: Feed) -> None:
        filled(feed)
        feed.written.compact(20)
        feed.docs.vacuum(retention_ms=0, orphan_grace_ms=0)
        assert feed.trim() == 10
        feed.write(21, "a", '{..,"n":3}')
        with pytest.raises(NotFoundError, match=r"deltas up to 10 are trimmed.*begin after 10"):
            feed.docs.changes(4)
        feed.check(10)
        *inserts, last = feed.docs.changes()
        assert sorted((each.key, each.change_type, each.delta, each.position) for each in inserts) == [
            ("a", "insert", None, 10),
            ("b", "insert", None, 10),
        ]
        assert seen([last]) == feed.commits.expected[-1:]
        feed.docs.rounds()

    def test_what_a_table_had_before_it_followed_another_one_comes_first(self, feed: Feed) -> None:
        filled(feed)
        follower = feed.docs.lake.create_document_table("shop.follower", full_consistency_delay=10)
        follower.update("z", "{}", (), change_id(1))
        compact(follower, 20, rebase_source=source_of(feed.docs))
        feed.write(21, "a", '{..,"n":7}')
        first, *rest = follower.changes()
        assert (first.key, first.change_type, first.delta, first.position) == ("z", "insert", None, 0)
        assert seen(rest) == feed.commits.expected
        assert seen(follower.changes(10)) == feed.commits.expected[-1:]

    def test_a_table_to_which_nothing_was_written_has_no_changes(self, feed: Feed) -> None:
        changes = feed.docs.changes(consumer="c")
        assert (list(changes), changes.upto) == ([], 0)
        changes.acknowledge()
        assert changes.to_arrow().num_rows == 0


class TestCommands:
    def test_changes_are_shown_written_and_acknowledged(self, tmp_path: Path) -> None:
        cli = Cli(tmp_path)
        cli("documents", "create", NAME)
        cli("documents", "update", NAME, "r1", '{"stars":4}', "--tag", "new")
        cli("documents", "update", NAME, "r1", '{..,"stars":4}', "--tag", "new")
        cli("documents", "update", NAME, "r2", '{"stars":1}')
        shown = cli("changes", NAME)
        assert [line.split() for line in shown.stdout.splitlines()] == [
            ["1", "insert", "r1", "version", "1", '{"stars":4}', "#new"],
            ["3", "insert", "r2", "version", "1", '{"stars":1}'],
        ]
        assert shown.stderr == "shop.reviews: after position 0 up to 3.\n"
        first, _ = [json.loads(line) for line in cli("changes", NAME, "--json").stdout.splitlines()]
        assert (first["content"], first["content_before"], first["_change_type"]) == ({"stars": 4}, None, "insert")
        lines = cli("changes", NAME, "--format", "jsonl", "--where", '{..,"stars":1}', "--images", "after").stdout
        assert "content_before" not in json.loads(lines)
        file = tmp_path / "changes.parquet"
        done = cli.json("changes", NAME, "--consumer", "search", "--upto", "2", "--output", str(file))
        assert (done["rows"], done["after"], done["upto"]) == (1, 0, 2)
        assert pq.read_table(file).column("content").to_pylist() == ['{"stars":4}']
        done = cli.json("changes", NAME, "--consumer", "search", "--output", str(tmp_path / "c"), "--format", "jsonl")
        assert (done["rows"], done["after"], done["upto"]) == (1, 2, 3)
        assert cli("changes", NAME, "--consumer", "search", "--json").stdout == ""
        assert "nothing was committed since position 3" in cli("changes", NAME, "--after", "3").stderr
        assert cli.json("consumers", NAME)[0]["high_watermark"] == 3
        assert "goes with tables of rows" in cli.misused("changes", NAME, "--format", "debezium")
        cli("table", "create", "shop.orders", "--schema", cli.file("schema.json", '{"id":"int64"}'), "--key", "id")
        assert "is for tables of documents" in cli.misused("changes", "shop.orders", "--tag", "x")
