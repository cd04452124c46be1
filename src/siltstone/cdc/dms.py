"""AWS DMS: CSV files without a header, Parquet files, full loads without operations; and its JSON messages."""

import datetime
import io
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv

from siltstone.cdc.changes import Decoded, FindRows, Options, Reject, Target
from siltstone.cdc.event_lines import Events
from siltstone.cdc.event_values import UnfitError
from siltstone.cdc.images import Collected
from siltstone.cdc.position import pack
from siltstone.cdc.records import Line, Record, SkippedEventError, add_records, decode_records
from siltstone.cdc.settle import settle
from siltstone.errors import InvalidInputError

OPERATION = "Op"
TIME = "_dms_time"
CHANGE_SEQUENCE = "AR_H_CHANGE_SEQ"
_OPERATIONS = {"I": "c", "U": "u", "D": "d"}
_MESSAGE_OPERATIONS = {"load": "r", "insert": "c", "update": "u", "delete": "d"}
_SEQUENCE_TIME_DIGITS = 16
_SEQUENCE_DIGITS = 35
_MOST_COLUMNS = 4096


def decode_dms(events: "Events | pa.Table", target: Target, options: Options, find_rows: FindRows | None) -> Decoded:
    """Decode rows of files, as `read_csv` or Parquet's reader gives them, or JSON messages. Raises: InvalidInputError."""
    if isinstance(events, Events):
        return decode_records(events, _records, "base64", target, find_rows)
    rows = _named(events, target, options)
    collected = Collected()
    lines = []
    for number, row in enumerate(rows.to_pylist(), 1):
        shown = orjson.dumps({name: None if value is None else str(value) for name, value in row.items()})
        try:
            lines.append(Line(number, shown, [_record(number, row)]))
        except UnfitError as error:
            collected.rejects.append(Reject(number, str(error), shown))
    add_records(lines, "hex", target, collected)
    return settle(collected, target, rows.num_rows, find_rows)


def read_csv(data: bytes, delimiter: str = ",") -> pa.Table:
    """Read a CSV file as text, columns by their numbers; an empty field without quotes is null. Raises: InvalidInputError."""
    if not data.strip():
        return pa.table({})
    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(data),
            read_options=pyarrow.csv.ReadOptions(autogenerate_column_names=True, block_size=max(1 << 20, len(data))),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, delimiter=delimiter),
            convert_options=pyarrow.csv.ConvertOptions(
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                column_types={f"f{number}": pa.string() for number in range(_MOST_COLUMNS)},
            ),
        )
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"not a CSV file as DMS writes it: {error}") from error
    return table


def _named(rows: pa.Table, target: Target, options: Options) -> pa.Table:
    """Return rows with the table's column names: a CSV file has none, unless its first row is them."""
    if not rows.num_columns or not all(name == f"f{at}" for at, name in enumerate(rows.column_names)):
        return rows
    columns = target.columns.names
    first = [column[0].as_py() for column in rows.columns] if rows.num_rows else []
    if first and set(columns) <= set(first):
        return rows.slice(1).rename_columns([str(name) for name in first])
    if options.header is not None:
        header = [*options.header, *columns]
    else:
        header = {0: [], 1: [OPERATION], 2: [OPERATION, TIME]}.get(rows.num_columns - len(columns), [])
        header = [*header, *columns]
    if len(header) != rows.num_columns:
        raise InvalidInputError(
            f"the file has {rows.num_columns} columns, and the table {len(columns)}: {', '.join(columns)}; files of DMS have "
            "the table's columns in their order, after the operation and, where it is added, a time; name what comes "
            "before the table's columns with --header Op,TIME"
        )
    return rows.rename_columns(header)


def _record(number: int, row: Mapping[str, Any]) -> Record:
    image = {name: value for name, value in row.items() if name not in (OPERATION, TIME, CHANGE_SEQUENCE)}
    if OPERATION not in row:
        return Record("r", image, _position(number, row) or pack("dms", [0, 0, 0, 0]))
    op = row[OPERATION]
    if op not in _OPERATIONS:
        raise UnfitError(f"the operation {op!r} is unknown; there are I, U and D")
    return Record(_OPERATIONS[op], image, _position(number, row))


def _position(number: int, row: Mapping[str, Any]) -> bytes | None:
    """Return the time of a change, then its row: those of one transaction have one time, and one file."""
    sequence = str(row.get(CHANGE_SEQUENCE) or "")
    if len(sequence) == _SEQUENCE_DIGITS and sequence.isdecimal():
        cut = _SEQUENCE_TIME_DIGITS
        return pack("dms", [int(sequence[:cut]), int(sequence[cut:]), 0, number])
    when = _microseconds(row.get(TIME))
    return None if when is None else pack("dms", [when, 0, 0, number])


def _microseconds(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value.replace(" ", "T"))
        except ValueError:
            return None
    if not isinstance(value, datetime.datetime):
        return None
    plain = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
    return (plain - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)


def _records(event: Mapping[str, Any]) -> Iterator[Record]:
    """Return the change of a message, `{"data": …, "metadata": …}`."""
    about, data = event.get("metadata"), event.get("data")
    if not isinstance(about, dict):
        raise UnfitError("a message of DMS needs 'data' and 'metadata'")
    if about.get("record-type") == "control":
        raise SkippedEventError("change of definitions")
    op = about.get("operation")
    if op not in _MESSAGE_OPERATIONS or not isinstance(data, dict):
        raise UnfitError(f"the operation {op!r} is unknown; there are {', '.join(_MESSAGE_OPERATIONS)}")
    when = _microseconds(about.get("timestamp"))
    sequence = about.get("stream-position") or about.get("sequence-number")
    order = int(str(sequence)) if str(sequence).isdecimal() else 0
    position = None if when is None else pack("dms", [when, order])
    old = event.get("before-image")
    table = ".".join(str(about[name]) for name in ("schema-name", "table-name") if about.get(name))
    yield Record(_MESSAGE_OPERATIONS[op], data, position, old if isinstance(old, dict) else {}, table=table or None)
