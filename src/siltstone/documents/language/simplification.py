"""Making conditions in their simplest form: what is written in several ways becomes the same condition."""

from collections.abc import Iterable, Sequence

from siltstone.documents.language.conditions import Condition
from siltstone.documents.language.questions import (
    ALWAYS,
    NEVER,
    STATES,
    And,
    Constant,
    Contains,
    Equal,
    In,
    Intrinsic,
    Is,
    Like,
    Not,
    Or,
)
from siltstone.documents.language.values import Json, checked, distinct, string_text
from siltstone.errors import InvalidInputError


def as_condition(value: object) -> Condition:
    """Return a condition as it is, and of anything else that it must be equal. Raises: InvalidInputError."""
    return value if isinstance(value, Condition) else Equal(checked(value))


def is_a(state: str) -> Condition:
    """Return the condition that a value is of a kind. Raises: InvalidInputError."""
    if state not in STATES:
        raise InvalidInputError(f"is({state}) is unknown; use {', '.join(STATES)}")
    return Equal(None) if state == "null" else Is(state)


def like(pattern: str) -> Condition:
    """Return the condition that a string has a pattern. Raises: InvalidInputError."""
    pieces = _pieces(pattern)
    if len(pieces) == 1:
        return Equal(pieces[0])
    return Like(pieces) if any(pieces) else Is("string")


def negate(condition: Condition) -> Condition:
    """Return the opposite."""
    return condition.inner if isinstance(condition, Not) else Not(condition)


def all_of(conditions: Sequence[Condition]) -> Condition:
    """Return the condition that all are so."""
    if len(conditions) == 1:
        return conditions[0]
    return And(tuple(conditions)) if conditions else ALWAYS


def one_of(values: Iterable[Json]) -> Condition:
    """Return the condition that a value is one of these."""
    found = distinct(values)
    if len(found) > 1:
        return In(found)
    return Equal(next(iter(found.values()))) if found else NEVER


def containing(kind: str, values: Iterable[Json]) -> Condition:
    """Return the condition that a value is a list with these."""
    found = distinct(values)
    if kind != "Only" and len(found) <= 1:
        return Contains("Any", found) if found else ALWAYS
    return Contains(kind, found)


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Return the condition that one is so; equalities come first as one, then one each of the intrinsics, then others."""
    values: list[Json] = []
    intrinsics: dict[str, list[Condition]] = {}
    others: list[Condition] = []
    waiting = list(conditions)[::-1]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Constant):
            if each.answer:
                return ALWAYS
        elif isinstance(each, Equal):
            values.append(each.value)
        elif isinstance(each, In):
            values.extend(each.values.values())
        elif isinstance(each, Intrinsic):
            intrinsics.setdefault(each.name, []).append(each.inner)
        elif isinstance(each, Or):
            waiting.extend(each.conditions[::-1])
        else:
            others.append(each)
    found = [one_of(values)] if values else []
    found += [Intrinsic(name, any_of(inner)) for name, inner in intrinsics.items()]
    found += others
    return found[0] if len(found) == 1 else Or(tuple(found)) if found else NEVER


def _pieces(pattern: str) -> tuple[str, ...]:
    """Return what is between the wildcards, unescaped; several wildcards in a row are one."""
    pieces: list[str] = []
    piece: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == "*":
            if piece or not pieces:
                pieces.append("".join(piece))
                piece = []
        elif character == "\\":
            escaped = next(characters, None)
            if escaped is None:
                raise InvalidInputError(f"like({string_text(pattern)}): the last backslash escapes nothing; double it")
            piece.append(escaped)
        else:
            piece.append(character)
    return (*pieces, "".join(piece))
