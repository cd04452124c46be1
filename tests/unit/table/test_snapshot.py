"""A read is one cut: one position of the stream for all partitions, whatever rounds of single partitions do meanwhile."""

import datetime
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone import clock
from siltstone.log import commit as commit_module
from siltstone.objects import open_objects
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import compacted_partition
from siltstone.table.scan import read_key
from siltstone.testing import faults
from siltstone.testing.oracle import oracle_of, same_rows

ZONES = ("eu", "us", "asia")
Read = Callable[[siltstone.Table], list[Any]]


def numbers_of(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["n"] for row in sorted(rows, key=lambda row: str(row["zone"]))]


READS: dict[str, Read] = {
    "as compacted": lambda table: numbers_of(table.to_arrow().to_pylist()),
    "fresh": lambda table: numbers_of(table.to_arrow(include_uncompacted=True).to_pylist()),
    "as of a position": lambda table: numbers_of(table.to_arrow(as_of=3).to_pylist()),
    "lookup": lambda table: numbers_of(table.lookup({"id": 1})),
}
every_read = pytest.mark.parametrize("read", READS.values(), ids=list(READS))


def make(root: str, name: str = "shop.stock") -> siltstone.Table:
    """Make a table of one key that has a row in each of its partitions."""
    return siltstone.open(root).create_table(
        name,
        schema={"zone": "string", "id": "int64", "n": "int64"},
        primary_keys=["id"],
        partition_keys=["zone"],
        unique_within_partition=True,
    )


def write(table: siltstone.Table, n: int, *zones: str) -> None:
    """Set n in all partitions, or in some, by one commit."""
    chosen = list(zones or ZONES)
    table.write(pa.table({"zone": chosen, "id": [1] * len(chosen), "n": [n] * len(chosen)}))


def compact(table: siltstone.Table, *zones: str, **more: Any) -> None:
    """Run a round of each partition, or of some."""
    for source in table._sources():
        if not zones or source.partition_values[0] in zones:
            keys = tuple(table.version.primary_keys)
            run_session(Request(source, compacted_partition(source), keys, table.lake.root, **more), run_here)


def copied(table: siltstone.Table, root: str) -> siltstone.Table:
    """Copy a lake, and return the table there."""
    source, target = open_objects(table.lake.root), open_objects(root)
    for object_ in source.list_objects("", recursive=True):
        target.create(object_.path, source.read(object_.path))
    return siltstone.open(root).table(table.name)


def trim_and_vacuum(table: siltstone.Table) -> None:
    """Forget all deltas that are compacted, all rounds but the current ones, and delete all their files."""
    for completion in table.current_rounds():
        source = completion.source_partition_locator
        storage.delete_deltas(source, last_stream_position=completion.high_watermark, root=table.lake.root)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)


@pytest.fixture
def root(new_root: Callable[[str], str]) -> str:
    return new_root("memory")


@every_read
def test_a_commit_is_seen_in_all_partitions_although_one_only_is_compacted(root: str, read: Read) -> None:
    table = make(root)
    write(table, 1)
    compact(table)
    write(table, 2)
    write(table, 3)
    compact(table, "us")
    assert read(table) == [3, 3, 3]


MEANWHILE: dict[str, list[Callable[[siltstone.Table], None]]] = {
    "a round": [lambda table: compact(table, "us")],
    "a write": [lambda table: write(table, 3)],
    "a write and a round": [lambda table: write(table, 3), lambda table: compact(table, "eu")],
    "rounds of several": [
        lambda table: write(table, 3),
        lambda table: compact(table, "asia"),
        lambda table: compact(table, "us"),
    ],
    "a roll back": [
        lambda table: compact(table, "us"),
        lambda table: void(table.rollback(1, partition_values=["us"])),
    ],
    "a trim and a vacuum": [lambda table: write(table, 3), compact, trim_and_vacuum],
}


def void(_: object) -> None:
    """Drop a result."""


