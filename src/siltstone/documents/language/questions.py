"""The kinds of conditions, one class for each, and how they are made: what is written in several ways becomes one condition."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from siltstone.documents.language.conditions import Condition
from siltstone.documents.language.values import (
    ASKABLE,
    UNDEFINED,
    Intrinsics,
    Json,
    Value,
    checked,
    distinct,
    identity,
    number_order,
    ordered_keys,
    strictly_equal,
    string_text,
    utf16,
    value_text,
)
from siltstone.errors import InvalidInputError

STATES: Final[Mapping[str, tuple[type, ...]]] = {
    "undefined": (),
    "defined": (),
    "null": (),
    "bool": (bool,),
    "num": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
COMPARISONS: Final[Mapping[str, Any]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
_set = object.__setattr__


class Constant(Condition):
    """`alwaysTrue()`, `alwaysFalse()`."""

    __slots__ = ("answer",)
    answer: bool

    def __init__(self, answer: bool) -> None:
        _set(self, "answer", answer)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return what it always is."""
        return self.answer

    def __str__(self) -> str:
        return "alwaysTrue()" if self.answer else "alwaysFalse()"


ALWAYS: Final = Constant(True)
NEVER: Final = Constant(False)


class Equal(Condition):
    """A JSON value."""

    __slots__ = ("value",)
    value: Json

    def __init__(self, value: Json) -> None:
        _set(self, "value", value)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value strictly equals."""
        return strictly_equal(self.value, value)

    def __str__(self) -> str:
        return value_text(self.value)


class In(Condition):
    """`in(…)` of at least two values."""

    __slots__ = ("values",)
    values: dict[object, Json]

    def __init__(self, values: dict[object, Json]) -> None:
        _set(self, "values", values)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is one of these."""
        return value is not UNDEFINED and identity(value) in self.values

    def __str__(self) -> str:
        return f"in({_arguments(self.values)})"


class Is(Condition):
    """`is(…)`, `~` for undefined and `+` for defined."""

    __slots__ = ("state",)
    state: str

    def __init__(self, state: str) -> None:
        _set(self, "state", state)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is of this kind."""
        if self.state == "undefined":
            return value is UNDEFINED
        return (self.state == "defined" and value is not UNDEFINED) or type(value) in STATES[self.state]

    def __str__(self) -> str:
        return {"undefined": "~", "defined": "+"}.get(self.state) or f"is({self.state})"


class Comparison(Condition):
    """`gt(…)`, `ge(…)`, `lt(…)`, `le(…)`: exact for numbers of both kinds, by UTF-16 code units for strings.

    -0.0 is less than 0.0 and than 0, which are neither less nor greater than each other.
    """

    __slots__ = ("bound", "name")
    name: str
    bound: int | float | str

    def __init__(self, name: str, bound: Json) -> None:
        if isinstance(bound, bool) or not isinstance(bound, int | float | str):
            raise InvalidInputError(f"{name}({value_text(bound)}): only numbers and strings have an order")
        _set(self, "name", name)
        _set(self, "bound", bound)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is of the bound's kind and on this side of it."""
        if isinstance(self.bound, str):
            return isinstance(value, str) and COMPARISONS[self.name](utf16(value), utf16(self.bound))
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        answer: bool = COMPARISONS[self.name](number_order(value), number_order(self.bound))
        return answer

    def __str__(self) -> str:
        return f"{self.name}({value_text(self.bound)})"


class Contains(Condition):
    """`contains(…)`, `containsAny(…)`, `containsAll(…)`, `containsOnly(…)`."""

    __slots__ = ("kind", "values")
    kind: str
    values: dict[object, Json]

    def __init__(self, kind: str, values: dict[object, Json]) -> None:
        _set(self, "kind", kind)
        _set(self, "values", values)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is a list with such values."""
        if not isinstance(value, list):
            return False
        members = {identity(member) for member in value}
        if self.kind == "Any":
            return not members.isdisjoint(self.values)
        return members == self.values.keys() if self.kind == "Only" else members >= self.values.keys()

    def __str__(self) -> str:
        suffix = "" if len(self.values) == 1 and self.kind != "Only" else self.kind
        return f"contains{suffix}({_arguments(self.values)})"


class Like(Condition):
    """`like("…")`: pieces with anything between them."""

    __slots__ = ("pieces",)
    pieces: tuple[str, ...]

    def __init__(self, pieces: tuple[str, ...]) -> None:
        _set(self, "pieces", pieces)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the pieces follow each other in a string without overlap, from its start to its end."""
        if not isinstance(value, str):
            return False
        first, *middle, last = self.pieces
        end = len(value) - len(last)
        position = len(first)
        if position > end or not value.startswith(first) or not value.endswith(last):
            return False
        for piece in middle:
            start = value.find(piece, position, end)
            if start < 0:
                return False
            position = start + len(piece)
        return True

    def __str__(self) -> str:
        escaped = [piece.replace("\\", "\\\\").replace("*", "\\*") for piece in self.pieces]
        return f"like({string_text('*'.join(escaped))})"


