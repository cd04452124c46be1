"""A table of many partitions under the service: one job for each claim, and each partition on its own."""

import dataclasses
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import ConflictError, LeaseLostError
from siltstone.log.commit import forget_logs
from siltstone.model import Follower, PartitionLocator
from siltstone.objects import open_objects
from siltstone.rounds import plan, session
from siltstone.rounds.events import Event, RoundCommitted, RoundStarted
from siltstone.service import trims
from siltstone.service.history import cycle_details
from siltstone.service.lake_tables import LakeTables
from siltstone.service.leader import Leader
from siltstone.service.results import CycleRecord
from siltstone.service.worker import Heartbeat
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog
from siltstone.table.completion import locate_destination
from siltstone.table.followers import TrimLimit, trim_limit
from siltstone.testing import Killed
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import Cluster, overwrite
from tests.unit.service.cycling import World, status_of


@pytest.fixture
def engine() -> Cluster:
    return Cluster(0)


@pytest.fixture
def visits() -> siltstone.Table:
    return siltstone.open(f"memory://{uuid.uuid4().hex}").create_table(
        "web.visits",
        schema={"day": "string", "id": "int64", "v": "string"},
        primary_keys=["day", "id"],
        partition_keys=["day"],
        properties={"delta_retention_seconds": "0"},
    )


@pytest.fixture
def world(tmp_path: Path, visits: siltstone.Table, engine: Cluster) -> Iterator[World]:
    made = World(f"sqlite:///{tmp_path}/service.db", tables="")
    made.tables = LakeTables(visits.lake, engine=engine)  # type: ignore[assignment]
    yield made
    made.close()


def write(table: siltstone.Table, value: str, days: int) -> None:
    """Write one row for each of so many partitions."""
    names = [f"{number:04}" for number in range(days)]
    table.write(pa.table({"day": names, "id": [1] * days, "v": [value] * days}))


def run_to_the_end(world: World, leader: Leader, *workers: str) -> CycleRecord:
    made = [world.worker(name) for name in workers]
    while sum(worker.step() for worker in made):
        pass
    record = leader.tick().record
    assert record is not None
    return record


def rounds(table: siltstone.Table) -> dict[object, int]:
    """The number of the current round of each partition."""
    return {each.destination_partition_locator.partition_values[0]: each.round_id for each in table.current_rounds()}


def test_hundreds_of_partitions_are_one_job_and_a_damaged_one_fails_alone_by_its_name(
    world: World, visits: siltstone.Table, engine: Cluster
) -> None:
    write(visits, "a", 250)
    (damaged,) = [delta for delta in visits.deltas() if delta.partition_values == ["0123"]]
    path = damaged.manifest.entries[0].uri
    overwrite(visits.lake.root, path, b"damaged")
    record = run_to_the_end(world, world.begin(), "one")
    assert engine.jobs == [250]
    assert (record.status, record.partitions, record.completed, record.failed) == ("FAILED", 250, 249, 1)
    (failed,) = record.failed_partitions
    assert failed.partition == "web/visits/1/deltas/0123"
    assert path in failed.error
    assert (record.rounds, record.rows, record.attempts) == (249, 249, 250)
    assert rounds(visits) == {f"{number:04}": 1 for number in range(250) if number != 123}
    timeline = cycle_details(world.database, 1).timeline
    assert Counter((each.status, each.rows, each.high_watermark) for each in timeline) == {
        ("COMPLETED", 1, 1): 249,
        ("FAILED", 0, None): 1,
    }
    again = world.leader("again")
    world.due()
    assert again.tick().partitions == 1, "what was compacted is not due, and is trimmed"
    assert [delta.partition_values for delta in visits.deltas()] == [["0123"]]


@pytest.mark.parametrize(("cores", "jobs"), [(8, [1] * 6), (32, [1, 4])])
def test_a_job_has_no_more_bytes_than_fit_its_cores(
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    visits: siltstone.Table,
    engine: Cluster,
    cores: int,
    jobs: list[int],
) -> None:
    engine.cores = cores
    write(visits, "a", 5)
    # The second one has more than fits a round, so that it is planned anew, once it is known how many cores there are.
    visits.write(pa.table({"day": ["0000"], "id": [2], "v": ["b"]}))
    sizes = {delta.partition_values[0]: delta.manifest.content_length for delta in visits.deltas()}
    for module in (plan, session):
        monkeypatch.setattr(module, "MAX_ROUND_BYTES", 2 * max(sizes.values()) - 2)
    run_to_the_end(world, world.begin(), "one")
    assert engine.jobs == jobs
    assert len(visits.current_rounds()) == 5


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("what", ["log", "rounds", "a file"])
def test_a_partition_whose_compacted_rows_are_damaged_fails_alone(
    world: World, visits: siltstone.Table, engine: Cluster, what: str, is_checked: bool
) -> None:
    write(visits, "a", 4)
    leader = world.begin()
    assert run_to_the_end(world, leader, "one").status == "COMPLETED"
    bad = visits.current_rounds()[2]
    write(visits, "b", 4)
    root = visits.lake.root
    folder = locate_destination(bad.destination_partition_locator, root=root).folder
    damaged = [each.path for each in open_objects(root).list_objects(f"{folder}/{what}")]
    for path in damaged or [bad.files[0].uri]:
        overwrite(root, path, b"damaged")
    forget_logs(root)
    if not is_checked:
        # Another process, which has not looked for files today.
        world.tables = LakeTables(visits.lake, engine=engine)  # type: ignore[assignment]
    world.due()
    second = world.leader("second")
    assert second.tick().action == "begun"
    record = run_to_the_end(world, second, "two")
    assert (record.completed, record.failed) == (3, 1)
    (failed,) = record.failed_partitions
    assert failed.partition == "web/visits/1/deltas/0002"
    assert engine.jobs == [4, 4 if is_checked and what == "a file" else 3]