@every_read
@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=list(MEANWHILE))
def test_a_read_has_one_position_whatever_happens_to_single_partitions_at_any_of_its_calls(
    new_root: Callable[[str], str], read: Read, meanwhile: list[Callable[[siltstone.Table], None]]
) -> None:
    made = make(new_root("memory"))
    write(made, 1)
    compact(made)
    write(made, 2)
    compact(made, "asia")
    for at_call in itertools.count(1):
        table = copied(made, new_root("memory"))
        expected = [read(table)]

        def act(table: siltstone.Table = table, expected: list[list[Any]] = expected) -> None:
            for step in meanwhile:
                step(table)
            expected.append(read(table))

        found, problem = [], ""
        with faults(table.lake.root, at_call=at_call, kind="meet", act=act) as store:
            try:
                found = read(table)
            except siltstone.CorruptionError as error:
                problem = str(error)
        if len(expected) == 1:
            assert at_call > store.calls > 5
            return
        if problem:
            assert trim_and_vacuum in meanwhile
            assert f"{table.lake.root}/tables/shop/stock/" in problem
        else:
            assert found in [[1, 1, 1], [2, 2, 2], [3, 3, 3]]
            assert expected[0] <= found <= max(expected)


def test_only_a_partition_whose_deltas_wait_is_merged(root: str) -> None:
    table = make(root)
    write(table, 1)
    compact(table)
    write(table, 2, "eu", "us")
    compact(table, "eu")
    write(table, 3, "eu", "us")
    snapshot = table.snapshot()
    assert snapshot.positions == {"shop/stock/1/deltas": 2}
    assert {partition.own.partition_id: len(partition.waiting) for partition in snapshot.partitions} == {
        "eu": 0,
        "us": 1,
        "asia": 0,
    }
    assert (len(snapshot.waiting), snapshot.newer, snapshot.row_count) == (1, 2, None)
    assert numbers_of(snapshot.scan().to_arrow().to_pylist()) == [1, 2, 2]
    assert len(table.snapshot(fresh=True).waiting) == 3
    compact(table)
    assert (table.snapshot().row_count, table.snapshot().newer) == (3, 0)


def test_a_partition_that_is_new_belongs_to_the_cut_before_it_is_compacted(root: str) -> None:
    table = make(root)
    write(table, 1, "eu")
    compact(table)
    write(table, 2)
    assert [*map(str, numbers_of(table.to_arrow().to_pylist()))] == ["1"]
    compact(table, "eu")
    assert numbers_of(table.to_arrow().to_pylist()) == [2, 2, 2]
    assert len(table.lookup({"id": 1})) == 3


def test_a_table_that_was_never_compacted_has_no_rows_as_compacted(root: str) -> None:
    table = make(root)
    assert table.snapshot().positions == {"shop/stock/1/deltas": 0}
    write(table, 1)
    snapshot = table.snapshot()
    assert (snapshot.positions, snapshot.row_count, snapshot.newer) == ({"shop/stock/1/deltas": 0}, 0, 3)
    assert table.to_arrow().num_rows == 0


def test_a_snapshot_keeps_its_rows_and_travels(root: str) -> None:
    table = make(root)
    write(table, 1)
    compact(table)
    write(table, 2)
    compact(table, "us")
    held = table.snapshot()
    travelled = pickle.loads(pickle.dumps(held))
    assert travelled == held
    write(table, 3)
    table.alter(rename_columns={"n": "amount"}, add_columns={"more": "int64"})
    compact(table)
    for snapshot in (held, travelled):
        assert numbers_of(snapshot.scan().to_arrow().to_pylist()) == [2, 2, 2]
        assert numbers_of(read_key(snapshot, {"id": 1})) == [2, 2, 2]


def test_a_snapshot_whose_files_are_vacuumed_names_one_instead_of_giving_other_rows(root: str) -> None:
    table = make(root)
    write(table, 1)
    compact(table)
    write(table, 2)
    compact(table, "us")
    held = table.snapshot()
    there = {object_.path for object_ in open_objects(root).list_objects("tables", recursive=True)}
    write(table, 3)
    compact(table)
    trim_and_vacuum(table)
    gone = there - {object_.path for object_ in open_objects(root).list_objects("tables", recursive=True)}
    for read in (lambda: held.scan().to_arrow(), lambda: read_key(held, {"id": 1})):
        with pytest.raises(siltstone.CorruptionError) as raised:
            read()
        assert any(path in str(raised.value) for path in gone)


