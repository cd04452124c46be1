"""Documents as another store keeps them: cells in its encoding, each a delta, a compaction record or an entry of the history.

A cell begins with what it is: `D1:<delta>`, `D2:<tags>:<delta>`, `D3:<tags>:<flags>:<delta>`, `C1:<record as JSON>` or
`H1:<entry as JSON>`. Long ones are cut into blocks, of which the first begins with how many there are, in four digits.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from siltstone.documents.language.values import DELETED, RESERVED, VERSION
from siltstone.errors import InvalidInputError

_CELL: Final = re.compile(r"(?:[0-9A-Fa-f]{4})?(D1|D2|D3|C1|H1):", re.ASCII)
_RECORD_FIELDS: Final = {
    "count": "count",
    "first": "first",
    "cutoff": "cutoff",
    "cutoffSignature": "cutoff_signature",
    "lastContentMutation": "last_content_mutation",
    "lastMutation": "last_mutation",
    "compactedDelta": "compacted_delta",
    "lastTags": "last_tags",
}


def decoded_cells(document: Mapping[str, object]) -> Mapping[str, object]:
    """Return a document with deltas, compactions and history instead of cells; itself, where it has none.

    Cells are a map of change ids and values, or a list of `{"id", "value"}`, also with `block`, from 0 on.
    Raises: InvalidInputError.
    """
    if "cells" not in document:
        return document
    others = document.keys() - {"key", "cells"}
    if others:
        raise InvalidInputError(f"has cells and {min(others)}; give one or the other")
    parts: dict[str, list[dict[str, object]]] = {"deltas": [], "compactions": [], "history": []}
    for id_, value in _joined(document["cells"]).items():
        kind = _CELL.match(value)
        if kind is None:
            raise InvalidInputError(f"cell {id_}: {value[:40]!r} begins with none of D1:, D2:, D3:, C1:, H1:")
        body = value[kind.end() :]
        if kind[1] == "C1":
            parts["compactions"].append({"id": id_, **_record(id_, body)})
        elif kind[1] == "H1":
            parts["history"].append(_history(id_, body))
        else:
            parts["deltas"].append({"id": id_, **_delta(id_, kind[1], body)})
    return {"key": document.get("key"), **parts}


def _joined(cells: object) -> dict[str, str]:
    """Return the values of cells by their ids, those in blocks put together."""
    if isinstance(cells, Mapping):
        cells = [{"id": id_, "value": value} for id_, value in cells.items()]
    if not isinstance(cells, list) or not all(isinstance(cell, Mapping) for cell in cells):
        raise InvalidInputError('cells are a map of ids and values, or a list of {"id": …, "value": …}')
    blocks: dict[str, dict[int, str]] = {}
    for cell in cells:
        id_, value, block = cell.get("id"), cell.get("value"), cell.get("block", 0)
        if not isinstance(id_, str) or not isinstance(value, str) or type(block) is not int:
            raise InvalidInputError(
                f"cell {id_!r:.60}: has an id and a value, which are text, and perhaps a block, a number"
            )
        if block in blocks.setdefault(id_, {}):
            raise InvalidInputError(f"cell {id_}: occurs twice; keep one")
        blocks[id_][block] = value
    for id_, own in blocks.items():
        if sorted(own) != list(range(len(own))):
            raise InvalidInputError(f"cell {id_}: has blocks {sorted(own)}, so that one is missing")
    return {id_: "".join(own[number] for number in sorted(own)) for id_, own in blocks.items()}


def _delta(id_: str, encoding: str, body: str) -> dict[str, object]:
    if encoding == "D1":
        return {"delta": body}
    try:
        tags, end = json.JSONDecoder().raw_decode(body)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"cell {id_}: {encoding} begins with a list of tags, not {body[:40]!r}") from error
    rest = body[end:].removeprefix(":")
    if encoding == "D3":
        # The flags say what the delta says by itself.
        _, _, rest = rest.partition(":")
    return {"tags": tags, "delta": rest}


def _record(id_: str, body: str) -> dict[str, object]:
    fields = _json(id_, body)
    return {ours: fields[theirs] for theirs, ours in _RECORD_FIELDS.items() if theirs in fields}


def _history(id_: str, body: str) -> dict[str, object]:
    fields = _json(id_, body)
    content = fields.get("content")
    if not isinstance(content, dict):
        raise InvalidInputError(f"cell {id_}: history without the content after the change")
    kept = None if content.get(DELETED) is True else {key: each for key, each in content.items() if key not in RESERVED}
    return {
        "id": str(fields.get("changeId", id_)),
        "version": content.get(VERSION),
        "delta": fields.get("delta"),
        "content": kept,
    }


def _json(id_: str, body: str) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"cell {id_}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"cell {id_}: not a JSON object")
    return value