def test_two_workers_share_a_very_large_table(world: World, visits: siltstone.Table, engine: Cluster) -> None:
    world.settings = dataclasses.replace(world.settings, claim_partitions=5)
    write(visits, "a", 12)
    record = run_to_the_end(world, world.begin(), "one", "two")
    assert record.status == "COMPLETED"
    assert engine.jobs == [5, 5, 2]
    timeline = cycle_details(world.database, 1).timeline
    assert Counter(each.worker for each in timeline) == {"one": 7, "two": 5}
    assert rounds(visits) == dict.fromkeys((f"{number:04}" for number in range(12)), 1)


@pytest.mark.parametrize("dies_at", [RoundStarted, RoundCommitted])
@pytest.mark.parametrize("committed", [0, 5])
def test_what_a_worker_leaves_behind_that_dies_in_the_middle_is_taken_over_and_nothing_is_done_twice(
    world: World, visits: siltstone.Table, engine: Cluster, dies_at: type[Event], committed: int
) -> None:
    write(visits, "a", 12)
    leader = world.begin()
    claim = world.claim("dying")
    seen: list[Event] = []

    def die(event: Event) -> None:
        seen.append(event)
        if sum(isinstance(each, dies_at) for each in seen) > committed:
            raise Killed("in the middle of a claim")

    with pytest.raises(Killed):
        list(world.tables.compact([partition.locator for partition in claim.partitions], die))
    done = committed + (dies_at is RoundCommitted)
    assert len(rounds(visits)) == done
    world.clock.advance(world.settings.claim_lease_seconds + 1)
    assert len(leader.tick().evicted) == 12
    record = run_to_the_end(world, leader, "other")
    assert (record.status, record.completed, record.rounds) == ("COMPLETED", 12, 12 - done)
    assert rounds(visits) == dict.fromkeys((f"{number:04}" for number in range(12)), 1)
    same_rows(visits.to_arrow().to_pylist(), oracle_of(visits).rows())


def test_a_worker_that_loses_its_claim_commits_nothing_more(
    world: World, visits: siltstone.Table, engine: Cluster
) -> None:
    write(visits, "a", 6)
    leader = world.begin()
    claim = world.claim("slow")
    heartbeat = Heartbeat(world.database, claim, world.settings, monotonic=world.clock.monotonic)

    def fall_asleep(event: Event) -> None:
        if len(rounds(visits)) == 2 and isinstance(event, RoundStarted):
            world.clock.advance(world.settings.claim_lease_seconds + 1)
            leader.tick()
        heartbeat.on_progress(event)

    with pytest.raises(LeaseLostError, match=r"web\.visits: the claim of cycle 1 is lost"):
        list(world.tables.compact([partition.locator for partition in claim.partitions], fall_asleep))
    assert len(rounds(visits)) == 2
    record = run_to_the_end(world, leader, "other")
    assert record.status == "COMPLETED"
    assert rounds(visits) == dict.fromkeys((f"{number:04}" for number in range(6)), 1)


def test_a_table_dropped_in_the_middle_is_no_failure(world: World, visits: siltstone.Table) -> None:
    write(visits, "a", 3)
    leader = world.begin()
    visits.drop()
    record = run_to_the_end(world, leader, "one")
    assert (record.status, record.completed, record.rounds) == ("COMPLETED", 3, 0)


def commits(table: siltstone.Table) -> int:
    return len(open_objects(table.lake.root).list_objects(f"{locate_stream(table).version_folder}/log"))


def locate_stream(table: siltstone.Table) -> StreamLog:
    return storage.locate_stream(table.deltas()[0].locator, root=table.lake.root)


def test_partitions_of_a_table_are_trimmed_in_one_commit(world: World, visits: siltstone.Table) -> None:
    write(visits, "a", 6)
    leader = world.begin()
    run_to_the_end(world, leader, "one")
    write(visits, "b", 3)
    before = commits(visits)
    world.due()
    leader.tick()
    assert commits(visits) == before + 1
    assert [delta.stream_position for delta in visits.deltas()] == [2, 2, 2]
    assert status_of(world).status == "STARTED"


def test_deltas_that_somebody_begins_to_follow_during_a_trim_are_kept(
    world: World, visits: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(visits, "a", 3)
    partitions = [delta.locator.partition_locator for delta in visits.deltas()]
    run_to_the_end(world, world.begin(), "one")
    follower = Follower(locator=partitions[0], folder="tables/web/copy/1/compacted/0000", start_position=0)
    asked: list[PartitionLocator] = []

    def limit_while_a_follower_comes(source: PartitionLocator, now_ms: int, *, root: str) -> TrimLimit:
        asked.append(source)
        if len(asked) == 2:
            # Of a table that is not there yet, so that the next one who asks would forget it again.
            storage.add_follower(follower, root=root)
            return TrimLimit(1, [follower])
        return trim_limit(source, now_ms, root=root) if len(asked) == 1 else TrimLimit(1, [follower])

    monkeypatch.setattr(trims, "trim_limit", limit_while_a_follower_comes)
    counts = dict(world.tables.trim(dict.fromkeys(partitions, 1), lambda: None))
    assert counts == {partitions[0]: 0, partitions[1]: 1, partitions[2]: 1}
    assert [delta.partition_values for delta in visits.deltas()] == [["0000"]]
    asked.clear()
    monkeypatch.setattr(trims, "trim_limit", lambda source, now_ms, *, root: TrimLimit(1, []))
    ((_, refused),) = world.tables.trim({partitions[0]: 1}, lambda: None)
    assert isinstance(refused, ConflictError)
    assert len(visits.deltas()) == 1
