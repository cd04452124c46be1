"""Three processes of `siltstone serve` on PostgreSQL, while leader and workers are killed and the database crashes.

`SILTSTONE_CHAOS_ROUNDS` says how often a leader and then a worker are killed; `make test-chaos` does so twenty times.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

import siltstone
from siltstone.log.commit import forget_logs
from siltstone.service import controls
from siltstone.service.database import Database, open_database
from siltstone.service.history import cycle_details, cycle_records, list_nodes, service_status
from siltstone.service.results import NodeInfo, ServiceStatus
from siltstone.service.settings import HISTORY_LIMIT
from siltstone.testing.oracle import oracle_of, same_rows
from tests.integration.serving import Fleet, RestartableServer, repeating
from tests.waiting import LIMIT_SECONDS, wait_for

pytestmark = pytest.mark.integration
ROUNDS = int(os.environ.get("SILTSTONE_CHAOS_ROUNDS", "1"))
NODES = ("n1", "n2", "n3")
# A lease that a node on a busy machine does not miss: nobody but those killed may lose a claim.
QUICK = ("--interval", "1s", "--tick", "1s", "--lease", "15s", "--master", "local[1]", "--port", "0")
KEYS = 3000
# A claim of the table that is partitioned by them has many partitions.
REGIONS = 12
FEED_SECONDS = 0.3
Role = Literal["leader", "worker"]


@dataclass
class Service:
    """What runs, and what it works on."""

    server: RestartableServer
    database: Database
    fleet: Fleet
    tables: Sequence[siltstone.Table]
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def feed(self) -> None:
        """Write one more delta, to one table after another."""
        number = next(self.numbers)
        rng = np.random.default_rng(number)
        table = self.tables[number % len(self.tables)]
        ids = rng.choice(KEYS, 60, replace=False)
        is_delete = table.version.primary_keys and number % 5 == 4
        if is_delete:
            table.write(changes(ids[:20], number).select(["id", *table.version.partition_keys]), type="delete")
        else:
            table.write(changes(ids, number))

    def status(self) -> ServiceStatus:
        return service_status(self.database)

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes whose processes run now."""
        pids = self.fleet.pids()
        return [node for node in list_nodes(self.database) if pids.get(node.name) == node.pid]


def changes(ids: Sequence[int] | np.ndarray, number: int) -> pa.Table:
    """Return rows for any of the tables."""
    rng = np.random.default_rng(number)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "region": [f"region {id_ % REGIONS}" for id_ in ids],
            "moment": rng.integers(0, 1000, len(ids)),
            "v": [f"{number}-{id_}" for id_ in ids],
        }
    )


def make_tables(root: str) -> list[siltstone.Table]:
    """Create small tables, each with a meaning of its own, and write a first delta to each."""
    schema = {"id": "int64", "region": "string", "moment": "int64", "v": "string"}
    lake = siltstone.open(root)
    made = [
        lake.create_table("shop.orders", schema=schema, primary_keys=["id"]),
        lake.create_table(
            "shop.stock", schema=schema, primary_keys=["id"], partition_keys=["region"], unique_within_partition=True
        ),
        lake.create_table("shop.prices", schema=schema, primary_keys=["id"], sort_keys=["moment"]),
        lake.create_table("shop.events", schema=schema),
    ]
    for table in made:
        table.write(changes(range(KEYS), 0))
    return made


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("chaos")
    root = str(folder / "lake")
    server = RestartableServer()
    database = open_database(server.address)
    fleet = Fleet(folder, root, server.address, *QUICK)
    try:
        tables = make_tables(root)
        for name in NODES:
            fleet.start(name)
        yield Service(server, database, fleet, tables)
        assert fleet.stop() == dict.fromkeys(NODES, 0)
        wait_for("the end of every process of the nodes, also of those killed", lambda: not fleet.left_over())
    finally:
        fleet.kill_all()
        database.close()
        server.close()
        forget_logs(root)


def test_every_cycle_ends_although_leaders_and_workers_are_killed(service: Service) -> None:
    killed: list[int] = []
    with repeating(service.feed, FEED_SECONDS):
        for number in range(ROUNDS):
            # In a cycle that nobody was killed in, so that no partition is given up for good.
            last = killed[-1] if killed else 0
            killed.append(kill_in_a_cycle(service, "leader", after=last, completed=number % 2))
            killed.append(kill_in_a_cycle(service, "worker", after=last, completed=number % 2))
    check_all(service)
    evictions = service.status().totals.evictions
    assert evictions >= ROUNDS, "each worker that was killed had a claim"
    print(report(service, killed))


