import datetime
import decimal
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.errors import InvalidInputError
from siltstone.ingest import text_file
from siltstone.ingest.file_rows import open_input
from tests.unit.cli.command_line import Cli

Orders = Callable[..., Cli]
EVERY_TYPE = {
    "id": "string",
    "tiny": "int8",
    "number": "double",
    "flag": "bool",
    "price": "decimal(10,2)",
    "day": "date",
    "clock": "time",
    "local": "timestamp",
    "instant": "timestamp_utc",
    "took": "duration",
    "raw": "binary",
}
EXPECTED = {
    "id": "007",
    "tiny": -8,
    "number": 0.1,
    "flag": True,
    "price": decimal.Decimal("12.50"),
    "day": datetime.date(2024, 2, 29),
    "clock": datetime.time(23, 59, 58, 500000),
    "local": datetime.datetime(2024, 1, 2, 3, 4, 5),
    "instant": datetime.datetime(2024, 1, 2, 2, 4, 5, tzinfo=datetime.UTC),
    "took": datetime.timedelta(seconds=1),
    "raw": b"abc",
}


def read(path: str, known: pa.Schema | None = None) -> list[dict[str, object]]:
    with open_input(path) as file:
        schema = file.schema(known or pa.schema([]), lambda rows: None)
        rows: list[dict[str, object]] = pa.Table.from_batches(file.batches(schema), schema).to_pylist()
        return rows


def test_csv_is_read_with_the_types_of_the_table(orders: Orders) -> None:
    cli = orders("--key", "id", **EVERY_TYPE)
    line = "007,-8,0.1,true,12.5,2024-02-29,23:59:58.5,2024-01-02 03:04:05,2024-01-02T03:04:05+01:00,1000000,abc"
    cli("write", "shop.orders", cli.file("a.csv", f"{','.join(EVERY_TYPE)}\n{line}\n{',' * 10}\n"))
    assert cli.rows("shop.orders") == [EXPECTED, dict.fromkeys(EVERY_TYPE)]


def test_json_lines_are_read_with_the_types_of_the_table(orders: Orders) -> None:
    cli = orders("--key", "id", **EVERY_TYPE)
    row = {
        "id": "007",
        "tiny": -8,
        "number": 0.1,
        "flag": True,
        "price": 12.5,
        "day": "2024-02-29",
        "clock": "23:59:58.5",
        "local": "2024-01-02T03:04:05",
        "instant": "2024-01-02T03:04:05+01:00",
        "took": 1000000,
        "raw": "abc",
    }
    content = f"{json.dumps(row)}\n{json.dumps(dict.fromkeys(EVERY_TYPE))}\n"
    cli("write", "shop.orders", cli.file("a.jsonl.gz", gzip.compress(content.encode())))
    assert cli.rows("shop.orders") == [EXPECTED, dict.fromkeys(EVERY_TYPE)]


