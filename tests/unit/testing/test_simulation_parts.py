"""The parts of the simulator: clocks, the store, damage, and a checker that knows what must not be."""

import random

import pyarrow as pa
import pytest

from siltstone.errors import AlreadyExistsError, NotFoundError
from siltstone.testing.oracle import Oracle
from siltstone.testing.simulation.checker import Ledger, ViolationError
from siltstone.testing.simulation.clocks import HOUR_MS, ProcessClock, TrueTime
from siltstone.testing.simulation.damage import damage_store
from siltstone.testing.simulation.processes import Task
from siltstone.testing.simulation.store import SimulatedObjects


def new_store() -> SimulatedObjects:
    return SimulatedObjects("memory://parts", ProcessClock(TrueTime()), lambda name, path, do: do())


def test_a_clock_is_ahead_stands_still_and_is_put_right() -> None:
    time = TrueTime()
    clock = ProcessClock(time)
    clock.change("set", HOUR_MS)
    assert clock.now_ms() == time.now_ms + HOUR_MS
    clock.change("stop")
    time.pass_ms(500)
    assert clock.now_ms() == time.now_ms + HOUR_MS - 500
    clock.change("right")
    assert clock.is_right
    assert clock.now_ms() == time.now_ms


def test_a_monotonic_clock_stands_still_while_its_machine_sleeps() -> None:
    time = TrueTime()
    clock = ProcessClock(time)
    time.pass_ms(1000)
    clock.fall_asleep()
    time.pass_ms(HOUR_MS)
    clock.wake_up()
    time.pass_ms(1000)
    assert clock.monotonic() == 2.0


def test_a_task_runs_only_while_it_is_waited_for() -> None:
    seen: list[int] = []

    def count() -> None:
        for number in range(3):
            seen.append(number)
            task.pause()

    task = Task(count)
    for expected in ([0], [0, 1], [0, 1, 2]):
        task.resume()
        assert seen == expected
        assert not task.is_over
    task.resume()
    assert task.is_over


def test_the_store_creates_an_object_once_and_writes_it_when_closed() -> None:
    store = new_store()
    store.create("log/0", b"one")
    with pytest.raises(AlreadyExistsError):
        store.create("log/0", b"two")
    writer = store.open_writer("data/a")
    writer.write(b"half")
    with pytest.raises(NotFoundError):
        store.read("data/a")
    writer.close()
    assert store.read("data/a") == b"half"
    assert [object_.path for object_ in store.list_objects("data")] == ["data/a"]
    assert sorted(store.list_folders("")) == ["data", "log"]


@pytest.mark.parametrize("seed", range(20))
def test_damage_changes_what_it_names_and_never_deletes_the_end_of_a_log(seed: int) -> None:
    store = new_store()
    for name in ("catalog/0", "catalog/1", "t/log/0", "t/log/1", "t/log/1.compact", "t/a.parquet"):
        store.create(name, b'v1\n{"key":"%s"}' % name.encode())
    before = dict(store.contents)
    damage = damage_store(store, random.Random(seed))
    changed = {name for name in before if store.contents.get(name) != before[name]}
    assert changed == set(() if damage is None else damage.paths)
    assert {"catalog/1", "t/log/1"} <= set(store.contents)
    assert damage is None or damage.is_named_in(f"memory://parts/{damage.paths[0]}: is damaged")


def test_a_read_of_no_one_position_is_torn_and_of_an_old_one_stale() -> None:
    ledger = Ledger(Oracle(columns=["id", "n"], primary_keys=["id"]))
    table = pa.Table.from_pylist([{"id": 1, "n": 1}])
    reading = ledger.begin_read(is_fresh=True)
    ledger.check_read(table.slice(0, 0), reading)
    with pytest.raises(ViolationError, match="torn fresh read"):
        ledger.check_read(table, reading)
    ledger.acknowledge(100, 1)
    ledger.states[1] = frozenset({((1, "struct", (("id", (1, "int", 1)), ("n", (1, "int", 1)))), 1)})
    with pytest.raises(ViolationError, match="stale fresh read"):
        ledger.check_read(table.slice(0, 0), ledger.begin_read(is_fresh=True))
    ledger.check_read(table, ledger.begin_read(is_fresh=True))


def test_one_write_at_two_positions_is_doubled() -> None:
    ledger = Ledger(Oracle(columns=["id", "n"], primary_keys=["id"]))
    ledger.acknowledge(100, 1)
    ledger.acknowledge(100, 1)
    with pytest.raises(ViolationError, match="doubled write"):
        ledger.acknowledge(100, 2)


def test_a_compacted_read_may_be_older_after_a_rollback_only() -> None:
    ledger = Ledger(Oracle(columns=["id", "n"], primary_keys=["id"]))
    ledger.compacted(5)
    empty = pa.table({"id": pa.array([], pa.int64()), "n": pa.array([], pa.int64())})
    with pytest.raises(ViolationError, match="stale read"):
        ledger.check_read(empty, ledger.begin_read(is_fresh=False))
    reading = ledger.begin_read(is_fresh=False)
    with ledger.going_back():
        ledger.compacted(5)
        ledger.check_read(empty, ledger.begin_read(is_fresh=False))
    ledger.check_read(empty, reading)
