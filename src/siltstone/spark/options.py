"""The options of `format("siltstone")`: honoured or refused, never ignored.

Spark passes names in lower case. It gives the options of CREATE TABLE only while it creates the table, and later a schema
alone; so the first column of that schema carries them. That does for reads. The schema of rows to write is that of the
query, whose first column may come from another table of ours, and carry the options of that one; so a write names its table.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from pyspark.sql.types import StructType

from siltstone.cdc import CHANGE_FORMATS, ChangeFormat
from siltstone.cdc.changes import Decimals, TimeUnit
from siltstone.change_writes import ChangeOptions
from siltstone.errors import InvalidInputError
from siltstone.model import DeltaType, Idempotency, Overwrite
from siltstone.model.locators import did_you_mean, split_table_name
from siltstone.objects import canonical_root
from siltstone.table.snapshot import Moment, parse_moment

FORMAT = "siltstone"
NAMES = ("root", "table", "columns", "as_of", "fresh", "current_only", "valid_at")
WRITE_NAMES = ("root", "table", "type", "delete_columns", "op_column", "evolve", "idempotency", "app_id", "partitions")
CHANGE_NAMES = ("format", "decimals", "times", "rejects")
# What `load("shop.orders")` and `save("shop.orders")` set, and the name that `to_spark` has for fresh reads.
_PATH = "path"
_TABLE_ALIASES = {_PATH: "table"}
_READ_ALIASES = {**_TABLE_ALIASES, "include_uncompacted": "fresh"}
# What Spark has for itself among the options of a streaming query.
_CHECKPOINT = "checkpointlocation"
_OF_SPARK = (_CHECKPOINT, "queryname")
_CREATED_PREFIX = "option."
_HOW = {
    "load": '.option("root", …).load("namespace.table"), or in SQL CREATE TABLE name USING siltstone '
    "OPTIONS (root '…', table 'namespace.table'), without columns",
    "save": '.option("root", …).save("namespace.table"), or in SQL INSERT INTO name '
    "WITH (root = '…', table = 'namespace.table') …, or insert into a temporary view: Spark does not tell what a table was "
    "created with",
    "start": '.option("root", …).start("namespace.table")',
}


@dataclass(frozen=True)
class ReadOptions:
    """A table, and how it is to be read: as compacted, unless it is fresh or as of some moment."""

    root: str
    table: str
    columns: tuple[str, ...] | None = None
    as_of: Moment | None = None
    fresh: bool = False
    current_only: bool = False
    valid_at: str | None = None


@dataclass(frozen=True)
class WriteOptions:
    """A table, and what rows mean to it; see `Table.write`. A streaming query has an app id, or a checkpoint that names one.

    With a `format`, rows are change events: see `Table.write_changes`.
    """

    root: str
    table: str
    type: DeltaType = "upsert"
    delete_columns: tuple[str, ...] | None = None
    op_column: str | None = None
    evolve: bool = True
    idempotency: Idempotency | None = None
    app_id: str | None = None
    checkpoint: str | None = None
    overwrite: Overwrite | None = None
    format: ChangeFormat | None = None
    changes: ChangeOptions = dataclasses.field(default_factory=ChangeOptions)


def created_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of CREATE TABLE, on whose behalf Spark passes all it has about the table; None elsewhere."""
    if options.get("provider", "").lower() != FORMAT:
        return None
    kept = {_PATH: options["location"]} if "location" in options else {}
    for name, text in options.items():
        if name.startswith(_CREATED_PREFIX):
            kept[name.removeprefix(_CREATED_PREFIX)] = text
    return kept