@pytest.mark.parametrize("outage", ["short", "long"])
def test_a_crash_of_the_database_in_a_cycle_is_survived(service: Service, outage: str) -> None:
    before = service.fleet.pids()
    with repeating(service.feed, FEED_SECONDS):
        cycle = wait_for("a claim", lambda: service.status().active and service.status().cycle_count)
        said = {name: service.fleet.log(name).stat().st_size for name in NODES}
        service.server.crash()
        if outage == "long":
            # Longer than all tries of one transaction take.
            wait_for(
                "every node to fail", lambda: all("could not lead" in _said(service, name, said) for name in NODES)
            )
        service.server.start()
        wait_for("the next cycle", lambda: service.status().cycle_count > cycle)
    check_all(service)
    assert service.fleet.pids() == before, "the nodes recover by themselves"


def _said(service: Service, name: str, since: dict[str, int]) -> str:
    return service.fleet.log(name).read_bytes()[since[name] :].decode()


def kill_in_a_cycle(service: Service, role: Role, *, after: int, completed: int) -> int:
    """Kill the leader, or a worker, while a partition is being compacted; start it again, and return the cycle.

    It is a cycle after the one given, and so many of its checkpoints are completed.
    """

    def find() -> NodeInfo | None:
        status = service.status()
        if not status.active or status.completed < completed or status.cycle_count <= after:
            return None
        nodes = service.nodes()
        fitting = [
            node for node in nodes if (node.is_leader if role == "leader" else node.claims and not node.is_leader)
        ]
        return fitting[0] if fitting else None

    while True:
        victim = wait_for(f"a {role} in the middle of a cycle", find)
        cycle = service.status().cycle_count
        service.fleet.kill(victim.name)
        status = service.status()
        claims = {node.owner: node.claims for node in list_nodes(service.database)}
        service.fleet.start(victim.name)
        # Who dies cannot finish a cycle or hand a claim back, so what is still open now was open then.
        is_middle = status.is_running and status.cycle_count == cycle and bool(status.active)
        if is_middle and (role == "leader" or claims[victim.owner]):
            return cycle


def check_all(service: Service) -> None:
    """Let the service compact what is left, and compare the database and all tables with what they should be."""
    request = controls.trigger_cycle(service.database)
    done = controls.wait_for_request(service.database, request.request_id, timeout_seconds=LIMIT_SECONDS)
    assert done.outcome == "COMPLETED", cycle_records(service.database, 1)
    controls.freeze(service.database)
    wait_for("the end of the last cycle", lambda: not service.status().is_running)
    check_books(service)
    for table in service.tables:
        same_rows(table.to_arrow(), oracle_of(table).rows())
        assert table.fsck(deep=True) == []
    controls.unfreeze(service.database)


def check_books(service: Service) -> None:
    """See that each cycle ever begun is in the history once, completed, and that nobody has a claim."""
    status = service.status()
    last = status.cycle_count
    records = cycle_records(service.database)
    assert [record.cycle_count for record in records] == list(range(last, max(last - HISTORY_LIMIT, 0), -1))
    assert [record for record in records if record.status != "COMPLETED"] == []
    assert (status.totals.completed_cycles, status.totals.failed_cycles) == (last, 0)
    assert (status.active, status.idle, [node.claims for node in list_nodes(service.database) if node.claims]) == (
        0,
        0,
        [],
    )
    open_attempts = [
        attempt
        for record in records
        for attempt in cycle_details(service.database, record.cycle_count).timeline
        if attempt.status == "STARTED"
    ]
    assert open_attempts == []


def report(service: Service, killed: Sequence[int]) -> str:
    """Return the figures of a run."""
    status = service.status()
    longest = max(cycle_record.duration_ms for cycle_record in cycle_records(service.database))
    deltas = sum(len(table.deltas()) for table in service.tables)
    return (
        f"\n{len(killed)} kills in {len(set(killed))} cycles of {status.cycle_count}; {status.totals.completed_cycles} "
        f"completed, {status.totals.failed_cycles} failed, {status.totals.evictions} claims expired; "
        f"term {status.leader.term if status.leader else 0}; longest cycle {longest / 1000:.1f} s; {deltas} deltas"
    )
