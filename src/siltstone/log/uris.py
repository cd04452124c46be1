"""Addresses of data files as Spark's logs spell them: absolute, scheme-qualified, percent-encoded."""

import os
import re
import urllib.parse
from collections.abc import Mapping

from siltstone.errors import InvalidInputError

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_UNCODED = "/=+,:@&~"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://?")
_ESCAPED_IN_FOLDERS = re.compile(r"[\x01-\x1f\x7f\"#%'*/:=?\\\[\]^{]")


def base_uri(root: str | os.PathLike[str]) -> str:
    """Return the URI of a folder as Spark qualifies it; symbolic links stay, since Spark does not resolve them.

    A local path is taken as it is, a URL as percent-encoded already.
    """
    text = os.fspath(root)
    match = _SCHEME.match(text)
    if match is None:
        return "file://" + urllib.parse.quote(os.path.abspath(os.path.expanduser(text)), safe=_UNCODED)
    if match.group(1).lower() == "file":
        return "file://" + urllib.parse.quote(urllib.parse.urlsplit(text).path.rstrip("/"), safe=_UNCODED + "%")
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{urllib.parse.quote(rest.rstrip('/'), safe=_UNCODED + '%')}"


def file_uri(base: str, path: str) -> str:
    """Return the URI of the file at the relative `path` under a folder's URI."""
    return f"{base}/{urllib.parse.quote(path, safe=_UNCODED)}"


def decoded(uri: str) -> str:
    """Return one readable spelling for a URI: decoded, and `file:/a` as `file:///a`."""
    text = urllib.parse.unquote(uri)
    return re.sub(r"^file:/+", "file:///", text)


def partition_folder(values: Mapping[str, object]) -> str:
    """Return the folder of a partition, such as `day=2024-01-01/city=a%2Fb`; None and "" are the null partition.

    Raises: InvalidInputError for an empty column name.
    """
    if not values or not all(values):
        raise InvalidInputError(f"partition {dict(values)!r} needs at least one column, each with a name")
    return "/".join(f"{_escaped(name)}={_escaped(_text(value))}" for name, value in values.items())


def _text(value: object) -> str:
    if value is None or value == "":
        return NULL_PARTITION
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    return _ESCAPED_IN_FOLDERS.sub(lambda match: f"%{ord(match.group()):02X}", text)