def with_kept(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read with those that its schema carries, unless they name a table themselves."""
    kept = schema.fields[0].metadata.get(FORMAT, {}) if schema.fields else {}
    is_named = _PATH in options or "table" in options
    return {**({} if is_named else kept), **options}


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read. Raises: InvalidInputError."""
    texts = _texts(options, NAMES, _READ_ALIASES, "load")
    as_of = texts.get("as_of")
    return ReadOptions(
        root=canonical_root(texts["root"]),
        table=texts["table"],
        columns=column_names("columns", texts),
        as_of=None if as_of is None else parse_moment(as_of.strip()),
        fresh=is_true("fresh", texts, default=False),
        current_only=is_true("current_only", texts, default=False),
        valid_at=texts.get("valid_at"),
    )


def write_options(options: Mapping[str, str], *, is_stream: bool, overwrite: bool = False) -> WriteOptions:
    """Check the options of a write. Raises: InvalidInputError."""
    own = {name: text for name, text in options.items() if not is_stream or name not in _OF_SPARK}
    texts = _texts(own, (*WRITE_NAMES, *CHANGE_NAMES), _TABLE_ALIASES, "start" if is_stream else "save")
    if is_stream and "idempotency" in texts:
        raise InvalidInputError(
            f"format {FORMAT}: idempotency is for one write; the batches of a streaming query have ids of their own, so leave it out"
        )
    if not is_stream and "app_id" in texts:
        raise InvalidInputError(
            f'format {FORMAT}: app_id is for streaming queries; for one write use .option("idempotency", "my-job:17")'
        )
    _check_together(texts, overwrite=overwrite)
    return WriteOptions(
        root=canonical_root(texts["root"]),
        table=texts["table"],
        type=cast("DeltaType", texts.get("type", "upsert")),
        delete_columns=column_names("delete_columns", texts),
        op_column=texts.get("op_column"),
        evolve=is_true("evolve", texts, default=True),
        idempotency=_idempotency(texts["idempotency"]) if "idempotency" in texts else None,
        app_id=texts.get("app_id"),
        checkpoint=options.get(_CHECKPOINT),
        overwrite=("partitions" if "partitions" in texts else "table") if overwrite else None,
        format=cast("ChangeFormat | None", texts.get("format")),
        changes=ChangeOptions(
            decimals=cast("Decimals | None", texts.get("decimals")),
            times=_times(texts.get("times", "")),
            rejects=texts.get("rejects"),
            evolve=is_true("evolve", texts, default=True),
        ),
    )


def _check_together(texts: Mapping[str, str], *, overwrite: bool) -> None:
    """Refuse options that do not go with each other, and values that there are not. Raises: InvalidInputError."""
    for name, known in (("partitions", ("present",)), ("format", CHANGE_FORMATS), ("decimals", get_args(Decimals))):
        if texts.get(name, known[0]) not in known:
            raise InvalidInputError(f"format {FORMAT}: {name} is {texts[name]!r}; use {', '.join(known)}")
    if "partitions" in texts and not overwrite:
        raise InvalidInputError(f'format {FORMAT}: partitions goes with .mode("overwrite")')
    for name in ("type", "delete_columns", "op_column") if overwrite or "format" in texts else ():
        if name in texts:
            why = (
                "change events tell it themselves"
                if "format" in texts
                else "an overwrite has the rows that are to be there"
            )
            raise InvalidInputError(f"format {FORMAT}: leave out {name}; {why}")
    if overwrite and "format" in texts:
        raise InvalidInputError(f"format {FORMAT}: change events change rows, and replace no table; use mode append")
    for name in CHANGE_NAMES[1:] if "format" not in texts else ():
        if name in texts:
            raise InvalidInputError(f"format {FORMAT}: {name} is for change events; name their format, e.g. debezium")


def _times(text: str) -> dict[str, TimeUnit]:
    """Read `us`, or `created=ms,changed=us`."""
    times: dict[str, TimeUnit] = {}
    for part in filter(None, text.split(",")):
        column, equals, unit = part.strip().rpartition("=")
        if unit not in get_args(TimeUnit):
            raise InvalidInputError(f"format {FORMAT}: times {part!r} is neither ms, us or ns, nor column=ms")
        times[column if equals else "*"] = cast("TimeUnit", unit)
    return times


def _texts(options: Mapping[str, str], names: Sequence[str], aliases: Mapping[str, str], method: str) -> dict[str, str]:
    """Return options by their proper names, with a root and a table."""
    texts: dict[str, str] = {}
    for name, text in options.items():
        option = aliases.get(name, name)
        if option not in names:
            raise InvalidInputError(
                f"format {FORMAT}: unknown option {name}; use {', '.join(names)}{did_you_mean(name, [*names, *aliases])}"
            )
        if texts.setdefault(option, text) != text:
            raise InvalidInputError(f"format {FORMAT}: {option} is {texts[option]!r} and also {text!r}; set it once")
    texts["root"] = texts.get("root") or os.environ.get("SILTSTONE_ROOT", "")
    if not texts["root"] or not texts.get("table"):
        missing = "table" if texts["root"] else "root"
        raise InvalidInputError(
            f"format {FORMAT}: {missing} is missing; write {_HOW[method]}; SILTSTONE_ROOT may name the root"
        )
    try:
        split_table_name(texts["table"])
    except InvalidInputError as error:
        raise InvalidInputError(f"format {FORMAT}: table {texts['table']!r}: {error}; use namespace.table") from error
    return texts


def option_texts(options: Mapping[str, str], names: Sequence[str], method: str) -> dict[str, str]:
    """Return the options of a read by their proper names, of which there are no others. Raises: InvalidInputError."""
    return _texts(options, names, _TABLE_ALIASES, method)


def column_names(option: str, texts: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the names that an option lists, None where it is not set. Raises: InvalidInputError."""
    if option not in texts:
        return None
    text = texts[option]
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"format {FORMAT}: {option} {text!r} is not valid JSON ({error})") from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"format {FORMAT}: {option} is {text!r}; use a list of names")
    return tuple(names)


def is_true(option: str, texts: Mapping[str, str], *, default: bool) -> bool:
    """Return whether an option is set. Raises: InvalidInputError."""
    text = texts.get(option, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"format {FORMAT}: {option} is {texts[option]!r}; use true or false")
    return text == "true"


def _idempotency(text: str) -> Idempotency:
    app_id, _, batch_id = text.rpartition(":")
    if not app_id or not batch_id.isascii() or not batch_id.isdigit():
        raise InvalidInputError(
            f"format {FORMAT}: idempotency {text!r} is not of the form app:batch with a whole number, e.g. orders-job:17"
        )
    return Idempotency(app_id=app_id, batch_id=int(batch_id))
