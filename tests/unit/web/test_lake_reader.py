"""How often the lake is looked at."""

from collections.abc import Sequence

import pytest

import siltstone
from siltstone.errors import NotFoundError
from siltstone.table import report
from siltstone.table.report import TableReport, TableRound
from siltstone.web.charts import size_chart
from siltstone.web.site import FRESH_SECONDS, LakeReader
from tests.unit.rounds.compaction import make_table, rows
from tests.unit.web.serving import Service


class Looks:
    """Counts looks at the lake, each of which takes some time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
        self.now = 0.0
        self.count = 0
        self.seconds = seconds
        monkeypatch.setattr(siltstone.Lake, "report", lambda _: self.look())
        self.reader = LakeReader(siltstone.open("memory://looks"), monotonic=lambda: self.now)

    def look(self) -> list[TableReport]:
        self.count += 1
        self.now += self.seconds
        return []

    def ask_after(self, seconds: float) -> int:
        self.now += seconds
        self.reader.tables()
        return self.count


def test_a_quick_look_is_taken_again_after_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, seconds=0.01)
    assert [looks.ask_after(each) for each in (0, 1, 1, FRESH_SECONDS, 1)] == [1, 1, 1, 2, 2]


def test_a_slow_look_is_taken_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, seconds=30)
    assert [looks.ask_after(each) for each in (0, 60, 200, 60)] == [1, 1, 1, 2]


def test_a_dropped_table_is_gone_at_once(service: Service) -> None:
    reader = LakeReader(siltstone.open(service.root), monotonic=lambda: 0.0)
    assert reader.table("shop.orders").overview.name == "shop.orders"
    service.tables[0].drop()
    with pytest.raises(NotFoundError):
        reader.table("shop.orders")


def test_totals_of_a_table_need_every_partition(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(service.root, "shop.days", partition_keys=["v"], primary_keys=["v", "id"])
    for day in ("a", "b"):
        for number in range(3):
            table.write(rows([number], day).set_column(1, "v", [[day]]))
            service.run_cycle()

    def rounds() -> Sequence[TableRound]:
        return table.details().rounds

    totals = [round_.table_rows for round_ in rounds()]
    assert totals == [1, 2, 3, 4, 5, 6]
    monkeypatch.setattr(report, "MAX_ROUNDS", 4)
    cut = rounds()
    assert [(each.partition, each.table_rows) for each in cut] == [
        (["a"], None), (["a"], None), (["b"], 5), (["b"], 6),
    ]  # fmt: skip
    monkeypatch.setattr(report, "MAX_ROUNDS", 1)
    cut = rounds()
    assert {each.table_rows for each in cut} == {None}
    assert size_chart(cut) is None