def test_deltas_that_are_trimmed_before_any_round_has_them_are_named(root: str) -> None:
    table = make(root)
    write(table, 1)
    compact(table)
    write(table, 2)
    compact(table, "us")
    eu = next(source for source in table._sources() if source.partition_values == ["eu"])
    storage.delete_deltas(eu, last_stream_position=2, root=root)
    with pytest.raises(siltstone.CorruptionError, match=r"deltas/eu: deltas up to 2 are trimmed, but .*up to 1 only"):
        table.to_arrow()
    assert numbers_of(table.to_arrow(as_of=1).to_pylist()) == [1, 1, 1]


def test_a_damaged_round_completion_file_is_named(root: str) -> None:
    table = make(root)
    write(table, 1)
    compact(table)
    (file,) = [
        object_.path
        for object_ in open_objects(root).list_objects("tables", recursive=True)
        if "/compacted/us/rounds/" in object_.path
    ]
    open_objects(root).replace(file, b"{}")
    with pytest.raises(siltstone.CorruptionError, match=file):
        table.to_arrow()


class TestPartitionsOfAnotherTable:
    """Partitions that were rebased on behalf of another table have positions in its stream."""

    @pytest.fixture
    def copy(self, root: str) -> siltstone.Table:
        """A table of which two partitions follow another one, which goes on; one of them less far."""
        stock = make(root)
        write(stock, 1, "eu", "us")
        copy = make(root, "shop.copy")
        copy.write(stock.to_arrow(include_uncompacted=True))
        self.rebase(copy, stock, 1)
        write(stock, 2)
        self.compact(copy, "us", stock)
        return copy

    def rebase(self, copy: siltstone.Table, stock: siltstone.Table, watermark: int) -> None:
        for source, behalf in zip(copy._sources(), stock._sources(), strict=True):
            more: dict[str, Any] = {"rebase_source": behalf, "rebase_high_watermark": watermark}
            run_session(Request(source, compacted_partition(source), ("id",), copy.lake.root, **more), run_here)

    def compact(self, copy: siltstone.Table, zone: str, stock: siltstone.Table) -> None:
        (own,) = [source for source in copy._sources() if source.partition_values == [zone]]
        (source,) = [source for source in stock._sources() if source.partition_values == [zone]]
        run_session(Request(source, compacted_partition(own), ("id",), copy.lake.root), run_here)

    def test_those_that_are_behind_are_merged_up_to_its_position(self, copy: siltstone.Table) -> None:
        write(copy.lake.table("shop.stock"), 3)
        snapshot = copy.snapshot()
        assert snapshot.positions == {"shop/stock/1/deltas": 2}
        assert numbers_of(copy.to_arrow().to_pylist()) == [2, 2]
        assert numbers_of(copy.lookup({"id": 1})) == [2, 2]
        assert numbers_of(copy.to_arrow(include_uncompacted=True).to_pylist()) == [3, 3]
        assert numbers_of(copy.to_arrow(as_of=1).to_pylist()) == [1, 1]

    def test_the_table_has_a_position_of_its_own_beside(self, copy: siltstone.Table) -> None:
        write(copy, 7, "asia")
        compact(copy, "asia")
        assert copy.snapshot().positions == {"shop/copy/1/deltas": 2, "shop/stock/1/deltas": 2}
        assert sorted(numbers_of(copy.to_arrow().to_pylist())) == [2, 2, 7]

    def test_without_that_table_the_compacted_rows_are_there_still(self, copy: siltstone.Table) -> None:
        copy.lake.drop_table("shop.stock")
        assert sorted(numbers_of(copy.to_arrow().to_pylist())) == [1, 2]
        with pytest.raises(siltstone.NotFoundError, match=r"was compacted from .*whose table was dropped"):
            copy.to_arrow(include_uncompacted=True)


def test_a_table_that_follows_another_as_a_whole_has_the_partitions_that_begin_there(root: str) -> None:
    stock = make(root)
    write(stock, 1, "eu", "us")
    copy = make(root, "shop.copy")
    for source in stock._sources():
        own = storage.stage_partition(copy.snapshot().streams[0].locator, source.partition_values, root=root).locator
        more: dict[str, Any] = {"rebase_source": source}
        run_session(Request(source, compacted_partition(own), ("id",), root, **more), run_here)
    write(stock, 2)
    assert numbers_of(copy.to_arrow().to_pylist()) == [1, 1]
    assert numbers_of(copy.to_arrow(include_uncompacted=True).to_pylist()) == [2, 2, 2]
    (us,) = [source for source in stock._sources() if source.partition_values == ["us"]]
    (own,) = [source for source in copy._sources() if source.partition_values == ["us"]]
    run_session(Request(us, compacted_partition(own), ("id",), root), run_here)
    assert numbers_of(copy.to_arrow().to_pylist()) == [2, 2, 2]
    assert numbers_of(copy.lookup({"id": 1})) == [2, 2, 2]


