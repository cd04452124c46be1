"""Builders: deltas from Python, step by step; what they make prints as the text one would write.

Each step returns the builder itself. `build()` makes the delta; `str(builder)` is its text.
"""

from collections.abc import Mapping
from typing import TypeAlias, Union

from siltstone.documents.language.conditions import Condition
from siltstone.documents.language.deltas import (
    DELETE,
    NOOP,
    Delta,
    Literal,
    as_delta,
    conditional,
    map_delta,
    set_delta,
)
from siltstone.documents.language.questions import as_condition
from siltstone.documents.language.values import Json, checked
from siltstone.errors import InvalidInputError

Built: TypeAlias = Union[Delta, "MapBuilder", "SetBuilder", "ConditionalBuilder"]
"""A delta, or a builder of one."""


class MapBuilder:
    """Builds the delta of a map; keys that it does not mention are kept, unless said otherwise."""

    def __init__(self) -> None:
        self._entries: dict[str, Delta] = {}
        self._keeps_rest = True
        self._deletes_if_empty = False

    def put(self, key: str, value: object) -> "MapBuilder":
        """Set a key to a JSON value."""
        return self.update(key, Literal(checked(value)))

    def put_all(self, values: Mapping[str, object]) -> "MapBuilder":
        """Set several keys."""
        for key, value in values.items():
            self.put(key, value)
        return self

    def put_if_absent(self, key: str, value: object) -> "MapBuilder":
        """Set a key that is not there."""
        return self.update(key, conditional([(Condition.is_a("undefined"), Literal(checked(value)))]))

    def remove(self, *keys: str) -> "MapBuilder":
        """Remove keys."""
        for key in keys:
            self.update(key, DELETE)
        return self

    def remove_if(self, key: str, condition: object) -> "MapBuilder":
        """Remove a key whose value is so."""
        return self.update(key, conditional([(as_condition(condition), DELETE)]))

    def retain(self, *keys: str) -> "MapBuilder":
        """Keep keys as they are, also if the rest is removed."""
        for key in keys:
            self.update(key, NOOP)
        return self

    def update(self, key: str, delta: Built) -> "MapBuilder":
        """Apply a delta to a key. Raises: InvalidInputError where the key was mentioned before."""
        key = _text(key)
        if key in self._entries:
            raise InvalidInputError(f"a map can do one thing to a key, but {key!r} occurs twice")
        self._entries[key] = _built(delta)
        return self

    def update_if_exists(self, key: str, delta: Built) -> "MapBuilder":
        """Apply a delta to a key that is there."""
        return self.update(key, conditional([(Condition.is_a("defined"), _built(delta))]))

    def remove_rest(self) -> "MapBuilder":
        """Drop the keys that are not mentioned."""
        self._keeps_rest = False
        return self

    def delete_if_empty(self) -> "MapBuilder":
        """Delete the map if no key is left."""
        self._deletes_if_empty = True
        return self

    def build(self) -> Delta:
        """Return the delta."""
        puts = {key: delta.value for key, delta in self._entries.items() if isinstance(delta, Literal)}
        others = {key: delta for key, delta in self._entries.items() if key not in puts}
        return map_delta(puts, others, keeps_rest=self._keeps_rest, deletes_if_empty=self._deletes_if_empty)

    def __str__(self) -> str:
        return str(self.build())


class SetBuilder:
    """Builds the delta of a set; members that it does not mention are kept, unless said otherwise."""

    def __init__(self) -> None:
        self._added: list[Json] = []
        self._removed: list[Json] = []
        self._keeps_rest = True
        self._deletes_if_empty = False

    def add(self, *members: object) -> "SetBuilder":
        """Add members."""
        self._added += [checked(member) for member in members]
        return self

    def remove(self, *members: object) -> "SetBuilder":
        """Remove members."""
        self._removed += [checked(member) for member in members]
        return self

    def remove_rest(self) -> "SetBuilder":
        """Drop the members that are not mentioned."""
        self._keeps_rest = False
        return self

    def delete_if_empty(self) -> "SetBuilder":
        """Delete the set if no member is left."""
        self._deletes_if_empty = True
        return self

    def build(self) -> Delta:
        """Return the delta. Raises: InvalidInputError where a member is mentioned twice."""
        return set_delta(
            self._added, self._removed, keeps_rest=self._keeps_rest, deletes_if_empty=self._deletes_if_empty
        )

    def __str__(self) -> str:
        return str(self.build())


class ConditionalBuilder:
    """Builds a delta of conditions, the first that is so decides."""

    def __init__(self) -> None:
        self._branches: list[tuple[Condition, Delta]] = []
        self._otherwise: Delta = NOOP

    def when(self, condition: object, then: object) -> "ConditionalBuilder":
        """Add a condition, or a value to be equal to, and what happens then: a delta, or a value as a literal."""
        self._branches.append((as_condition(condition), _built(then)))
        return self

    def otherwise(self, delta: object) -> "ConditionalBuilder":
        """Set what happens if no condition is so; without it, nothing."""
        self._otherwise = _built(delta)
        return self

    def build(self) -> Delta:
        """Return the delta."""
        return conditional(self._branches, self._otherwise)

    def __str__(self) -> str:
        return str(self.build())


Builder: TypeAlias = MapBuilder | SetBuilder | ConditionalBuilder


def _built(delta: object) -> Delta:
    if isinstance(delta, Builder):
        return delta.build()
    return as_delta(delta)


def _text(key: object) -> str:
    name = checked(key)
    if not isinstance(name, str):
        raise InvalidInputError(f"{key!r} is not a key of a map; use a string")
    return name
