"""Figures in the pages are those of the benchmarks' results, and a ledger sees what is wrong in a table."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from benchmarks import figures, summary
from benchmarks.lost_executors import Round, seconds_lost
from benchmarks.versions import Ledger, rows_of

PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", figures.PAGES)
def test_a_page_says_what_the_results_say(page: str) -> None:
    text = (PROJECT / page).read_text()
    assert figures.filled(text, summary.read_results()) == text, "run `make figures`"


def test_every_block_of_figures_is_in_a_page_and_none_is_empty() -> None:
    blocks = [block for page in figures.PAGES for block in figures.BLOCK.findall((PROJECT / page).read_text())]
    assert sorted(name for _, name, _ in blocks) == sorted(figures.BLOCKS)
    assert not [name for page in figures.PAGES for name in empty_blocks((PROJECT / page).read_text())]


def empty_blocks(text: str) -> list[str]:
    return [block[2] for block in figures.BLOCK.finditer(text) if block[0] == block[1] + block[3]]


def test_aims_that_were_not_measured_are_neither_met_nor_missed() -> None:
    found = list(
        summary.aims({"compaction": {"seconds": {"Siltstone, minor": 1.0, "DuckDB, anti-join and union": 2.0}}})
    )
    by_name = {each.what: each for each in found}
    assert by_name["minor / DuckDB"].is_met is True
    assert by_name["major / DuckDB"].is_met is None
    assert by_name["4 times the rows, the same changes"].is_met is None


class TestLedger:
    def ledger(self) -> Ledger:
        ledger = Ledger()
        keys = ledger.insert(100, 1)
        ledger.update(keys[10:20], 2)
        ledger.delete(keys[:5])
        return ledger

    def rows(self) -> pa.Table:
        keys = np.arange(5, 100)
        return rows_of(keys, np.where((keys >= 10) & (keys < 20), 2, 1))

    def test_the_right_rows_in_any_order_are_right(self) -> None:
        rows = self.rows()
        backwards = rows.take(pa.array(range(94, -1, -1)))
        assert self.ledger().live_rows == 95
        assert self.ledger().check(backwards.to_batches(max_chunksize=7)) == []

    def test_what_is_lost_doubled_or_unknown_is_seen(self) -> None:
        rows = self.rows()
        assert self.ledger().check(rows.slice(3).to_batches()) == ["3 rows lost", "92 rows instead of 95"]
        doubled = pa.concat_tables([rows, rows.slice(0, 2)])
        assert self.ledger().check(doubled.to_batches()) == ["2 rows more than once", "97 rows instead of 95"]
        unknown = pa.concat_tables([rows, rows_of(np.array([100]), np.array([1]))])
        assert self.ledger().check(unknown.to_batches()) == ["1 rows of unknown keys", "96 rows instead of 95"]

    def test_an_older_version_a_deleted_key_and_a_changed_value_are_seen(self) -> None:
        keys = np.arange(5, 100)
        assert self.ledger().check(rows_of(keys, np.full(95, 1)).to_batches()) == ["10 rows with wrong values"]
        undead = pa.concat_tables([self.rows().slice(1), rows_of(np.array([0]), np.array([1]))])
        assert self.ledger().check(undead.to_batches()) == ["1 rows lost", "1 rows with wrong values"]
        rows = self.rows()
        for number, name in enumerate(rows.column_names[2:], 2):
            values = rows.column(name).to_pylist()
            values[7] = None
            changed = rows.set_column(number, name, pa.array(values, rows.schema.field(name).type))
            assert self.ledger().check(changed.to_batches()) == ["1 rows with wrong values"], name

    def test_an_empty_table_has_lost_all(self) -> None:
        assert self.ledger().check([]) == ["95 rows lost", "0 rows instead of 95"]


def test_a_kill_costs_what_its_round_took_more_than_its_like_on_both_sides() -> None:
    def plain(seconds: float, *, is_rewrite: bool = False) -> Round:
        return Round(seconds, None, is_rewrite, 1)

    rounds = [plain(10), plain(50, is_rewrite=True), Round(17, 3.0, False, 1), plain(14), Round(70, 9.0, True, 1)]
    assert seconds_lost(rounds) == [5, 20]
    assert seconds_lost([Round(17, 3.0, False, 1)]) == []
