"""Which names are allowed, so that none of them walks out of the root or confuses a path, and which one was meant."""

import difflib
import re
from collections.abc import Sequence

from siltstone.errors import InvalidInputError

NAME_LIMIT = 128
COLUMN_NAME_LIMIT = 255
RESERVED_COLUMN_PREFIX = "_siltstone_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if it may name a thing. Raises: InvalidInputError."""
    if not isinstance(name, str):
        raise InvalidInputError(f"{what} must be text, not {type(name).__name__} {name!r}")
    if not name:
        raise InvalidInputError(f"{what} is empty")
    if len(name) > NAME_LIMIT:
        raise InvalidInputError(f"{what} {name[:40]!r}… has {len(name)} characters; at most {NAME_LIMIT} are allowed")
    if not _NAME.match(name) or ".." in name:
        raise InvalidInputError(
            f"{what} {name!r} is not allowed: start with a letter or digit, go on with letters, digits, "
            "'_', '-' and single '.'"
        )
    return name


def check_namespace(name: str) -> str:
    """Return `name` if it may name a namespace: no dot, since `namespace.table` splits at the first one."""
    check_name(name, "namespace")
    if "." in name:
        raise InvalidInputError(f"namespace {name!r} has a dot; the dot separates namespace and table")
    return name


def split_table_name(name: str) -> tuple[str, str]:
    """Split `namespace.table`. Raises: InvalidInputError."""
    namespace, dot, table = name.partition(".") if isinstance(name, str) else ("", "", "")
    if not dot:
        raise InvalidInputError(f"table {name!r} has no namespace; write it as namespace.table, e.g. shop.orders")
    return check_namespace(namespace), check_name(table, "table")


def check_column(name: str) -> str:
    """Return `name` if it may name a column. Raises: InvalidInputError."""
    if not name or not name.strip():
        raise InvalidInputError("a column has an empty name; name every column")
    if len(name.encode("utf-8", "surrogatepass")) > COLUMN_NAME_LIMIT:
        raise InvalidInputError(f"column {name[:40]!r}… is longer than {COLUMN_NAME_LIMIT} bytes; shorten it")
    if not name.isprintable():
        raise InvalidInputError(f"column {name!r} has characters that do not print; rename it")
    if name.lower().startswith(RESERVED_COLUMN_PREFIX):
        raise InvalidInputError(f"column {name!r}: the prefix {RESERVED_COLUMN_PREFIX} is reserved; rename it")
    return name


def check_path(path: str) -> str:
    """Return the path of an object or folder that stays under the root. Raises: InvalidInputError."""
    if not path or "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise InvalidInputError(
            f"path {path!r} is not allowed: paths are relative to the root, without empty, '.' or '..' parts"
        )
    return path


def did_you_mean(name: str, candidates: Sequence[str]) -> str:
    """Return a question that names what is close, or nothing."""
    lowered = {other.lower(): other for other in candidates}
    close = difflib.get_close_matches(name.lower(), lowered, n=2, cutoff=0.7)
    close = close or [other for other in lowered if other.rpartition(".")[2] == name.lower().rpartition(".")[2]][:2]
    return f"; did you mean {' or '.join(lowered[other] for other in close)}?" if close else ""
