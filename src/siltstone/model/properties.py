"""Table properties: every name that has a meaning, which values it takes, its default, and which part acts on it.

A table carries properties as text. Names are words in lower case joined by `_`, with the unit at the end. What the system
itself keeps starts with `siltstone.` and is not the user's to change; what users keep for themselves starts with
`user.`. Only setting a property is checked, so a table that already has others works as before.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from siltstone.errors import InvalidInputError
from siltstone.model.locators import did_you_mean

USER_PREFIX = "user."
RESERVED_PREFIX = "siltstone."
FOREVER = "forever"
# Longer than any lake lives, and still an int64 in milliseconds.
FOREVER_SECONDS = float(1 << 50)
ROWS_KIND = "rows"
STRICT = "strict"
DOCUMENTS_KIND = "documents"
MAX_DELAY_MS = 10 * 24 * 3600 * 1000
MAX_ROW_GROUP_ROWS = 1 << 17

T = TypeVar("T")


@dataclass(frozen=True)
class Property(Generic[T]):
    """One property: `parse` reads its text or raises ValueError; `old_names` are read where the name is not set."""

    name: str
    parse: Callable[[str], T]
    values: str
    default: T
    read_by: str
    meaning: str
    default_text: str = "none"
    old_names: tuple[str, ...] = ()

    @property
    def is_reserved(self) -> bool:
        """Whether only the system sets it."""
        return self.name.startswith(RESERVED_PREFIX)

    def text_in(self, properties: Mapping[str, str]) -> str | None:
        """Return the text that is set, under whichever of its names, or None."""
        texts = (properties.get(name) for name in (self.name, *self.old_names))
        return next((text for text in texts if text is not None), None)

    def of(self, properties: Mapping[str, str], where: object) -> T:
        """Return the value that a table has. Raises: InvalidInputError where it was set before values were checked."""
        text = self.text_in(properties)
        return self.default if text is None else self.read(text, where)

    def read(self, text: str, where: object) -> T:
        """Return the value of a text. Raises: InvalidInputError."""
        try:
            return self.parse(text)
        except ValueError:
            raise InvalidInputError(f"{where}: property {self.name} is {text!r}; give {self.values}") from None


def _seconds(text: str) -> float:
    if text == FOREVER:
        return FOREVER_SECONDS
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return min(seconds, FOREVER_SECONDS)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


def _whole(first: int, last: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not first <= int(text) <= last:
            raise ValueError(text)
        return int(text)

    return parse


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return parse


DELTA_RETENTION_SECONDS: Property[float | None] = Property(
    name="delta_retention_seconds",
    parse=_seconds,
    values=f"seconds, 0 or more, or `{FOREVER}`",
    default=None,
    default_text="what the service was started with (`--retention`, 7 days)",
    read_by="the service's trimming",
    meaning="How long deltas are kept after they were compacted.",
)
FEED_MAX_LAG_SECONDS: Property[float] = Property(
    name="feed.max_lag_seconds",
    parse=_seconds,
    values=f"seconds, 0 or more, or `{FOREVER}`",
    default=14.0 * 24 * 3600,
    default_text="1209600 (14 days)",
    read_by="consumers of changes, `siltstone vacuum` and the service's trimming",
    meaning="How long a vacuum keeps rounds, and the service deltas of documents, for a consumer that has not acknowledged them.",
)
HISTORY_TRACK: Property[tuple[str, ...] | None] = Property(
    name="history.track",
    parse=_columns,
    values="names of columns, e.g. `status, amount`",
    default=None,
    default_text="all columns but the primary key and the sort key",
    read_by="compaction of tables with merge engine `history`",
    meaning="By which columns two versions of a row differ; set when the table is created.",
)
KEEP_HISTORY: Property[bool] = Property(
    name="keep_history",
    parse=lambda text: _one_of("true", "false")(text) == "true",
    values="`true` or `false`",
    default=False,
    default_text="`false`",
    read_by="compaction of documents",
    meaning="Whether each delta that compaction absorbs is kept, with the document after it, for `history`.",
)
HISTORY_RETENTION_SECONDS: Property[float] = Property(
    name="history_retention_seconds",
    parse=_seconds,
    values=f"seconds, 0 or more, or `{FOREVER}`",
    default=FOREVER_SECONDS,
    default_text=f"`{FOREVER}`",
    read_by="compaction of documents",
    meaning="In a table that keeps history, how long a delta is kept in it after it was compacted.",
)
INGEST_SOURCE: Property[str | None] = Property(
    name="ingest.source",
    parse=_text,
    values="a folder of the machines that serve, or `s3://…`",
    default=None,
    read_by="the service's intake of files",
    meaning="Where files are dropped that the service takes into the table; see `siltstone ingest`.",
)
INGEST_PATTERN: Property[str | None] = Property(
    name="ingest.pattern",
    parse=_text,
    values="a pattern such as `*.jsonl` or `**/*.csv`",
    default=None,
    default_text="all files in the folder itself",
    read_by="the service's intake of files",
    meaning="Which files are taken.",
)
INGEST_FORMAT: Property[str | None] = Property(
    name="ingest.format",
    parse=_text,
    values="a format of `siltstone write`, e.g. `csv`",
    default=None,
    default_text="by the names of the files",
    read_by="the service's intake of files",
    meaning="What the files are.",
)
INGEST_OP_COLUMN: Property[str | None] = Property(
    name="ingest.op_column",
    parse=_text,
    values="a column's name",
    default=None,
    read_by="the service's intake of files",
    meaning="The column with each row's operation.",
)
INGEST_DECIMALS: Property[str | None] = Property(
    name="ingest.decimals",
    parse=_one_of("base64", "text"),
    values="`base64` or `text`",
    default=None,
    read_by="the service's intake of files",
    meaning="What text in decimal columns of change events without schemas is.",
)
INGEST_TIMES: Property[str | None] = Property(
    name="ingest.times",
    parse=_text,
    values="`ms`, `us` or `ns`, or `COLUMN=ms` and others, with commas between them",
    default=None,
    read_by="the service's intake of files",
    meaning="The unit of times in change events without schemas.",
)
INGEST_HEADER: Property[str | None] = Property(
    name="ingest.header",
    parse=_text,
    values="names with commas between them",
    default=None,
    read_by="the service's intake of files",
    meaning="What comes before the table's columns in files of DMS.",
)
INGEST_INTO: Property[str | None] = Property(
    name="ingest.into",
    parse=_text,
    values="a template such as `shop.{table}`",
    default=None,
    default_text="this table",
    read_by="the service's intake of files",
    meaning="The tables that change events of several go to; this one remembers which files were taken.",
)
INGEST_CREATE: Property[bool] = Property(
    name="ingest.create",
    parse=lambda text: _one_of("true", "false")(text) == "true",
    values="`true` or `false`",
    default=False,
    default_text="`false`",
    read_by="the service's intake of files",
    meaning="Whether tables that `ingest.into` names are created where they are missing.",
)
INGEST_REJECTS: Property[str | None] = Property(
    name="ingest.rejects",
    parse=_text,
    values="a folder of the machines that serve, or `s3://…`",
    default=None,
    read_by="the service's intake of files",
    meaning="Where bad files, and change events that do not fit, go, so that the others are taken.",
)
INGEST_EVERY_SECONDS: Property[float] = Property(
    name="ingest.every_seconds",
    parse=_seconds,
    values="seconds, 0 or more",
    default=10.0,
    default_text="10",
    read_by="the service's intake of files",
    meaning="How often the service looks for new files.",
)
INGEST_DONE: Property[str] = Property(
    name="ingest.done",
    parse=_one_of("keep", "move", "delete"),
    values="`keep`, `move` or `delete`",
    default="keep",
    default_text="`keep`",
    read_by="the service's intake of files",
    meaning="What becomes of a file that is taken; with `move`, it goes to the folder `done` beside it.",
)
INGEST_QUARANTINE: Property[bool] = Property(
    name="ingest.quarantine",
    parse=lambda text: _one_of("true", "false")(text) == "true",
    values="`true` or `false`",
    default=False,
    default_text="`false`",
    read_by="the service's intake of files",
    meaning="Whether a bad file is moved to the folder `rejected`, so that the others are taken.",
)
PUBLISH_FORMATS = ("delta", "iceberg")
PUBLISH: Property[tuple[str, ...]] = Property(
    name="publish",
    parse=lambda text: tuple(_one_of(*PUBLISH_FORMATS)(part.strip()) for part in text.split(",")),
    values="`delta`, `iceberg`, or both, with a comma between them",
    default=(),
    read_by="compaction and the service",
    meaning="The formats in which the table is published after each compaction, for readers of other systems.",
)
PUBLISH_DELTA_CHANGES: Property[bool] = Property(
    name="publish.delta.change_feed",
    parse=lambda text: _one_of("true", "false")(text) == "true",
    values="`true` or `false`",
    default=False,
    default_text="`false`",
    read_by="publishing as Delta Lake",
    meaning="Whether published versions have a change data feed. Those of rounds that rewrite files then have files of their changes.",
)
PUBLISH_ICEBERG_VERSION: Property[int] = Property(
    name="publish.iceberg.format_version",
    parse=_whole(2, 3),
    values="2 or 3",
    default=3,
    default_text="3",
    read_by="publishing as Iceberg",
    meaning="The version of Iceberg's format: 3 has deletion vectors, 2 is for readers that do not know them. It never falls.",
)
ROW_GROUP_ROWS: Property[int] = Property(
    name="row_group_rows",
    parse=_whole(1, MAX_ROW_GROUP_ROWS),
    values=f"rows, from 1 to {MAX_ROW_GROUP_ROWS}",
    default=MAX_ROW_GROUP_ROWS,
    default_text=f"{MAX_ROW_GROUP_ROWS}; 1024 in a table of documents",
    read_by="compaction",
    meaning="Rows in a row group of new compacted files: fewer make lookups quicker and files larger.",
    old_names=("siltstone.row_group_rows",),
)
SCHEMA_EVOLUTION: Property[str] = Property(
    name="schema_evolution",
    parse=_one_of("add_and_widen", STRICT),
    values="`add_and_widen` or `strict`",
    default="add_and_widen",
    default_text="`add_and_widen`",
    read_by="writes",
    meaning="Whether a write may add columns and widen types; with `strict`, only `alter` may.",
)
PRIORITY: Property[int] = Property(
    name="priority",
    parse=_whole(0, 1000),
    values="a whole number, from 0 to 1000",
    default=0,
    default_text="0",
    read_by="the service",
    meaning="Tables with a higher one are compacted first in a cycle.",
)
TOMBSTONE_RETENTION_SECONDS: Property[float] = Property(
    name="tombstone_retention_seconds",
    parse=_seconds,
    values=f"seconds, 0 or more, or `{FOREVER}`",
    default=7.0 * 24 * 3600,
    default_text="604800 (7 days)",
    read_by="compaction",
    meaning="In a table with sort keys, how long a deleted row keeps older rows of its key out; 0 is until the next round.",
)
KIND: Property[str] = Property(
    name="siltstone.kind",
    parse=str,
    values=f"`{ROWS_KIND}` or `{DOCUMENTS_KIND}`",
    default=ROWS_KIND,
    default_text=f"`{ROWS_KIND}`",
    read_by="everything that reads, writes or compacts",
    meaning="What the table holds; set when it is created.",
)
DOCUMENTS_NAME: Property[str | None] = Property(
    name="siltstone.documents.name",
    parse=str,
    values="a table's name",
    default=None,
    read_by="documents",
    meaning="The name that a table of documents was created under.",
)
FULL_CONSISTENCY_DELAY_MS: Property[int | None] = Property(
    name="siltstone.full_consistency_delay_ms",
    parse=_whole(0, MAX_DELAY_MS),
    values=f"milliseconds, from 0 to {MAX_DELAY_MS}",
    default=None,
    read_by="documents",
    meaning="How far back changes may carry their times; set by `full_consistency_delay` when the table is created.",
)
CLOSED_BEFORE_MS: Property[int | None] = Property(
    name="siltstone.closed_before_ms",
    parse=int,
    values="milliseconds since 1970",
    default=None,
    read_by="documents",
    meaning="The time before which no change is taken any more; moved on by compaction.",
)

TABLE_PROPERTIES: dict[str, Property[Any]] = {
    declared.name: declared
    for declared in (
        DELTA_RETENTION_SECONDS,
        FEED_MAX_LAG_SECONDS,
        HISTORY_RETENTION_SECONDS,
        HISTORY_TRACK,
        INGEST_CREATE,
        INGEST_DECIMALS,
        INGEST_DONE,
        INGEST_EVERY_SECONDS,
        INGEST_FORMAT,
        INGEST_HEADER,
        INGEST_INTO,
        INGEST_OP_COLUMN,
        INGEST_PATTERN,
        INGEST_QUARANTINE,
        INGEST_REJECTS,
        INGEST_SOURCE,
        INGEST_TIMES,
        KEEP_HISTORY,
        PRIORITY,
        PUBLISH,
        PUBLISH_DELTA_CHANGES,
        PUBLISH_ICEBERG_VERSION,
        ROW_GROUP_ROWS,
        SCHEMA_EVOLUTION,
        TOMBSTONE_RETENTION_SECONDS,
        KIND,
        DOCUMENTS_NAME,
        FULL_CONSISTENCY_DELAY_MS,
        CLOSED_BEFORE_MS,
    )
}


def change_properties(
    before: Mapping[str, str], changes: Mapping[str, str | None], where: object, *, of_table: bool = True
) -> dict[str, str]:
    """Return properties as they are after changes that a user asks for; None removes one.

    Setting a property to the value it has changes nothing. Without `of_table` it is something else that carries
    properties, none of which has a meaning: a user's own are all there can be. Raises: InvalidInputError.
    """
    after = dict(before)
    for name, text in changes.items():
        declared = TABLE_PROPERTIES.get(name)
        present = before.get(name) if declared is None else declared.text_in(before)
        if text == present:
            continue
        _check_change(name, text, where, of_table=of_table)
        for old in (name, *(declared.old_names if declared else ())):
            after.pop(old, None)
        if text is not None:
            after[name] = text
    return after


def _check_change(name: object, text: object, where: object, *, of_table: bool) -> None:
    if not isinstance(name, str):
        raise InvalidInputError(f"{where}: the name of a property is text, not {name!r}")
    declared = TABLE_PROPERTIES.get(name)
    if declared is not None and declared.is_reserved:
        raise InvalidInputError(f"{where}: property {name} is kept by the system; it can be neither set nor removed")
    if text is None:
        return
    if not isinstance(text, str):
        raise InvalidInputError(f"{where}: property {name} is {text!r}, which is not text; give {str(text)!r}")
    if name.startswith(USER_PREFIX) and name != USER_PREFIX:
        return
    if not of_table:
        hint = f"; {name} is a property of tables, set it there" if declared else ""
        raise InvalidInputError(
            f"{where}: takes no property but your own, which start with {USER_PREFIX}, e.g. {_own(name)}{hint}"
        )
    if declared is None:
        raise InvalidInputError(f"{where}: there is no property {name}{_suggestion(name)}")
    declared.read(text, where)


def _suggestion(name: str) -> str:
    for declared in TABLE_PROPERTIES.values():
        if name in declared.old_names:
            return f"; it is called {declared.name} now"
    settable = [declared.name for declared in TABLE_PROPERTIES.values() if not declared.is_reserved]
    guess = did_you_mean(name, settable)
    return f"; there are {', '.join(settable)}, and your own, which start with {USER_PREFIX}, e.g. {_own(name)}{guess}"


def _own(name: str) -> str:
    return USER_PREFIX + (name.removeprefix(RESERVED_PREFIX).removeprefix(USER_PREFIX) or "owner")