class Not(Condition):
    """`not(…)`."""

    __slots__ = ("inner",)
    inner: Condition

    def __init__(self, inner: Condition) -> None:
        _set(self, "inner", inner)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return the opposite."""
        return not self.inner.matches(value, intrinsics)

    def sorted_text(self) -> str:
        """Return the text, see `Condition`."""
        return f"not({self.inner.sorted_text()})"

    def __str__(self) -> str:
        return f"not({self.inner})"


class And(Condition):
    """`and(…)` of at least two conditions."""

    __slots__ = ("conditions",)
    conditions: tuple[Condition, ...]

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        _set(self, "conditions", conditions)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether all are so."""
        for condition in self.conditions:  # noqa: SIM110, a generator doubles the frames of deep nesting
            if not condition.matches(value, intrinsics):
                return False
        return True

    def sorted_text(self) -> str:
        """Return the text with the conditions in one order."""
        return f"and({','.join(sorted([condition.sorted_text() for condition in self.conditions]))})"

    def __str__(self) -> str:
        return f"and({','.join(map(str, self.conditions))})"


class Or(Condition):
    """`or(…)` of at least two conditions."""

    __slots__ = ("conditions",)
    conditions: tuple[Condition, ...]

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        _set(self, "conditions", conditions)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether one is so."""
        for condition in self.conditions:  # noqa: SIM110
            if condition.matches(value, intrinsics):
                return True
        return False

    def sorted_text(self) -> str:
        """Return the text with the conditions in one order."""
        return f"or({','.join(sorted([condition.sorted_text() for condition in self.conditions]))})"

    def __str__(self) -> str:
        return f"or({','.join(map(str, self.conditions))})"


class MapCondition(Condition):
    """`{..,"key":condition}`."""

    __slots__ = ("entries",)
    entries: dict[str, Condition]

    def __init__(self, entries: dict[str, Condition]) -> None:
        _set(self, "entries", entries)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is a map and all entries are so."""
        if not isinstance(value, dict):
            return False
        for key, condition in self.entries.items():  # noqa: SIM110
            if not condition.matches(value.get(key, UNDEFINED), intrinsics):
                return False
        return True

    def sorted_text(self) -> str:
        """Return the text, see `Condition`."""
        return self._text({key: condition.sorted_text() for key, condition in self.entries.items()})

    def __str__(self) -> str:
        return self._text({key: str(condition) for key, condition in self.entries.items()})

    def _text(self, texts: Mapping[str, str]) -> str:
        return "{" + ",".join(["..", *(f"{string_text(key)}:{texts[key]}" for key in ordered_keys(list(texts)))]) + "}"


class Intrinsic(Condition):
    """`intrinsic("~name":condition)`."""

    __slots__ = ("inner", "name")
    name: str
    inner: Condition

    def __init__(self, name: str, inner: Condition) -> None:
        if name not in ASKABLE:
            raise InvalidInputError(
                f"intrinsic({string_text(name)}:…): no condition on that is possible; use one of {', '.join(ASKABLE)}"
            )
        _set(self, "name", name)
        _set(self, "inner", inner)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether this is so of the document, whatever the value."""
        if intrinsics is None:
            raise InvalidInputError(f"{self} asks about a document, and there is none; apply the delta to a document")
        return self.inner.matches(intrinsics.intrinsic(self.name), intrinsics)

    def sorted_text(self) -> str:
        """Return the text, see `Condition`."""
        return f"intrinsic({string_text(self.name)}:{self.inner.sorted_text()})"

    def __str__(self) -> str:
        return f"intrinsic({string_text(self.name)}:{self.inner})"


class Partition(Condition):
    """`partition(count:condition)`."""

    __slots__ = ("count", "inner")
    count: int
    inner: Condition

    def __init__(self, count: int, inner: Condition) -> None:
        if not 1 <= count < 1 << 31:
            raise InvalidInputError(f"partition({count}:…): the number of partitions is from 1 to 2147483647")
        _check_partitions(count, inner)
        _set(self, "count", count)
        _set(self, "inner", inner)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether this is so of the document's partition, whatever the value."""
        if intrinsics is None:
            raise InvalidInputError(f"{self} asks about a document, and there is none; apply the delta to a document")
        return self.inner.matches(intrinsics.partition(self.count), intrinsics)

    def sorted_text(self) -> str:
        """Return the text, see `Condition`."""
        return f"partition({self.count}:{self.inner.sorted_text()})"

    def __str__(self) -> str:
        return f"partition({self.count}:{self.inner})"


def _arguments(values: Mapping[object, Json]) -> str:
    return ",".join(sorted(map(value_text, values.values()), key=utf16))


def _check_partitions(count: int, condition: Condition) -> None:
    if isinstance(condition, Not):
        _check_partitions(count, condition.inner)
    elif isinstance(condition, And | Or):
        for inner in condition.conditions:
            _check_partitions(count, inner)
    elif isinstance(condition, Equal | In):
        for value in [condition.value] if isinstance(condition, Equal) else condition.values.values():
            _check_partition(count, value)
    elif isinstance(condition, Comparison):
        _check_partition(count, condition.bound)
    elif not isinstance(condition, Constant | Is):
        raise InvalidInputError(f"partition({count}:…): {condition} asks nothing about a number")


def _check_partition(count: int, value: Json) -> None:
    if type(value) is not int or not 1 <= value <= count:
        raise InvalidInputError(
            f"partition({count}:…): {value_text(value)} is not a partition; use whole numbers from 1 to {count}"
        )


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