def test_csv_tells_empty_text_from_null_and_keeps_words_that_look_like_null(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,""\n2,\n3,NA\n4,NULL\n5,"a ""quoted"" text, with\nlines"\n6,Zoë 😀\n')
    assert [row["text"] for row in read(str(path))] == [
        "",
        None,
        "NA",
        "NULL",
        'a "quoted" text, with\nlines',
        "Zoë 😀",
    ]


def test_csv_may_start_with_a_byte_order_mark_and_end_lines_like_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfid,name\r\n1,x\r\n")
    assert read(str(path)) == [{"id": 1, "name": "x"}]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"id,n\n1,2\n2,x\n", ["row 3", "'n'", "'x'", "int64"]),
        (b"id,n\n1,2\n1,2,3\n", ["row 3", "3"]),
        (b"id,n,word\n1,2,\xe9\n", ["'word'", "UTF-8"]),
        (b"id,n,n\n1,2,3\n", ["'n'"]),
        (b"id,n,\n1,2,\n", ["empty name"]),
        (b"id,price\n1,1.234\n", ["'price'"]),
        (b"id,instant\n1,2024-01-01 00:00:00\n", ["'instant'", "zone"]),
        (b"id,tags\n1,x\n", ["'tags'", "list", "Parquet"]),
        (b"id;n\n1;2\n", ["--delimiter ';'"]),
        (b"id,n\n1,2\n1\n", ["row 3", "1"]),
        (b",n\n1,2\n", ["empty name"]),
        (b'id,word\n1,a\n2,"b\n3,c\n', ["line 3", "never closed"]),
        (b'id,word\n1,"a\nb"\n"2,b\n3,c\n', ["line 4", "never closed"]),
        (b'id,"word\n1,a\n', ["line 1", "never closed"]),
        (b'id,word\n1,"a""', ["line 2", "never closed"]),
        (b'id,word\n1,"a"b\n', ["line 2", "closed before 'b'"]),
        (b'id,word\n1,"a\n2,b\n3,"c\n4,d\n', ["line 2", "closed before 'c'"]),
        (b'id,word\r1,"a\rb"\r2,"x', ["line 4", "never closed"]),
        (b"id,word\n1,a\0b\n", ["line 2", "NUL"]),
        ("id,n\n1,2\n".encode("utf-16"), ["line 1", "NUL"]),
    ],
)
def test_wrong_csv_is_told_by_file_row_and_column(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "wrong.csv"
    path.write_bytes(content)
    known: dict[str, pa.DataType] = {
        "n": pa.int64(),
        "word": pa.string(),
        "price": pa.decimal128(10, 2),
        "instant": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
    }
    with pytest.raises(InvalidInputError) as caught:
        read(str(path), pa.schema(known))
    for part in ["wrong.csv", *parts]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b'{"id": 1}\n\n{"id": 2, "n": 1.5}', ["line 3", "'n'", "1.5", "int64"]),
        (b'{"id": 1}\n{"id": "x"', ["line 2", "not valid JSON"]),
        (b'{"id": 1}\n{"word": 7}', ["line 2", "'word'", "7", "string"]),
        (b'{"day": "01.02.2024"}', ["line 1", "'day'", "01.02.2024", "date"]),
        (b'{"id": 1}\n[1, 2]', ["line 2", "[1, 2], not an object"]),
        (b'[{"id": 1}]', ["line 1", '[{"id": 1}], not an object']),
        (b'[{"id": 1},\n null]', ["line 1"]),
        (b"3", ["line 1", "3, not an object"]),
        (b'{"id": 1}\nnull\n"x"', ["line 3", '"x", not an object']),
        (b"nullnull", ["line 1"]),
        (b'{"id": 1} null', ["line 1"]),
        (b'null {"id": 1}', ["line 1"]),
        (b'{"id":\n1}', ["line 1"]),
        (b'{"id": 1} {"id": 2}', ["line 1"]),
        (b'{"id": 1}\n{"id": "\xff"}', ["line 2"]),
        (b'{"id": 1, "new": 1}\n{"id": 1, "new": "x"}', ["'new'"]),
        (b'{"id": 1, "id": 2}', ["line 1"]),
        (b'{"pairs": {"a": 1}}', ["'pairs'", "map", "Parquet"]),
        (b'{"thing": {"a": 1, "b": 2}}', ["'thing'"]),
    ],
)
def test_wrong_json_is_told_by_file_line_and_column(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_bytes(content)
    known: dict[str, pa.DataType] = {
        "n": pa.int64(),
        "word": pa.string(),
        "day": pa.date32(),
        "pairs": pa.map_(pa.string(), pa.int64()),
        "thing": pa.struct([pa.field("a", pa.int64())]),
    }
    with pytest.raises(InvalidInputError) as caught:
        read(str(path), pa.schema(known))
    for part in ["wrong.jsonl", *parts]:
        assert part in str(caught.value)


def test_json_tells_a_column_left_out_from_one_that_is_null(tmp_path: Path) -> None:
    known: dict[str, pa.DataType] = {"id": pa.int64(), "a": pa.string(), "b": pa.string()}
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1, "a": null, "deep": {"b": 1}}\n')
    assert read(str(path), pa.schema(known)) == [{"id": 1, "a": None, "deep": {"b": 1}}]


def test_types_of_new_columns_are_judged_beyond_the_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "BLOCK_BYTES", 64)
    monkeypatch.setattr(text_file, "CHUNK_BYTES", 64)
    rows: list[dict[str, object]] = [{"id": number, "late": None} for number in range(100)]
    rows.append({"id": 100, "late": "text"})
    table = tmp_path / "a.csv"
    table.write_text("id,late\n" + "".join(f"{row['id']},{row['late'] or ''}\n" for row in rows))
    lines = tmp_path / "a.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)))
    assert read(str(table)) == rows
    assert read(str(lines)) == rows


def test_json_numbers_in_later_chunks_widen_a_new_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "CHUNK_BYTES", 32)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in [*range(20), 0.5]))
    assert [row["n"] for row in read(str(path))] == [*map(float, range(20)), 0.5]
    path.write_text("".join(f'{{"n": {number}}}\n' for number in [*range(20), '"x"']))
    with pytest.raises(InvalidInputError, match="'n'"):
        read(str(path))


