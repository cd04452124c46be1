"""What `format("siltstone")` is asked for: every option it has, checked; what it does not know is refused."""

import datetime
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from siltstone.compactor.moments import parse_moment
from siltstone.errors import InvalidInputError
from siltstone.model.names import did_you_mean
from siltstone.objects import canonical_root

FORMAT = "siltstone"
NAMES = ("root", "table", "columns", "as_of", "fresh")
# What `load("shop.orders")` gives, and the name that `to_spark` has for fresh reads.
_PATH = "path"
_ALIASES = {_PATH: "table", "include_uncompacted": "fresh"}
_CREATED_PREFIX = "option."
_HOW = (
    '.option("root", …).load("namespace.table"), or in SQL CREATE TABLE name USING siltstone '
    "OPTIONS (root '…', table 'namespace.table'), without columns; SILTSTONE_ROOT may name the root"
)


@dataclass(frozen=True)
class ReadOptions:
    """A table, and how it is to be read: as compacted, unless it is fresh or as of some moment."""

    root: str
    table: str
    columns: tuple[str, ...] | None = None
    as_of: int | datetime.datetime | None = None
    fresh: bool = False


def is_creation(given: Mapping[str, str]) -> bool:
    """Tell whether Spark asks on behalf of CREATE TABLE: what it gives then is all that is known about the table."""
    return given.get("provider", "").lower() == FORMAT


def options_of_creation(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options among what Spark gives at CREATE TABLE."""
    options = {name.removeprefix(_CREATED_PREFIX): text for name, text in given.items() if _is_option(name)}
    location = given.get("location")
    return options if location is None else {_PATH: location, **options}


def _is_option(name: str) -> bool:
    return name.startswith(_CREATED_PREFIX)


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check options, by names in lower case as Spark gives them. Raises: InvalidInputError."""
    texts: dict[str, str] = {}
    for name, text in given.items():
        known = _ALIASES.get(name, name)
        if known not in NAMES:
            raise InvalidInputError(
                f"format {FORMAT}: there is no option {name}; there are {', '.join(NAMES)}"
                f"{did_you_mean(name, [*NAMES, *_ALIASES])}"
            )
        if texts.setdefault(known, text) != text:
            raise InvalidInputError(f"format {FORMAT}: {known} is given as {texts[known]!r} and {text!r}; give it once")
    root = texts.get("root") or os.environ.get("SILTSTONE_ROOT")
    if not root or not texts.get("table"):
        raise InvalidInputError(f"format {FORMAT}: {'table' if root else 'root'} is not given; write {_HOW}")
    as_of = texts.get("as_of")
    return ReadOptions(
        root=canonical_root(root),
        table=texts["table"],
        columns=_columns(texts["columns"]) if "columns" in texts else None,
        as_of=None if as_of is None else parse_moment(as_of.strip()),
        fresh=_truth(texts.get("fresh", "false")),
    )


def _columns(text: str) -> tuple[str, ...]:
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"format {FORMAT}: columns is {text!r}, which is not JSON ({error})") from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"format {FORMAT}: columns is {text!r}; give a list of names")
    return tuple(names)


def _truth(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidInputError(f"format {FORMAT}: fresh is {text!r}; give true or false")
    return text.strip().lower() == "true"
