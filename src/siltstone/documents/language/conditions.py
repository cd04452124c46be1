"""Conditions: what a conditional delta asks about the value that it applies to; one class for each kind.

What can be written in several ways becomes one condition.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeGuard

from siltstone.documents.language.values import (
    ASKABLE,
    UNDEFINED,
    Expression,
    Intrinsics,
    Json,
    Value,
    checked,
    distinct,
    identity,
    immutable,
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
COMPARISONS: Final = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}


class Condition(Expression):
    """A question about a value. The static methods make conditions; where they take one, a plain value means equality."""

    __slots__ = ()
    _noun = "condition"

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether a value meets the condition. Raises: InvalidInputError where it needs intrinsics and has none."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[[str], "Condition"], tuple[str]]:
        return Condition.parse, (str(self),)

    @staticmethod
    def parse(text: str) -> "Condition":
        """Read a condition from text. Raises: InvalidInputError."""
        from siltstone.documents.language.parser import parse_condition

        return parse_condition(text)

    @staticmethod
    def always(answer: bool) -> "Condition":
        """Ask nothing."""
        return ALWAYS if answer else NEVER

    @staticmethod
    def equals(value: object) -> "Condition":
        """Ask for strict equality: 5 is not 5.0. A condition stays as it is. Raises: InvalidInputError."""
        return value if isinstance(value, Condition) else Equal(checked(value))

    @staticmethod
    def is_in(*values: object) -> "Condition":
        """Ask whether the value strictly equals one of these."""
        return _one_of(map(checked, values))

    @staticmethod
    def is_a(state: str) -> "Condition":
        """Ask for undefined, defined, null, bool, num, string, array or object. Raises: InvalidInputError."""
        if state not in STATES:
            raise InvalidInputError(f"is({state}) is unknown; use {', '.join(STATES)}")
        return Equal(None) if state == "null" else Is(state)

    @staticmethod
    def gt(bound: object) -> "Condition":
        """Ask for more than a number or a string."""
        return Comparison("gt", checked(bound))

    @staticmethod
    def ge(bound: object) -> "Condition":
        """Ask for at least a number or a string."""
        return Comparison("ge", checked(bound))

    @staticmethod
    def lt(bound: object) -> "Condition":
        """Ask for less than a number or a string."""
        return Comparison("lt", checked(bound))

    @staticmethod
    def le(bound: object) -> "Condition":
        """Ask for at most a number or a string."""
        return Comparison("le", checked(bound))

    @staticmethod
    def contains(value: object) -> "Condition":
        """Ask for a list with this value."""
        return _containing("Any", [value])

    @staticmethod
    def contains_any(*values: object) -> "Condition":
        """Ask for a list with at least one of these; true of everything without any."""
        return _containing("Any", values)

    @staticmethod
    def contains_all(*values: object) -> "Condition":
        """Ask for a list with all of these; true of everything without any."""
        return _containing("All", values)

    @staticmethod
    def contains_only(*values: object) -> "Condition":
        """Ask for a list with these and no others."""
        return _containing("Only", values)

    @staticmethod
    def like(pattern: str) -> "Condition":
        r"""Ask for a string of this pattern: `*` stands for anything, `\` before a character for itself."""
        pieces = _pieces(str(checked(pattern)))
        if len(pieces) == 1:
            return Equal(pieces[0])
        return Like(pieces) if any(pieces) else Is("string")

    @staticmethod
    def negate(condition: object) -> "Condition":
        """Ask for the opposite."""
        negated = Condition.equals(condition)
        return negated.inner if isinstance(negated, Not) else Not(negated)

    @staticmethod
    def all_of(*conditions: object) -> "Condition":
        """Ask for all of these."""
        if len(conditions) == 1:
            return Condition.equals(conditions[0])
        return Combination("and", tuple(map(Condition.equals, conditions))) if conditions else ALWAYS

    @staticmethod
    def any_of(*conditions: object) -> "Condition":
        """Ask for one of these at least: one equality first, then one condition for each intrinsic, then others."""
        values: list[Json] = []
        intrinsics: dict[str, list[Condition]] = {}
        others: list[Condition] = []
        waiting = list(map(Condition.equals, conditions))[::-1]
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
            elif isinstance(condition, Combination) and condition.word == "or":
                waiting.extend(condition.conditions[::-1])
            else:
                others.append(condition)
        combined = [_one_of(values)] if values else []
        combined += [Intrinsic(name, Condition.any_of(*inner)) for name, inner in intrinsics.items()]
        combined += others
        return combined[0] if len(combined) == 1 else Combination("or", tuple(combined)) if combined else NEVER

    @staticmethod
    def map(entries: Mapping[str, object]) -> "Condition":
        """Ask for a map whose values are like this; other keys may be there."""
        return MapCondition({str(checked(key)): Condition.equals(condition) for key, condition in entries.items()})

    @staticmethod
    def intrinsic(name: str, *conditions: object) -> "Condition":
        """Ask about `~id`, `~deleted` and the like: whether one of the conditions is so. Raises: InvalidInputError."""
        return Intrinsic(name, Condition.any_of(*conditions))

    @staticmethod
    def partition(count: int, *conditions: object) -> "Condition":
        """Ask in which of `count` partitions the document is. Raises: InvalidInputError."""
        return Partition(count, Condition.any_of(*conditions))


@immutable
class Constant(Condition):
    """`alwaysTrue()`, `alwaysFalse()`."""

    answer: bool

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return what it always is."""
        return self.answer

    def _text(self, is_sorted: bool) -> str:
        return "alwaysTrue()" if self.answer else "alwaysFalse()"


ALWAYS: Final = Constant(True)
NEVER: Final = Constant(False)


@immutable
class Equal(Condition):
    """A JSON value."""

    value: Json

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value strictly equals."""
        return strictly_equal(self.value, value)

    def _text(self, is_sorted: bool) -> str:
        return value_text(self.value)


@immutable
class In(Condition):
    """`in(…)` of at least two values."""

    values: dict[object, Json]

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is one of these."""
        return value is not UNDEFINED and identity(value) in self.values

    def _text(self, is_sorted: bool) -> str:
        return f"in({_arguments(self.values)})"


@immutable
class Is(Condition):
    """`is(…)`, `~` for undefined and `+` for defined."""

    state: str

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is of this kind."""
        if self.state == "undefined":
            return value is UNDEFINED
        return (self.state == "defined" and value is not UNDEFINED) or type(value) in STATES[self.state]

    def _text(self, is_sorted: bool) -> str:
        return {"undefined": "~", "defined": "+"}.get(self.state) or f"is({self.state})"


@immutable
class Comparison(Condition):
    """`gt(…)`, `ge(…)`, `lt(…)`, `le(…)`: exact for numbers of both kinds, by UTF-16 code units for strings.

    -0.0 is less than 0.0 and than 0, which are neither less nor greater than each other.
    """

    name: str
    bound: Any

    def __post_init__(self) -> None:
        if not _is_number(self.bound) and not isinstance(self.bound, str):
            raise InvalidInputError(f"{self}: only numbers and strings have an order")

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is of the bound's kind and on this side of it."""
        if isinstance(self.bound, str):
            return isinstance(value, str) and COMPARISONS[self.name](utf16(value), utf16(self.bound))
        return _is_number(value) and COMPARISONS[self.name](number_order(value), number_order(self.bound))

    def _text(self, is_sorted: bool) -> str:
        return f"{self.name}({value_text(self.bound)})"


@immutable
class Contains(Condition):
    """`contains(…)`, `containsAny(…)`, `containsAll(…)`, `containsOnly(…)`."""

    kind: str
    values: dict[object, Json]

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is a list with such values."""
        if not isinstance(value, list):
            return False
        members = {identity(member) for member in value}
        if self.kind == "Any":
            return not members.isdisjoint(self.values)
        return members == self.values.keys() if self.kind == "Only" else members >= self.values.keys()

    def _text(self, is_sorted: bool) -> str:
        suffix = "" if len(self.values) == 1 and self.kind != "Only" else self.kind
        return f"contains{suffix}({_arguments(self.values)})"


@immutable
class Like(Condition):
    """`like("…")`: pieces with anything between them."""

    pieces: tuple[str, ...]

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

    def _text(self, is_sorted: bool) -> str:
        escaped = [piece.replace("\\", "\\\\").replace("*", "\\*") for piece in self.pieces]
        return f"like({string_text('*'.join(escaped))})"


@immutable
class Not(Condition):
    """`not(…)`."""

    inner: Condition

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return the opposite."""
        return not self.inner.matches(value, intrinsics)

    def _text(self, is_sorted: bool) -> str:
        return f"not({self.inner._text(is_sorted)})"


@immutable
class Combination(Condition):
    """`and(…)`, `or(…)` of at least two conditions."""

    word: Literal["and", "or"]
    conditions: tuple[Condition, ...]

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether all conditions are met, for `or` whether one is; the first that decides ends it."""
        decisive = self.word == "or"
        for condition in self.conditions:  # No generator, which doubles the frames of deep nesting.
            if condition.matches(value, intrinsics) is decisive:
                return decisive
        return not decisive

    def _text(self, is_sorted: bool) -> str:
        texts = [condition._text(is_sorted) for condition in self.conditions]
        return f"{self.word}({','.join(sorted(texts) if is_sorted else texts)})"


@immutable
class MapCondition(Condition):
    """`{..,"key":condition}`."""

    entries: dict[str, Condition]

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether the value is a map and all entries are so."""
        if not isinstance(value, dict):
            return False
        for key, condition in self.entries.items():  # noqa: SIM110
            if not condition.matches(value.get(key, UNDEFINED), intrinsics):
                return False
        return True

    def _text(self, is_sorted: bool) -> str:
        entries = [
            f"{string_text(key)}:{self.entries[key]._text(is_sorted)}" for key in ordered_keys(list(self.entries))
        ]
        return "{" + ",".join(["..", *entries]) + "}"


@immutable
class Intrinsic(Condition):
    """`intrinsic("~name":condition)`."""

    name: str
    inner: Condition

    def __post_init__(self) -> None:
        if self.name not in ASKABLE:
            raise InvalidInputError(
                f"intrinsic({string_text(self.name)}:…): no condition on that is possible; use one of {', '.join(ASKABLE)}"
            )

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether this is so of the document, whatever the value."""
        return self.inner.matches(_needed(self, intrinsics).intrinsic(self.name), intrinsics)

    def _text(self, is_sorted: bool) -> str:
        return f"intrinsic({string_text(self.name)}:{self.inner._text(is_sorted)})"


@immutable
class Partition(Condition):
    """`partition(count:condition)`."""

    count: int
    inner: Condition

    def __post_init__(self) -> None:
        if not 1 <= self.count < 1 << 31:
            raise InvalidInputError(f"partition({self.count}:…): the number of partitions is from 1 to 2147483647")
        _check_partitions(self.count, self.inner)

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether this is so of the document's partition, whatever the value."""
        return self.inner.matches(_needed(self, intrinsics).partition(self.count), intrinsics)

    def _text(self, is_sorted: bool) -> str:
        return f"partition({self.count}:{self.inner._text(is_sorted)})"


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _needed(condition: Condition, intrinsics: Intrinsics | None) -> Intrinsics:
    if intrinsics is None:
        raise InvalidInputError(f"{condition} asks about a document, and there is none; apply the delta to a document")
    return intrinsics


def _check_partitions(count: int, condition: Condition) -> None:
    values: Iterable[Json] = ()
    if isinstance(condition, Not):
        _check_partitions(count, condition.inner)
    elif isinstance(condition, Combination):
        for inner in condition.conditions:
            _check_partitions(count, inner)
    elif isinstance(condition, In):
        values = condition.values.values()
    elif isinstance(condition, Equal | Comparison):
        values = [condition.value if isinstance(condition, Equal) else condition.bound]
    elif not isinstance(condition, Constant | Is):
        raise InvalidInputError(f"partition({count}:…): {condition} asks nothing about a number")
    for value in values:
        if type(value) is not int or not 1 <= value <= count:
            raise InvalidInputError(
                f"partition({count}:…): {value_text(value)} is not a partition; use whole numbers from 1 to {count}"
            )


def _arguments(values: Mapping[object, Json]) -> str:
    return ",".join(sorted(map(value_text, values.values()), key=utf16))


def _one_of(values: Iterable[Json]) -> Condition:
    members = distinct(values)
    if len(members) > 1:
        return In(members)
    return Equal(next(iter(members.values()))) if members else NEVER


def _containing(kind: str, values: Iterable[object]) -> Condition:
    members = distinct(map(checked, values))
    if kind != "Only" and len(members) <= 1:
        return Contains("Any", members) if members else ALWAYS
    return Contains(kind, members)


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