class SetClock(clock.SystemClock):
    """A clock that shows what it is set to."""

    time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms


def at(time_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)


class TestTimes:
    """As of a time, all partitions are at the newest position that was committed by then."""

    @pytest.fixture
    def table(self, root: str) -> siltstone.Table:
        """A table that was written at 1000, 2000 and 3000 ms, not every time to all partitions."""
        set_clock = SetClock()
        with clock.replaced(set_clock):
            for set_clock.time_ms in (1000, 2000, 3000):
                if set_clock.time_ms == 1000:
                    table = make(root)
                write(table, set_clock.time_ms // 1000, *(ZONES if set_clock.time_ms != 2000 else ("eu",)))
                compact(table, "eu")
        return table

    def test_each_time_has_one_position(self, table: siltstone.Table) -> None:
        for time_ms, position, numbers in [
            (999, 0, []),
            (1000, 1, [1, 1, 1]),
            (2999, 2, [1, 2, 1]),
            (3000, 3, [3, 3, 3]),
            (1 << 40, 3, [3, 3, 3]),
        ]:
            assert table.snapshot(as_of=at(time_ms)).positions == {"shop/stock/1/deltas": position}
            assert numbers_of(table.to_arrow(as_of=at(time_ms)).to_pylist()) == numbers

    def test_a_time_of_which_the_deltas_are_trimmed_is_refused_instead_of_giving_fewer_rows(
        self, table: siltstone.Table
    ) -> None:
        compact(table)
        set_clock = SetClock()
        set_clock.time_ms = 4000
        with clock.replaced(set_clock):
            for source in table._sources():
                storage.delete_deltas(source, last_stream_position=3, root=table.lake.root)
        with pytest.raises(siltstone.InvalidInputError, match=r"up to position 3 are trimmed.*give a position"):
            table.to_arrow(as_of=at(3500))
        assert numbers_of(table.to_arrow(as_of=at(4000)).to_pylist()) == [3, 3, 3]
        assert numbers_of(table.to_arrow(as_of=3).to_pylist()) == [3, 3, 3]


def test_a_read_asks_each_log_once(root: str) -> None:
    table = make(root)
    for n in (1, 2):
        write(table, n)
        compact(table)
    with faults(root) as store:
        table.snapshot()
        known = len(store.history)
        table.snapshot()
    # What a log costs to ask is its own affair.
    asked = [folder for folder, _ in itertools.groupby(map(folder_of, store.history[known:]))]
    folder = next(partition.folder for partition in table.snapshot().partitions).rpartition("/compacted/")[0]
    logs = ["catalog", *(f"{folder}/compacted/{zone}/log" for zone in ZONES), f"{folder}/log"]
    completions = [f"{folder}/compacted/{zone}/rounds" for zone in ZONES]
    assert asked == [*logs, *completions]


def folder_of(call: str) -> str:
    """Return the folder of what a call to the store was for."""
    return call.rpartition(" ")[2].rpartition("/")[0]


def test_merging_a_partition_that_is_behind_finds_rows_of_any_kind_by_their_key(root: str) -> None:
    table = make(root)
    table.write(pa.table({"zone": ["eu"] * 40, "id": range(40), "n": [0] * 40}))
    table.write(pa.table({"zone": ["us"], "id": [0], "n": [0]}))
    small = {"settings": Settings(bucket_rows=5, page_buckets=2)}
    compact(table, **small)
    table.write(pa.table({"zone": ["eu"] * 2, "id": [3, 50], "n": [1, 1]}))
    table.write(pa.table({"zone": ["eu"], "id": [4]}), "delete", delete_columns=["zone", "id"])
    table.write(pa.table({"zone": ["us"], "id": [0], "n": [1]}))
    compact(table, "us")
    rows = oracle_of(table).rows()
    same_rows(table.to_arrow(), rows)
    for number in range(51):
        same_rows(table.lookup({"id": number}), [row for row in rows if row["id"] == number])


@every_read
def test_partitions_that_another_process_began_and_compacted_since_are_read(read: Read, local_root: str) -> None:
    table = make(local_root)
    write(table, 1, "asia")
    compact(table)
    table.to_arrow()
    with pytest.MonkeyPatch.context() as other_process:
        other_process.setattr(commit_module, "_logs", {})
        write(table, 2, "eu")
        write(table, 3, "us")
        compact(table)
    assert read(table) == [1, 2, 3]


def make_by_zone(root: str) -> siltstone.Table:
    """Make a table whose keys name their partitions, all of them compacted."""
    table = siltstone.open(root).create_table(
        "shop.zoned",
        schema={"zone": "string", "id": "int64", "n": "int64"},
        primary_keys=["zone", "id"],
        partition_keys=["zone"],
    )
    write(table, 1)
    compact(table)
    return table


def opened(table: siltstone.Table, read: Callable[[], object]) -> set[str]:
    """Return the partitions that a read asks anything of."""
    with faults(table.lake.root) as store:
        read()
    return {call.partition("/compacted/")[2].partition("/")[0] for call in store.history if "/compacted/" in call}


KEYED: dict[str, Callable[[siltstone.Table], list[Any]]] = {
    "lookup": lambda table: table.lookup({"zone": "eu", "id": 1}),
    "scan": lambda table: table.scan(where="zone = 'eu'").to_arrow().to_pylist(),
    "fresh scan": lambda table: table.scan(where="zone in ('eu', 'nowhere')", fresh=True).to_arrow().to_pylist(),
    "scan as of": lambda table: table.scan(where="id = 1 and zone = 'eu'", as_of=9).to_arrow().to_pylist(),
}
every_keyed = pytest.mark.parametrize("read", KEYED.values(), ids=list(KEYED))


@every_keyed
def test_a_read_that_names_its_partition_opens_no_other(
    root: str, read: Callable[[siltstone.Table], list[Any]]
) -> None:
    table = make_by_zone(root)
    write(table, 2, "us")
    assert opened(table, lambda: read(table)) == {"eu"}
    assert numbers_of(read(table)) == [1]


@every_keyed
def test_a_read_that_names_its_partition_sees_all_of_a_commit_that_another_one_has(
    root: str, read: Callable[[siltstone.Table], list[Any]]
) -> None:
    table = make_by_zone(root)
    write(table, 2)
    compact(table, "us")
    assert numbers_of(read(table)) == [2]
    assert table.scan(where="zone = 'eu'").snapshot.positions == table.snapshot().positions


@every_keyed
def test_a_read_that_names_its_partition_is_of_one_state_whatever_happens_at_any_of_its_calls(
    new_root: Callable[[str], str], read: Callable[[siltstone.Table], list[Any]]
) -> None:
    made = make_by_zone(new_root("memory"))
    write(made, 2)
    compact(made, "asia")
    for at_call in itertools.count(1):
        table = copied(made, new_root("memory"))
        expected = [numbers_of(read(table))]

        def act(table: siltstone.Table = table, expected: list[list[Any]] = expected) -> None:
            write(table, 3)
            compact(table, "us")
            expected.append(numbers_of(read(table)))

        with faults(table.lake.root, at_call=at_call, kind="meet", act=act) as store:
            found = numbers_of(read(table))
        if len(expected) == 1:
            assert at_call > store.calls > 5
            return
        assert found in expected


@every_keyed
def test_a_partition_that_is_new_to_this_process_is_found(
    root: str, new_root: Callable[[str], str], read: Callable[[siltstone.Table], list[Any]]
) -> None:
    table = make_by_zone(root)
    changed = copied(table, new_root("memory"))
    changed.write(pa.table({"zone": ["mars"], "id": [1], "n": [5]}))
    compact(changed)
    source, target = open_objects(changed.lake.root), open_objects(root)
    for object_ in source.list_objects("", recursive=True):
        if target.info(object_.path) is None:
            target.create(object_.path, source.read(object_.path))
    assert table.lookup({"zone": "mars", "id": 1}) == [{"zone": "mars", "id": 1, "n": 5}]
    assert len(table.scan(where="id = 1").to_arrow()) == 4
    assert numbers_of(read(table)) == [1]
