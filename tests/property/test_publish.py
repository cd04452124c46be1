"""Whatever happens to a table, each version that is published has the rows of one of its states, and its changes, in other people's readers."""

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import ConflictError
from siltstone.publish.cut import take_cut
from siltstone.rounds.request import TableRequest, partition_requests
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.table.completion import source_partitions
from tests.unit.publish.foreign import actions_of, delta_changes, same_as, same_changes, versions_of

REGIONS = ["a%b", None, "é ,"]
SETTINGS = [
    Settings(bucket_rows=8, max_dead_fraction=1.0, max_delta_fraction=100.0, max_files=100, page_buckets=2),
    Settings(bucket_rows=8, max_dead_fraction=0.2, max_delta_fraction=0.3, max_files=3, page_buckets=2),
    Settings(bucket_rows=4, full=True, page_buckets=2),
]
STEPS = 24


class History:
    """A table that changes at random, and the rows of each version that was published."""

    def __init__(self, root: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.table = siltstone.open(root).create_table(
            "shop.sales",
            schema={"id": "int64", "region": "string", "n": "int32", "v": "string", "w": "string"},
            primary_keys=["id", "region"],
            partition_keys=["region"],
            properties={"publish.delta.change_feed": "true"},
        )
        self.published: dict[int, pa.Table] = {}
        self.changes: dict[int, pa.Table] = {}
        self.rounds: dict[str, int] = {}
        # Versions from this one on have columns whose names are not those in files.
        self.first_mapped: int | None = None
        self.is_mapped = False

    def write(self) -> None:
        count = self.random.randrange(1, 30)
        ids = [self.random.randrange(60) for _ in range(count)]
        regions = [self.random.choice(REGIONS) for _ in ids]
        columns = {"id": pa.array(ids, pa.int64()), "region": pa.array(regions, pa.string())}
        for name in self.table.schema.names:
            kind = self.table.schema.field(name).type
            if name not in columns:
                values = [self.random.randrange(1000) for _ in ids]
                columns[name] = pa.array(map(str, values) if kind == pa.string() else values).cast(kind)
        self.table.write(pa.table(columns))

    def delete(self) -> None:
        self.table.write(pa.table({"id": [self.random.randrange(60) for _ in range(5)]}), "delete", ["id"])

    def compact(self) -> None:
        settings = self.random.choice(SETTINGS)
        for request in partition_requests(TableRequest(self.table.name, self.table.lake.root)):
            run_session(replace(request, settings=settings), run_here)

    def compact_one(self) -> None:
        requests = partition_requests(TableRequest(self.table.name, self.table.lake.root))
        run_session(self.random.choice(requests), run_here)

    def rebase(self) -> None:
        self.table.compact(rebase_from=self.table, engine="local")

    def roll_back(self) -> None:
        for partition in source_partitions(self.table.name, root=self.table.lake.root):
            values = partition.partition_values
            rounds = [
                completion.round_id
                for completion in self.table.rounds()
                if completion.destination_partition_locator.partition_values == values
            ]
            if len(rounds) > 1 and self.random.random() < 0.7:
                self.table.rollback(self.random.choice(rounds[:-1]), partition_values=values)

    def add(self) -> None:
        self.table.alter(add_columns={f"c{len(self.table.schema)}": "int64"})

    def widen(self) -> None:
        self.table.alter(add_columns={"n": "int64"})

    def drop(self) -> None:
        if "w" in self.table.schema.names:
            self.table.alter(drop_columns=["w"])

    def rename(self) -> None:
        old = self.random.choice([name for name in self.table.schema.names if name not in ("id", "region", "n", "w")])
        self.table.alter(rename_columns={old: f"r{self.random.randrange(10**6)}"})
        self.is_mapped = True

    def publish(self) -> None:
        try:
            published = self.table.publish()
        except ConflictError:
            return
        if published.is_new:
            if self.is_mapped and self.first_mapped is None:
                self.first_mapped = published.version
            self.published[published.version] = take_cut(self.table.name, root=self.table.lake.root).scan().to_arrow()
            changes = self.table.changes(after=self.rounds, upto=published.rounds)
            self.changes[published.version], self.rounds = changes.to_arrow(), published.rounds
        self.check(published.version)

    def check(self, version: int) -> None:
        can_polars = self.first_mapped is None or version < self.first_mapped
        same_as(self.table, self.published[version], version, polars=can_polars)
        # What Polars cannot read, delta-rs reads no changes of; nor of a first version with dead rows.
        if can_polars and version:
            same_changes(self.table, self.changes[version], delta_changes(self.table, version), version)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_published_version_is_a_state_of_the_table_for_every_reader(tmp_path: Path, seed: int) -> None:
    history = History(str(tmp_path / "lake"), seed)
    history.write()
    likely = [history.write, history.write, history.delete, history.compact_one]
    rare = [history.rebase, history.roll_back, history.add, history.widen, history.drop]
    for number in range(STEPS):
        if number == STEPS * 2 // 3:
            history.rename()
            rare.append(history.rename)
        for act in (*history.random.choices(likely, k=2), *history.random.choices(rare, k=number % 3 == 2)):
            act()
        if number % 4 != 3:
            history.compact()
        history.publish()
    history.compact()
    history.publish()
    assert history.is_mapped
    for version in history.published:
        history.check(version)
    assert versions_of(history.table) == list(range(len(history.published)))
    assert {bool(actions_of(history.table, version, "cdc")) for version in history.published} == {True, False}
    assert history.table.fsck(deep=True) == []
