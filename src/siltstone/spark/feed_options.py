"""The options of reads of changes and of deltas by `format("siltstone")`, and how much of them a batch has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

from pyspark.sql.types import StructType

from siltstone.errors import InvalidInputError
from siltstone.objects import canonical_root
from siltstone.spark.options import FORMAT, column_names, is_true, option_texts
from siltstone.spark.stream_limits import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows
from siltstone.table.change_feed import CHANGE_FIELDS, Changes, Images, OnRebase, open_changes
from siltstone.table.delta_feed import DELTA_FIELDS, DeltaFeed, open_delta_feed
from siltstone.table.round_bounds import Bound

Feed = Literal["changes", "deltas"]
AFTER, FEED = "changes_after", "feed"
EARLIEST, LATEST = "earliest", "latest"
_CHANGE_NAMES = ("root", "table", "columns", "images", "net", "on_rebase")
_LIMIT_NAMES = ("max_positions", "max_rows", "max_bytes")
READ_NAMES = (*_CHANGE_NAMES, AFTER, "changes_upto")
STREAM_NAMES = (*_CHANGE_NAMES, FEED, "start", "snapshot", *_LIMIT_NAMES)


class Size(NamedTuple):
    """What has come up to a position since the one before."""

    position: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Limits:
    """How many positions, rows and bytes of deltas a batch has at most; None where that does not matter."""

    positions: int | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def of_spark(self) -> ReadLimit:
        """What Spark is to hand in where a batch is to be limited: it knows one limit, of which the kind is enough."""
        for most, kind in ((self.rows, ReadMaxRows), (self.bytes, ReadMaxBytes), (self.positions, ReadMaxFiles)):
            if most is not None:
                return kind(most)
        return ReadAllAvailable()

    def last_within(self, sizes: Sequence[Size]) -> int | None:
        """Return the last position that is within all limits, at least the first; None where all are."""
        count = rows = size = 0
        for place, each in enumerate(sizes):
            count, rows, size = count + 1, rows + each.rows, size + each.bytes
            totals = ((count, self.positions), (rows, self.rows), (size, self.bytes))
            if place and any(most is not None and total > most for total, most in totals):
                return sizes[place - 1].position
        return None


@dataclass(frozen=True)
class FeedOptions:
    """A table, and which of its changes, or deltas, are to be read."""

    root: str
    table: str
    columns: tuple[str, ...] | None = None
    feed: Feed = "changes"
    images: Images = "both"
    net: bool = True
    on_rebase: OnRebase = "difference"
    after: str = EARLIEST
    upto: str | None = None
    snapshot: bool = False
    limits: Limits = Limits()

    def changes(self, after: Bound | None, upto: Bound | None) -> Changes:
        """Return changes between two bounds. Raises: InvalidInputError, NotFoundError."""
        how = {"columns": self.columns, "images": self.images, "net": self.net, "on_rebase": self.on_rebase}
        return open_changes(self.table, after, upto, **how, root=self.root)  # type: ignore[arg-type]

    def deltas(self) -> DeltaFeed:
        """Return the deltas. Raises: InvalidInputError, NotFoundError."""
        feed = open_delta_feed(self.table, self.columns, root=self.root)
        if self.snapshot and feed.version.keeps_history:
            raise InvalidInputError(
                f"{self.table}: keeps history, whose rows are not those that were written; leave out snapshot, or use feed=changes"
            )
        return feed


def asks_for_feed(options: Mapping[str, str]) -> bool:
    """Return whether changes or deltas are to be read, and not rows."""
    return AFTER in options or FEED in options


def feed_options(options: Mapping[str, str], schema: StructType | None = None) -> FeedOptions:
    """Check the options of a read of changes or deltas; with a schema, it says which columns. Raises: InvalidInputError."""
    texts = option_texts(options, STREAM_NAMES if FEED in options else READ_NAMES, "load")
    feed = cast("Feed", _chosen(texts, FEED, get_args(Feed)))
    columns = column_names("columns", texts)
    if schema is not None:
        # One that is added while a query runs is not what the query knows.
        marks = (CHANGE_FIELDS if feed == "changes" else DELTA_FIELDS).names
        columns = tuple(name for name in schema.names if name not in marks)
    return FeedOptions(
        root=canonical_root(texts["root"]),
        table=texts["table"],
        columns=columns,
        feed=feed,
        images=cast("Images", _chosen(texts, "images", get_args(Images))),
        net=is_true("net", texts, default=True),
        on_rebase=cast("OnRebase", _chosen(texts, "on_rebase", get_args(OnRebase))),
        after=_start(texts, feed) if FEED in texts else texts[AFTER],
        upto=texts.get("changes_upto"),
        snapshot=is_true("snapshot", texts, default=False),
        limits=Limits(*(_whole_number(texts, name) for name in _LIMIT_NAMES)),
    )


def _chosen(texts: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    """Return one of the values that an option may have, the first where it is not set."""
    text = texts.get(name, known[0])
    if text not in known:
        raise InvalidInputError(f"format {FORMAT}: {name} is {text!r}; use {' or '.join(known)}")
    return text


def _start(texts: Mapping[str, str], feed: Feed) -> str:
    if feed == "deltas":
        for name in ("images", "net", "on_rebase"):
            if name in texts:
                raise InvalidInputError(
                    f"format {FORMAT}: {name} is for feed=changes; deltas are read as they were written"
                )
    if "start" in texts and is_true("snapshot", texts, default=False):
        raise InvalidInputError(
            f"format {FORMAT}: start is {texts['start']!r}, but snapshot=true begins with the whole table as it is; leave out one of them"
        )
    return texts.get("start", EARLIEST)


def _whole_number(texts: Mapping[str, str], name: str) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise InvalidInputError(f"format {FORMAT}: {name} is {text!r}; use a whole number of at least 1")
    return int(text)
