"""What may be written to a document: a map, and none of the keys that the store fills in."""

from typing import Final, TypeVar

from siltstone.documents.language.deltas import Conditional, Delta, Literal, MapDelta, SetDelta, conditional, map_delta
from siltstone.documents.language.intrinsics import RESERVED
from siltstone.errors import InvalidInputError

_T = TypeVar("_T")
_SHOWN: Final = 60


def sanitized(delta: Delta) -> Delta:
    """Return a delta of a whole document without the reserved keys; itself, if it has none.

    Raises: InvalidInputError where the result would be no map.
    """
    if isinstance(delta, Literal):
        if not isinstance(delta.value, dict):
            raise InvalidInputError(f'{str(delta)[:_SHOWN]}: a document is a map; write for example {{..,"key":1}}')
        return delta if RESERVED.isdisjoint(delta.value) else Literal(_without_reserved(delta.value))
    if isinstance(delta, SetDelta):
        raise InvalidInputError(f"{str(delta)[:_SHOWN]}: a document is a map, not a set; put the set under a key")
    if isinstance(delta, MapDelta):
        if RESERVED.isdisjoint(delta.puts) and RESERVED.isdisjoint(delta.others):
            return delta
        return map_delta(
            _without_reserved(delta.puts),
            _without_reserved(delta.others),
            keeps_rest=delta.keeps_rest,
            deletes_if_empty=delta.deletes_if_empty,
        )
    if isinstance(delta, Conditional):
        branches = [(condition, sanitized(then)) for condition, then in delta.branches]
        otherwise = sanitized(delta.otherwise)
        same = otherwise is delta.otherwise and all(
            one[1] is other[1] for one, other in zip(branches, delta.branches, strict=True)
        )
        return delta if same else conditional(branches, otherwise)
    return delta


def _without_reserved(entries: dict[str, _T]) -> dict[str, _T]:
    return {key: each for key, each in entries.items() if key not in RESERVED}
