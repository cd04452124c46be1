"""Values of rows and documents, and types of columns, as pages show them: on one line, and no longer than people read."""

from collections.abc import Mapping

import orjson

# So much of a value is sent to a browser; the API has the whole.
MAX_CELL = 400


def format_cell(value: object) -> str:
    """Return a value that JSON can hold on one line, cut where it is very long."""
    if value is None:
        return "null"
    shown = value if isinstance(value, str) else orjson.dumps(value).decode()
    return shown if len(shown) <= MAX_CELL else f"{shown[:MAX_CELL]}…"


def format_type(type_: object) -> str:
    """Return the type of a column, which is a name, or an object for nested types, e.g. `list<struct<a: int64>>`."""
    if not isinstance(type_, Mapping):
        return str(type_)
    ((shape, inner),) = type_.items()
    if shape == "struct":
        fields = [f"{field['name']}: {format_type(field['type'])}" for field in inner]
        return f"struct<{', '.join(fields)}>"
    parts = inner if isinstance(inner, list) else [inner]
    return f"{shape}<{', '.join(map(format_type, parts))}>"
