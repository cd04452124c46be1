"""A small real lake, cycles over it, and a browser without scripts."""

import re
from pathlib import Path

from fastapi.testclient import TestClient
from sqlalchemy import event

import siltstone
from siltstone.errors import CorruptionError
from siltstone.rows.merge import run_here
from siltstone.service import Database, LakeTables, ServiceSettings, controls, open_database
from siltstone.service.leader import Leader
from siltstone.service.worker import Worker
from siltstone.web.app import LOOPBACK_HOSTS, create_app
from siltstone.web.row_reader import RowReader
from siltstone.web.site import Access, LakeReader, Site
from tests.unit.rounds.compaction import make_table, rows

TOKEN = "a-long-enough-token-for-tests"
READ_TOKEN = "another-token-that-only-reads"
HERE = "http://127.0.0.1:8765"


def open_test_database(path: Path) -> Database:
    """Open a database that need not survive a power cut."""
    database = open_database(f"sqlite:///{path}")
    event.listen(database.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    database.engine.dispose()
    return database


class Service:
    """A lake with the tables shop.orders and shop.items, and one node that works when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "lake")
        self.database = open_test_database(folder / "service.db")
        self.tables = [make_table(self.root, name) for name in ("shop.orders", "shop.items")]
        self.settings = ServiceSettings(retry_pause_seconds=0, backlog_bytes=None)
        lake = LakeTables(siltstone.open(self.root), engine=run_here)
        self.leader = Leader(self.database, lake, self.settings, owner="node#1", name="node")
        self.worker = Worker(self.database, lake, self.settings, owner="node#1")
        self.ticks = 0
        self.wakings = 0
        self.is_alive = True
        self.is_spark_starting = False

    def write(self, first: int, count: int = 50) -> None:
        for table in self.tables:
            table.write(rows(range(first, first + count), "v"))

    def begin(self) -> None:
        controls.trigger_cycle(self.database)
        self.leader.tick()
        assert self.leader.tick().action in ("begun", "watches", "finished")

    def run_cycle(self) -> None:
        self.begin()
        while self.worker.step():
            pass
        self.leader.tick()

    def browser(
        self,
        *,
        token: str | None = None,
        read_token: str | None = None,
        is_private: bool = False,
        has_preview: bool = True,
        raise_server_exceptions: bool = True,
    ) -> "Browser":
        lake = siltstone.open(self.root)
        site = Site(
            self.database,
            LakeReader(lake, monotonic=self.tick),
            self.settings,
            Access(token, read_token),
            node="node",
            wake=self.wake,
            is_alive=lambda: self.is_alive,
            is_private=is_private,
            rows=RowReader(lake, wait_seconds=0) if has_preview else None,
            is_spark_starting=lambda: self.is_spark_starting,
        )
        return Browser(
            create_app(site, hosts=LOOPBACK_HOSTS),
            base_url=HERE,
            raise_server_exceptions=raise_server_exceptions,
            follow_redirects=False,
        )

    def tick(self) -> float:
        """Time that passes between looks at the lake, so that nothing is kept and looking takes none."""
        self.ticks += 1
        return (self.ticks - 1) // 2 * 60

    def wake(self) -> None:
        self.wakings += 1


class Browser(TestClient):
    """Reads pages, and sends their forms."""

    def page(self, path: str, code: int = 200) -> str:
        answer = self.get(path)
        assert answer.status_code == code, answer.text
        return str(answer.text)

    def press(self, path: str, page: str = "/", **values: str) -> int:
        """Send a form of a page, and return the code of the answer."""
        key = re.search(r'name="key" value="([0-9a-f]+)"', self.get(page).text)
        assert key is not None
        return int(self.post(path, data={"key": key[1], **values}).status_code)


def exposition(service: Service) -> str:
    """What a service exports in which a table fails, another one is paused, and one is published."""
    make_table(service.root, "shop.days", properties={"publish": "delta"}).write(rows([1], "v"))
    service.write(1)
    service.run_cycle()
    service.write(2)

    def fail(*_: object) -> None:
        raise CorruptionError("damaged")

    service.worker._tables.compact = fail  # type: ignore[method-assign, assignment]
    service.run_cycle()
    controls.pause_table(service.database, "shop.items")
    return service.browser().page("/metrics")
