"""AWS DMS: CSV files without a header, Parquet files, full loads without operations; and its JSON messages."""

import datetime
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
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
_TIME_NAME = "TIME"
CHANGE_SEQUENCE = "AR_H_CHANGE_SEQ"
_OPERATIONS = {"I": "c", "U": "u", "D": "d"}
_MESSAGE_OPERATIONS = {"load": "r", "insert": "c", "update": "u", "delete": "d"}
_SEQUENCE_TIME_DIGITS = 16
_SEQUENCE_DIGITS = 35
_MOST_COLUMNS = 4096
_BEFORE_ALL = pack("dms", [0])


def decode_dms(events: "Events | pa.Table", target: Target, options: Options, find_rows: FindRows | None) -> Decoded:
    """Decode rows of files, as `read_csv` or Parquet's reader gives them, or JSON messages. Raises: InvalidInputError."""
    if isinstance(events, Events):
        return decode_records(events, _records, "hex", target, find_rows)
    rows, numbers = _named(events, target, options)
    goes_by_time = _TIME_NAME in (options.header or ())
    collected = Collected()
    lines = []
    for number, row in zip(numbers, rows.to_pylist(), strict=True):
        shown = orjson.dumps({name: None if value is None else str(value) for name, value in row.items()})
        try:
            lines.append(Line(number, shown, [_record(number, row, goes_by_time=goes_by_time)]))
        except UnfitError as error:
            collected.rejects.append(Reject(number, str(error), shown))
    add_records(lines, "hex", target, collected)
    return settle(collected, target, rows.num_rows, find_rows)


def read_csv(data: bytes, delimiter: str = ",") -> pa.Table:
    """Read a CSV file as text, columns by their numbers; an empty field without quotes is null. Raises: InvalidInputError."""
    if not data.strip():
        return pa.table({})
    if not data.endswith((b"\n", b"\r")):
        raise InvalidInputError(
            "the last line has no line break at its end, so that the file may be cut; copy it again"
        )
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


def _named(rows: pa.Table, target: Target, options: Options) -> tuple[pa.Table, Sequence[int]]:
    """Return rows with the table's column names, and their numbers: a CSV file has no names, unless its first row is them."""
    columns, numbers = target.columns.names, range(1, rows.num_rows + 1)
    if not rows.num_columns:
        return rows, numbers
    if not all(name == f"f{at}" for at, name in enumerate(rows.column_names)):
        return _with_time(rows, columns, options), numbers
    first = [column[0].as_py() for column in rows.columns] if rows.num_rows else []
    if first and set(columns) <= set(first):
        # Where several files were read, each has its own.
        kept = [number for number in numbers if [column[number - 1].as_py() for column in rows.columns] != first]
        named = rows.take([number - 1 for number in kept]).rename_columns([str(name) for name in first])
        return _with_time(named, columns, options), kept
    header = [*(_leading(rows, len(columns)) if options.header is None else options.header), *columns]
    if len(header) != rows.num_columns:
        raise InvalidInputError(
            f"the file has {rows.num_columns} columns, and the table {len(columns)}: {', '.join(columns)}; files of DMS have "
            "the table's columns in their order, after the operation and, where it is added, a time; name what comes "
            "before the table's columns, e.g. with --header Op,TIME"
        )
    return rows.rename_columns([TIME if name == _TIME_NAME else name for name in header]), numbers


def _leading(rows: pa.Table, column_count: int) -> list[str]:
    """Return what comes before the table's columns, where nobody says so. Raises: InvalidInputError where it may be two things."""
    extra = rows.num_columns - column_count
    first = set(pc.unique(rows.column(0)).to_pylist())
    is_operation = bool(first) and first <= _OPERATIONS.keys()
    if not extra and is_operation:
        raise InvalidInputError(
            f"the file has as many columns as the table, {column_count}, but its first is that of operations, so that one of "
            "the table's is missing; have DMS add the names of columns (AddColumnName)"
        )
    if extra == 1 and not is_operation and first and all(_microseconds(value) is not None for value in first):
        return [_TIME_NAME]
    return {1: [OPERATION], 2: [OPERATION, _TIME_NAME]}.get(extra, [])


def _with_time(rows: pa.Table, columns: Sequence[str], options: Options) -> pa.Table:
    """Rename the column that `TimestampColumnName` adds, whatever it is called: it comes first, or after the operation."""
    names = rows.column_names
    if options.header is not None:
        leading = [TIME if name == _TIME_NAME else name for name in options.header]
        return rows.rename_columns([*leading, *names[len(leading) :]])
    place = 1 if names[0] == OPERATION else 0
    if place >= len(names) or names[place] in {*columns, CHANGE_SEQUENCE} or not rows.num_rows:
        return rows
    if any(_microseconds(value) is None for value in rows.column(place).to_pylist()):
        return rows
    return rows.rename_columns([TIME if at == place else name for at, name in enumerate(names)])


def _record(number: int, row: Mapping[str, Any], *, goes_by_time: bool) -> Record:
    image = {name: value for name, value in row.items() if name not in (OPERATION, TIME, CHANGE_SEQUENCE)}
    if OPERATION not in row:
        # The time of a full load is when its rows were copied, which is after changes that they do not have.
        timed = row if goes_by_time else {**row, TIME: None}
        return Record("r", image, _position(number, timed) or _BEFORE_ALL)
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
    position = _BEFORE_ALL if op == "load" else _message_position(about)
    old = event.get("before-image")
    table = ".".join(str(about[name]) for name in ("schema-name", "table-name") if about.get(name))
    yield Record(_MESSAGE_OPERATIONS[op], data, position, old if isinstance(old, dict) else {}, table=table or None)


def _message_position(about: Mapping[str, Any]) -> bytes | None:
    """Return when a change was committed, its transaction and its place there; else when the message was made."""
    committed = _microseconds(about.get("commit-timestamp"))
    if committed is None:
        made = _microseconds(about.get("timestamp"))
        return None if made is None else pack("dms", [made])
    numbers = [str(about.get(name)) for name in ("transaction-id", "transaction-record-id")]
    return pack("dms", [committed, *(int(each) if each.isdecimal() else 0 for each in numbers)])
