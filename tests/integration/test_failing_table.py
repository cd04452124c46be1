"""One table of three hundred fails: the others are compacted and trimmed, it backs off, and is back once it is cured."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

import siltstone
from siltstone.cli.main import app
from siltstone.rows.merge import run_here
from siltstone.service import LakeTables, ServiceSettings, open_database, service_status
from siltstone.service.history import cycle_records
from siltstone.service.leader import Leader
from siltstone.service.results import CycleRecord
from siltstone.service.worker import Worker
from siltstone.web.app import LOOPBACK_HOSTS, create_app
from siltstone.web.site import LakeReader, Site
from tests.unit.rounds.compaction import make_table, rows
from tests.unit.service.cycling import Clock
from tests.unit.web.serving import HERE

pytestmark = pytest.mark.integration

COUNT = 300
BAD = "shop.table_007"


class Service:
    """A lake of many tables of one row each, and one node that leads and works; an interval passes with each cycle."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "lake")
        self.address = f"sqlite:///{folder}/service.db"
        self.clock = Clock()
        self.database = open_database(self.address, clock=self.clock)
        self.lake = siltstone.open(self.root)
        self.tables = [make_table(self.root, f"shop.table_{number:03}") for number in range(COUNT)]
        self.settings = ServiceSettings(retry_pause_seconds=0, backlog_bytes=None)
        # All deltas that are compacted are past their retention.
        worked_on = LakeTables(self.lake, engine=run_here, delta_retention_seconds=-3600)
        self.leader = Leader(self.database, worked_on, self.settings, owner="node#1", name="node")
        self.worker = Worker(self.database, worked_on, self.settings, owner="node#1")
        self.leader.tick()

    def write(self, value: str) -> None:
        for table in self.tables:
            table.write(rows([1], value))

    def run_cycle(self, while_it_runs: Callable[[], object] = lambda: None) -> CycleRecord:
        self.clock.advance(self.settings.interval_seconds + 1)
        assert self.leader.tick().action == "begun"
        while_it_runs()
        while self.worker.step():
            pass
        assert self.leader.tick().action == "finished"
        (record,) = cycle_records(self.database, 1)
        return record

    def page(self, path: str) -> str:
        site = Site(self.database, LakeReader(self.lake), self.settings, node="node")
        with TestClient(create_app(site, hosts=LOOPBACK_HOSTS), base_url=HERE) as browser:
            answer = browser.get(path)
            assert answer.status_code == 200
            return str(answer.text)

    def metrics(self) -> set[str]:
        return set(self.page("/metrics").splitlines())

    def command(self, *words: str) -> str:
        done = CliRunner().invoke(app, ["--root", self.root, "cycle", *words, "--database", self.address])
        assert done.exit_code == 0, done.output
        return done.output


def test_one_table_of_three_hundred_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing here is about power cuts.
    monkeypatch.setattr("os.fsync", lambda _: None)
    service = Service(tmp_path)
    service.write("a")
    first = service.run_cycle()
    assert (first.status, first.tables, first.failed_tables) == ("COMPLETED", COUNT, 0)

    service.write("b")
    bad = service.lake.table(BAD)
    (lost,) = (Path(service.root, entry.uri) for delta in bad.deltas()[-1:] for entry in delta.manifest.entries)
    aside = lost.rename(tmp_path / "aside.parquet")
    second = service.run_cycle()
    # By the rule of cycles, one partition that fails makes its cycle FAILED; the others are done all the same.
    assert (second.status, second.failure_reason) == ("FAILED", "partitions")
    assert (second.tables, second.failed_tables, second.completed, second.failed) == (COUNT, 1, COUNT - 1, 1)
    assert [each.partition.split("/")[1] for each in second.failed_partitions] == ["table_007"]
    for path in ("/", f"/cycles/{second.cycle_count}"):
        assert "1 of 300 tables failed" in service.page(path)
    assert "1 of 300 tables failed" in service.command("status")
    assert "1 of 300 tables failed" in service.command("show", str(second.cycle_count))
    assert {"siltstone_tables 300.0", "siltstone_tables_failing 1.0", "siltstone_healthy 0.0"} <= service.metrics()
    assert f'siltstone_table_consecutive_failures{{table="{BAD}"}} 1.0' in service.metrics()
    (failing,) = service_status(service.database).failing
    assert failing.table == BAD
    assert lost.name in failing.partitions[0].error
    assert lost.name in service.page(f"/tables/{BAD}")

    service.write("c")
    third = service.run_cycle()
    # It began with a trim: of the table that failed only what its last good checkpoint had read.
    assert second.trimmed_deltas is None
    assert (third.tables, third.failed_tables, third.completed) == (COUNT, 1, COUNT - 1)
    waiting = {table.name: [delta.stream_position for delta in table.deltas()] for table in service.tables}
    assert waiting.pop(BAD) == [2, 3]
    assert all(positions == [3] for positions in waiting.values())

    service.write("d")
    fourth = service.run_cycle()
    # After the second failure in a row, one cycle goes without it.
    assert (fourth.status, fourth.tables, fourth.completed) == ("COMPLETED", COUNT - 1, COUNT - 1)
    assert service_status(service.database).health_problem == f"1 table fails: {BAD}"
    assert "siltstone_healthy 0.0" in service.metrics()

    aside.rename(lost)
    fifth = service.run_cycle()
    assert (fifth.status, fifth.tables) == ("COMPLETED", 1)
    assert service_status(service.database).is_healthy
    assert {"siltstone_tables_failing 0.0", "siltstone_healthy 1.0"} <= service.metrics()
    for table in service.tables:
        assert table.to_arrow().to_pylist() == rows([1], "d").to_pylist()
