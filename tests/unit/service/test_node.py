"""A node with its threads: it runs cycles, survives failures, and stops without leaving claims behind."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.errors import InvalidInputError
from siltstone.service import controls
from siltstone.service.database import Database, open_database
from siltstone.service.history import cycle_details, cycle_records, list_nodes, service_status
from siltstone.service.node import Node, NodeIdentity, register_node
from siltstone.service.results import TriggerRequest
from siltstone.service.settings import ServiceSettings
from tests.unit.service.cycling import FakeTables
from tests.waiting import LIMIT_SECONDS

QUICK = ServiceSettings(tick_seconds=0.01, worker_poll_seconds=0.01, retry_pause_seconds=0, backlog_bytes=None)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path}/service.db")
    yield opened
    opened.close()


@pytest.fixture
def tables() -> FakeTables:
    made = FakeTables()
    for name in "abcde":
        made.write(name)
    return made


def run_one(database: Database, node: Node) -> TriggerRequest:
    request = controls.trigger_cycle(database)
    node.wake()
    return controls.wait_for_request(database, request.request_id, timeout_seconds=LIMIT_SECONDS)


def test_a_node_runs_the_cycles_it_is_asked_for(database: Database, tables: FakeTables) -> None:
    node = Node(database, tables, QUICK, name="one", workers=2)
    node.start()
    assert node.is_running
    assert run_one(database, node).outcome == "COMPLETED"
    assert sorted(tables.compactions) == list("abcde")
    (seen,) = list_nodes(database)
    assert (seen.name, seen.is_leader, seen.is_worker, seen.stopped_at) == ("one", True, True, None)
    assert node.stop(LIMIT_SECONDS)
    assert not node.is_running
    (seen,) = list_nodes(database)
    assert not seen.is_leader
    assert not seen.is_alive


def test_nodes_share_the_work_and_the_next_one_leads(database: Database, tables: FakeTables) -> None:
    nodes = [Node(database, tables, QUICK, name=f"n{number}", workers=1) for number in range(3)]
    for node in nodes:
        node.start()
    assert run_one(database, nodes[0]).outcome == "COMPLETED"
    leader = service_status(database).leader
    assert leader is not None
    (first,) = [node for node in nodes if node.identity.name == leader.node]
    assert first.stop(LIMIT_SECONDS)
    tables.write("a")
    left = [node for node in nodes if node is not first]
    assert run_one(database, left[0]).outcome == "COMPLETED"
    assert all(node.stop(LIMIT_SECONDS) for node in left)
    assert [cycle_record.leader for cycle_record in cycle_records(database)] != [first.identity.name] * 2
    assert sorted(tables.compactions) == list("aabcde")


def test_a_node_without_workers_only_leads(database: Database, tables: FakeTables) -> None:
    leading = Node(database, tables, QUICK, name="leading", workers=0)
    leading.start()
    working = Node(database, tables, QUICK, name="working", workers=1)
    working.start()
    assert run_one(database, leading).outcome == "COMPLETED"
    assert {each.worker for each in cycle_details(database, 1).timeline} == {"working"}
    assert working.stop(LIMIT_SECONDS)
    assert leading.stop(LIMIT_SECONDS)


def test_stopping_hands_back_what_is_not_finished_in_time(database: Database, tables: FakeTables) -> None:
    reached, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        assert may_go_on.wait(LIMIT_SECONDS)

    tables.while_compacting = wait
    node = Node(database, tables, QUICK, name="busy", workers=1)
    node.start()
    controls.trigger_cycle(database)
    assert reached.wait(LIMIT_SECONDS)
    for worker in node._workers:
        worker.abandon("the node is stopping")
    may_go_on.set()
    assert node.stop(LIMIT_SECONDS)
    assert tables.compactions == []
    status = service_status(database)
    assert (status.idle, status.active) == (5, 0)
    timeline = cycle_details(database, 1).timeline
    assert {each.status for each in timeline} == {"ABANDONED"}
    assert "the node is stopping" in str(timeline[0].error)


def test_a_compaction_that_does_not_answer_does_not_keep_a_node_from_stopping(
    database: Database, tables: FakeTables
) -> None:
    reached, may_go_on = threading.Event(), threading.Event()

    def hang() -> None:
        reached.set()
        assert may_go_on.wait(LIMIT_SECONDS)

    tables.while_compacting = hang
    node = Node(database, tables, QUICK, name="hanging", workers=1)
    node.start()
    controls.trigger_cycle(database)
    assert reached.wait(LIMIT_SECONDS)
    assert not node.stop(grace_seconds=0)
    may_go_on.set()
    assert node.stop(LIMIT_SECONDS)


def test_failures_of_any_kind_do_not_end_a_node(database: Database, tables: FakeTables) -> None:
    asked = threading.Event()

    def fail() -> None:
        asked.set()
        raise ZeroDivisionError("a mistake of ours")

    tables.while_finding = fail
    tables.errors["a"] = [MemoryError(), RuntimeError("executor lost")]
    node = Node(database, tables, QUICK, name="tough", workers=1)
    node.start()
    assert run_one(database, node).outcome == "COMPLETED"
    assert asked.is_set()
    assert node.is_running
    assert node.stop(LIMIT_SECONDS)


@pytest.mark.parametrize("name", ["", "a#b", "x" * 201, "new\nline"])
def test_names_that_would_confuse_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="node name"):
        NodeIdentity(name)


def test_a_number_of_workers_below_none_is_refused(database: Database, tables: FakeTables) -> None:
    with pytest.raises(InvalidInputError, match="-1 workers"):
        Node(database, tables, workers=-1)


def test_two_processes_of_one_name_are_two_nodes(database: Database) -> None:
    for _ in range(2):
        register_node(database, NodeIdentity("twin"), is_worker=True)
    found = list_nodes(database)
    assert [each.name for each in found] == ["twin", "twin"]
    assert len({each.owner for each in found}) == 2
