"""Deltas: how a value becomes the next one. Immutable; made already simplified."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NoReturn

from siltstone.documents.language.conditions import Condition
from siltstone.documents.language.questions import Constant
from siltstone.documents.language.values import (
    UNDEFINED,
    Intrinsics,
    Json,
    Value,
    checked,
    identity,
    in_order,
    ordered_keys,
    string_text,
    value_text,
)
from siltstone.errors import InvalidInputError

if TYPE_CHECKING:
    from siltstone.documents.language.builders import ConditionalBuilder, MapBuilder, SetBuilder

_set = object.__setattr__


class Delta:
    """A change of a value. The static methods make deltas, or builders of them.

    The text of a delta is canonical, but for the order of conditions inside `and(…)` and `or(…)`, which stays as it was
    written. Deltas are equal if their texts are, whatever that order.
    """

    __slots__ = ()

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return what a value becomes; the parts that stay are shared with it. Raises: InvalidInputError."""
        raise NotImplementedError

    @property
    def is_constant(self) -> bool:
        """Whether the result is the same whatever there was before."""
        return False

    @property
    def never_deletes(self) -> bool:
        """Whether the result is certainly defined."""
        return False

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def sorted_text(self) -> str:
        """Return the text with everything inside `and(…)` and `or(…)` in one order: the same for equal deltas."""
        return str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delta) and self.sorted_text() == other.sorted_text()

    def __hash__(self) -> int:
        return hash(self.sorted_text())

    def __repr__(self) -> str:
        return f"<delta {self}>"

    def __reduce__(self) -> tuple[Callable[[str], "Delta"], tuple[str]]:
        return Delta.parse, (str(self),)

    @staticmethod
    def parse(text: str) -> "Delta":
        """Read a delta from text. Raises: InvalidInputError."""
        from siltstone.documents.language.parser import parse_delta

        return parse_delta(text)

    @staticmethod
    def literal(value: object) -> "Delta":
        """Return the delta that replaces everything by a JSON value."""
        return Literal(checked(value))

    @staticmethod
    def delete() -> "Delta":
        """Return the delta that deletes: `~`."""
        return DELETE

    @staticmethod
    def noop() -> "Delta":
        """Return the delta that leaves all as it is: `..`."""
        return NOOP

    @staticmethod
    def map() -> "MapBuilder":
        """Start a delta of a map that keeps the keys it does not mention."""
        from siltstone.documents.language.builders import MapBuilder

        return MapBuilder()

    @staticmethod
    def set() -> "SetBuilder":
        """Start a delta of a set that keeps the members it does not mention."""
        from siltstone.documents.language.builders import SetBuilder

        return SetBuilder()

    @staticmethod
    def conditional() -> "ConditionalBuilder":
        """Start a delta that depends on conditions."""
        from siltstone.documents.language.builders import ConditionalBuilder

        return ConditionalBuilder()


class Literal(Delta):
    """A JSON value."""

    __slots__ = ("value",)
    value: Json

    def __init__(self, value: Json) -> None:
        _set(self, "value", value)

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return the literal's value."""
        return self.value

    @property
    def is_constant(self) -> bool:
        """Yes."""
        return True

    @property
    def never_deletes(self) -> bool:
        """Yes."""
        return True

    def __str__(self) -> str:
        return value_text(self.value)


class Delete(Delta):
    """`~`."""

    __slots__ = ()

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return nothing."""
        return UNDEFINED

    @property
    def is_constant(self) -> bool:
        """Yes."""
        return True

    def __str__(self) -> str:
        return "~"


class Noop(Delta):
    """`..`."""

    __slots__ = ()

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return the same value."""
        return value

    def __str__(self) -> str:
        return ".."


DELETE: Final = Delete()
NOOP: Final = Noop()