def test_the_line_of_a_wrong_value_counts_from_the_start_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "CHUNK_BYTES", 50)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in [*range(76), '"x"', 3]))
    with pytest.raises(InvalidInputError, match="line 77, column 'n': \"x\""):
        read(str(path), pa.schema([("n", pa.int64())]))


def test_parquet_row_groups_come_as_batches_of_the_columns_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(10), "b": range(10), "c": range(10)}), path, row_group_size=3)
    with open_input(str(path)) as file:
        batches = list(file.batches(pa.schema([("c", pa.int64()), ("a", pa.int64())])))
    assert [batch.schema.names for batch in batches] == [["c", "a"]] * len(batches)
    assert sum(batch.num_rows for batch in batches) == 10


def test_a_truncated_archive_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"id\n" + b"1\n" * 100_000)[:-20])
    with pytest.raises(InvalidInputError, match=r"a\.csv\.gz"):
        read(str(path))


def test_a_reader_left_half_way_takes_nothing_from_the_next_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id\n" + "".join(f"{number}\n" for number in range(200_000)))
    for _ in range(20):
        with open_input(str(path)) as file:
            schema = file.schema(pa.schema([("id", pa.int64())]), lambda rows: None)
            assert next(iter(file.batches(schema))).column("id")[0].as_py() == 0


def test_quotes_inside_csv_fields_that_are_not_quoted_are_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,5" pipe\n2,a"b"c\n3, "x"\n4,"y"\n')
    assert [row["text"] for row in read(str(path))] == ['5" pipe', 'a"b"c', ' "x"', "y"]


@pytest.mark.parametrize("block_bytes", [48, 49, 50, 51, 52, 53])
def test_quoted_csv_is_followed_across_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(text_file, "BLOCK_BYTES", block_bytes)
    rows = [{"id": number, "text": f'"{number}"\r\n,{"x" * (number % 7)}"'} for number in range(60)]
    quoted = [str(row["text"]).replace('"', '""') for row in rows]
    lines = [f'{number},"{text}"\r\n' for number, text in enumerate(quoted)]
    path = tmp_path / "a.csv"
    path.write_bytes(("id,text\r\n" + "".join(lines)).encode())
    assert read(str(path)) == rows
    path.write_bytes(("id,text\r\n" + "".join([*lines[:31], '31,"x\r\n', "32,y\r\n"])).encode())
    with pytest.raises(InvalidInputError, match="line 64: a quote is never closed"):
        read(str(path))


def test_a_csv_row_longer_than_a_block_is_refused_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "BLOCK_BYTES", 64)
    path = tmp_path / "a.csv"
    path.write_text("id,text\n" + "1,x\n" * 50 + f"2,{'y' * 1000}\n3,z\n")
    with pytest.raises(InvalidInputError, match=r"a\.csv: the row that starts in line 52 is longer than 64 bytes"):
        read(str(path))
    path.write_text('id,text\n1,"x\n' + "1,x\n" * 500)
    with pytest.raises(InvalidInputError, match="starts in line 2 is longer than 64 bytes; is a quote left open"):
        read(str(path))


@pytest.mark.parametrize("end", ["", '"}\n{"n": 1}\n'])
def test_a_json_line_longer_than_the_limit_is_refused_without_reading_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(text_file, "CHUNK_BYTES", 32)
    monkeypatch.setattr(text_file, "LINE_BYTES_LIMIT", 100)
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n' * 20 + '{"n": "' + "x" * 1000 + end)
    with pytest.raises(InvalidInputError, match=r"a\.jsonl: line 21 is longer than 100 bytes; break it up"):
        read(str(path))
    path.write_text('{"n": 1}\n' * 20 + '{"n": ' + " " * 80 + "1}\n")
    assert len(read(str(path))) == 21


def test_a_json_line_of_a_gigabyte_is_refused_before_all_of_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a hole, which takes no room
    with pytest.raises(InvalidInputError, match=r"a\.jsonl: line 1 is longer than 64 MiB"):
        read(str(path))


def test_null_lines_are_no_rows_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "CHUNK_BYTES", 16)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbfnull\n{"n": 1, "word": "null"}\n null \r\n\nnull\n{"n": null, "word": "x"}\nnull')
    with open_input(str(path)) as file:
        schema = file.schema(pa.schema([]), lambda rows: None)
        rows = [row for batch in file.batches(schema) for row in batch.to_pylist()]
        assert rows == [{"n": 1, "word": "null"}, {"n": None, "word": "x"}]
        assert file.null_lines == 4
