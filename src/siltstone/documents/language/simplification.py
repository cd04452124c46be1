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
    members = distinct(values)
    if len(members) > 1:
        return In(members)
    return Equal(next(iter(members.values()))) if members else NEVER


def containing(kind: str, values: Iterable[Json]) -> Condition:
    """Return the condition that a value is a list with these."""
    members = distinct(values)
    if kind != "Only" and len(members) <= 1:
        return Contains("Any", members) if members else ALWAYS
    return Contains(kind, members)


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Return the condition that any of them holds: one equality first, then one condition for each intrinsic, then others."""
    values: list[Json] = []
    intrinsics: dict[str, list[Condition]] = {}
    others: list[Condition] = []
    waiting = list(conditions)[::-1]
    while waiting:
        condition = waiting.pop()
        if isinstance(condition, Constant):
            if condition.answer:
                return ALWAYS
        elif isinstance(condition, Equal):
            values.append(condition.value)
        elif isinstance(condition, In):
            values.extend(condition.values.values())
        elif isinstance(condition, Intrinsic):
            intrinsics.setdefault(condition.name, []).append(condition.inner)
        elif isinstance(condition, Or):
            waiting.extend(condition.conditions[::-1])
        else:
            others.append(condition)
    combined = [one_of(values)] if values else []
    combined += [Intrinsic(name, any_of(inner)) for name, inner in intrinsics.items()]
    combined += others
    return combined[0] if len(combined) == 1 else Or(tuple(combined)) if combined else NEVER


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