class MapDelta(Delta):
    """`{..,"key":delta}`, or `{"key":delta}` which drops the keys it does not mention.

    Literals are kept apart as plain values, so that the most frequent deltas cost no object per key.
    """

    __slots__ = ("deletes_if_empty", "keeps_rest", "others", "puts")
    puts: dict[str, Json]
    others: dict[str, Delta]
    keeps_rest: bool
    deletes_if_empty: bool

    def __init__(self, puts: dict[str, Json], others: dict[str, Delta], keeps_rest: bool, deletes_if_empty: bool):
        _set(self, "puts", puts)
        _set(self, "others", others)
        _set(self, "keeps_rest", keeps_rest)
        _set(self, "deletes_if_empty", deletes_if_empty)

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return the map after the deltas of its keys; a value that is not a map counts as an empty one."""
        old: dict[str, Json] = value if isinstance(value, dict) else {}
        new = {**old, **self.puts} if self.keeps_rest else dict(self.puts)
        for key, delta in self.others.items():
            result = delta.apply(old.get(key, UNDEFINED), intrinsics)
            if result is not UNDEFINED:
                new[key] = result
            elif key in new:
                del new[key]
        return new if new or not self.deletes_if_empty else UNDEFINED

    @property
    def is_constant(self) -> bool:
        """Whether it is made of constants only."""
        return not self.keeps_rest and all(other.is_constant for other in self.others.values())

    @property
    def never_deletes(self) -> bool:
        """Whether an empty map stays."""
        return not self.deletes_if_empty

    def sorted_text(self) -> str:
        """Return the text, see `Delta`."""
        return self._text({key: delta.sorted_text() for key, delta in self.others.items()})

    def __str__(self) -> str:
        return self._text({key: str(delta) for key, delta in self.others.items()})

    def _text(self, others: dict[str, str]) -> str:
        parts = [".."] if self.keeps_rest else []
        for key in ordered_keys([*self.puts, *others]):
            inner = others.get(key)
            parts.append(f"{string_text(key)}:{value_text(self.puts[key]) if inner is None else inner}")
        return "{" + ",".join(parts) + "}" + "?" * self.deletes_if_empty


class SetDelta(Delta):
    """`(..,1,~2)`, or `(1)` which drops the members it does not mention; members go by strict equality."""

    __slots__ = ("added", "deletes_if_empty", "keeps_rest", "removed")
    added: dict[object, Json]
    removed: dict[object, Json]
    keeps_rest: bool
    deletes_if_empty: bool

    def __init__(
        self, added: dict[object, Json], removed: dict[object, Json], keeps_rest: bool, deletes_if_empty: bool
    ) -> None:
        _set(self, "added", added)
        _set(self, "removed", removed)
        _set(self, "keeps_rest", keeps_rest)
        _set(self, "deletes_if_empty", deletes_if_empty)

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return the members as a list in order; a value that is not a list counts as an empty one."""
        members = dict(self.added)
        if self.keeps_rest and isinstance(value, list):
            for member in value:
                key = identity(member)
                if key not in self.removed:
                    members.setdefault(key, member)
        return in_order(members.values()) if members or not self.deletes_if_empty else UNDEFINED

    @property
    def is_constant(self) -> bool:
        """Whether it drops other members."""
        return not self.keeps_rest

    @property
    def never_deletes(self) -> bool:
        """Whether an empty list stays."""
        return not self.deletes_if_empty

    def __str__(self) -> str:
        parts = [".."] if self.keeps_rest else []
        parts += map(value_text, in_order(self.added.values()))
        parts += [f"~{value_text(member)}" for member in in_order(self.removed.values())]
        return f"({','.join(parts)})" + "?" * self.deletes_if_empty


class Conditional(Delta):
    """`if … then … elif … then … else … end`."""

    __slots__ = ("branches", "otherwise")
    branches: tuple[tuple[Condition, Delta], ...]
    otherwise: Delta

    def __init__(self, branches: tuple[tuple[Condition, Delta], ...], otherwise: Delta) -> None:
        _set(self, "branches", branches)
        _set(self, "otherwise", otherwise)

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return the result of the first delta whose condition is so."""
        for condition, delta in self.branches:
            if condition.matches(value, intrinsics):
                return delta.apply(value, intrinsics)
        return self.otherwise.apply(value, intrinsics)

    @property
    def never_deletes(self) -> bool:
        """Whether no branch deletes."""
        return self.otherwise.never_deletes and all(delta.never_deletes for _, delta in self.branches)

    def sorted_text(self) -> str:
        """Return the text, see `Delta`."""
        branches = [f"{condition.sorted_text()} then {delta.sorted_text()}" for condition, delta in self.branches]
        return self._text(branches, self.otherwise.sorted_text())

    def __str__(self) -> str:
        return self._text([f"{condition} then {delta}" for condition, delta in self.branches], str(self.otherwise))

    def _text(self, branches: list[str], otherwise: str) -> str:
        text = " elif ".join(branches)
        return f"if {text} end" if self.otherwise is NOOP else f"if {text} else {otherwise} end"


def map_delta(puts: dict[str, Json], others: dict[str, Delta], *, keeps_rest: bool, deletes_if_empty: bool) -> Delta:
    """Return the delta of a map, as a literal or `~` where it is one; `others` are no literals."""
    if deletes_if_empty and (puts or any(other.never_deletes for other in others.values())):
        deletes_if_empty = False
    delta = MapDelta(puts, others, keeps_rest, deletes_if_empty)
    return _constant(delta.apply()) if delta.is_constant else delta


def set_delta(
    added: Iterable[Json], removed: Iterable[Json] = (), *, keeps_rest: bool, deletes_if_empty: bool
) -> SetDelta:
    """Return the delta of a set. Raises: InvalidInputError where a member is mentioned twice."""
    adding: dict[object, Json] = {}
    removing: dict[object, Json] = {}
    for members, values in ((adding, added), (removing, removed)):
        for value in values:
            key = identity(value)
            if key in adding or key in removing:
                raise InvalidInputError(f"a set can do one thing to a member, but {value_text(value)} occurs twice")
            members[key] = value
    return SetDelta(adding, removing, keeps_rest, deletes_if_empty)


def conditional(branches: Iterable[tuple[Condition, Delta]], otherwise: Delta = NOOP) -> Delta:
    """Return the delta of conditions; what always or never is so is decided here, inner `else if`s become branches."""
    kept: list[tuple[Condition, Delta]] = []
    for condition, delta in branches:
        if not isinstance(condition, Constant):
            kept.append((condition, delta))
        elif condition.answer:
            otherwise = delta
            break
    if not kept:
        return otherwise
    if isinstance(otherwise, Conditional):
        return Conditional((*kept, *otherwise.branches), otherwise.otherwise)
    return Conditional(tuple(kept), otherwise)


def as_delta(value: object) -> Delta:
    """Return a delta as it is, and of anything else the literal."""
    return value if isinstance(value, Delta) else Delta.literal(value)


def _constant(value: Value) -> Delta:
    return DELETE if value is UNDEFINED else Literal(value)
