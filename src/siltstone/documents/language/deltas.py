"""Deltas: how a value becomes the next one; and builders, which make them from Python step by step."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self

from siltstone.documents.language.conditions import Condition, Constant
from siltstone.documents.language.values import (
    UNDEFINED,
    Expression,
    Intrinsics,
    Json,
    Value,
    checked,
    identity,
    immutable,
    in_order,
    ordered_keys,
    string_text,
    value_text,
)
from siltstone.errors import InvalidInputError


class Delta(Expression):
    """A change of a value. The static methods make deltas, or builders of them."""

    __slots__ = ()
    _noun = "delta"

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
        return MapBuilder()

    @staticmethod
    def set() -> "SetBuilder":
        """Start a delta of a set that keeps the members it does not mention."""
        return SetBuilder()

    @staticmethod
    def conditional() -> "ConditionalBuilder":
        """Start a delta that depends on conditions."""
        return ConditionalBuilder()


@immutable
class Literal(Delta):
    """A JSON value."""

    value: Json
    is_constant = True
    never_deletes = True

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return the literal's value."""
        return self.value

    def _text(self, is_sorted: bool) -> str:
        return value_text(self.value)


@immutable
class Delete(Delta):
    """`~`."""

    is_constant = True

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return nothing."""
        return UNDEFINED

    def _text(self, is_sorted: bool) -> str:
        return "~"


@immutable
class Noop(Delta):
    """`..`."""

    def apply(self, value: Value = UNDEFINED, intrinsics: Intrinsics | None = None) -> Value:
        """Return the same value."""
        return value

    def _text(self, is_sorted: bool) -> str:
        return ".."


DELETE: Final = Delete()
NOOP: Final = Noop()


@immutable
class MapDelta(Delta):
    """`{..,"key":delta}`, or `{"key":delta}` which drops the keys it does not mention.

    Literals are kept apart as plain values, so that the most frequent deltas cost no object per key.
    """

    puts: dict[str, Json]
    others: dict[str, Delta]
    keeps_rest: bool
    deletes_if_empty: bool

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

    def _text(self, is_sorted: bool) -> str:
        parts = [".."] if self.keeps_rest else []
        for key in ordered_keys([*self.puts, *self.others]):
            inner = self.others.get(key)
            text = value_text(self.puts[key]) if inner is None else inner._text(is_sorted)
            parts.append(f"{string_text(key)}:{text}")
        return "{" + ",".join(parts) + "}" + "?" * self.deletes_if_empty


@immutable
class SetDelta(Delta):
    """`(..,1,~2)`, or `(1)` which drops the members it does not mention; members go by strict equality."""

    added: dict[object, Json]
    removed: dict[object, Json]
    keeps_rest: bool
    deletes_if_empty: bool

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

    def _text(self, is_sorted: bool) -> str:
        parts = [".."] if self.keeps_rest else []
        parts += map(value_text, in_order(self.added.values()))
        parts += [f"~{value_text(member)}" for member in in_order(self.removed.values())]
        return f"({','.join(parts)})" + "?" * self.deletes_if_empty


@immutable
class Conditional(Delta):
    """`if … then … elif … then … else … end`."""

    branches: tuple[tuple[Condition, Delta], ...]
    otherwise: Delta

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

    def _text(self, is_sorted: bool) -> str:
        branches = [f"{when._text(is_sorted)} then {then._text(is_sorted)}" for when, then in self.branches]
        otherwise = "" if self.otherwise is NOOP else f" else {self.otherwise._text(is_sorted)}"
        return f"if {' elif '.join(branches)}{otherwise} end"


def map_delta(puts: dict[str, Json], others: dict[str, Delta], *, keeps_rest: bool, deletes_if_empty: bool) -> Delta:
    """Return the delta of a map, as a literal or `~` where it is one; `others` are no literals."""
    if deletes_if_empty and (puts or any(other.never_deletes for other in others.values())):
        deletes_if_empty = False
    delta = MapDelta(puts, others, keeps_rest, deletes_if_empty)
    if not delta.is_constant:
        return delta
    value = delta.apply()
    return DELETE if value is UNDEFINED else Literal(value)


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


class Builder:
    """Builds a delta; each step returns the builder itself, and `str(builder)` is the delta's text."""

    def build(self) -> Delta:
        """Return the delta."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.build())


class _CollectionBuilder(Builder):
    """Builds the delta of a map or a set; what it does not mention is kept, unless said otherwise."""

    def __init__(self) -> None:
        self._keeps_rest = True
        self._deletes_if_empty = False

    def remove_rest(self) -> Self:
        """Drop the keys or members that are not mentioned."""
        self._keeps_rest = False
        return self

    def delete_if_empty(self) -> Self:
        """Delete the map or set if nothing is left in it."""
        self._deletes_if_empty = True
        return self


class MapBuilder(_CollectionBuilder):
    """Builds the delta of a map; keys that it does not mention are kept, unless said otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, Delta] = {}

    def put(self, key: str, value: object) -> Self:
        """Set a key to a JSON value."""
        return self.update(key, Literal(checked(value)))

    def put_all(self, values: Mapping[str, object]) -> Self:
        """Set several keys."""
        for key, value in values.items():
            self.put(key, value)
        return self

    def put_if_absent(self, key: str, value: object) -> Self:
        """Set a key that is not there."""
        return self.update(key, conditional([(Condition.is_a("undefined"), Literal(checked(value)))]))

    def remove(self, *keys: str) -> Self:
        """Remove keys."""
        for key in keys:
            self.update(key, DELETE)
        return self

    def remove_if(self, key: str, condition: object) -> Self:
        """Remove a key whose value is so."""
        return self.update(key, conditional([(Condition.equals(condition), DELETE)]))

    def retain(self, *keys: str) -> Self:
        """Keep keys as they are, also if the rest is removed."""
        for key in keys:
            self.update(key, NOOP)
        return self

    def update(self, key: str, delta: Delta | Builder) -> Self:
        """Apply a delta to a key. Raises: InvalidInputError where the key was mentioned before."""
        name = checked(key)
        if not isinstance(name, str):
            raise InvalidInputError(f"{key!r} is not a key of a map; use a string")
        if name in self._entries:
            raise InvalidInputError(f"a map can do one thing to a key, but {name!r} occurs twice")
        self._entries[name] = _built(delta)
        return self

    def update_if_exists(self, key: str, delta: Delta | Builder) -> Self:
        """Apply a delta to a key that is there."""
        return self.update(key, conditional([(Condition.is_a("defined"), _built(delta))]))

    def build(self) -> Delta:
        """Return the delta."""
        puts = {key: delta.value for key, delta in self._entries.items() if isinstance(delta, Literal)}
        others = {key: delta for key, delta in self._entries.items() if key not in puts}
        return map_delta(puts, others, keeps_rest=self._keeps_rest, deletes_if_empty=self._deletes_if_empty)


class SetBuilder(_CollectionBuilder):
    """Builds the delta of a set; members that it does not mention are kept, unless said otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._added: list[Json] = []
        self._removed: list[Json] = []

    def add(self, *members: object) -> Self:
        """Add members."""
        self._added += map(checked, members)
        return self

    def remove(self, *members: object) -> Self:
        """Remove members."""
        self._removed += map(checked, members)
        return self

    def build(self) -> Delta:
        """Return the delta. Raises: InvalidInputError where a member is mentioned twice."""
        added: dict[object, Json] = {}
        removed: dict[object, Json] = {}
        for members, values in ((added, self._added), (removed, self._removed)):
            for value in values:
                key = identity(value)
                if key in added or key in removed:
                    raise InvalidInputError(f"a set can do one thing to a member, but {value_text(value)} occurs twice")
                members[key] = value
        return SetDelta(added, removed, self._keeps_rest, self._deletes_if_empty)


class ConditionalBuilder(Builder):
    """Builds a delta of conditions, the first that is so decides."""

    def __init__(self) -> None:
        self._branches: list[tuple[Condition, Delta]] = []
        self._otherwise: Delta = NOOP

    def when(self, condition: object, then: object) -> Self:
        """Add a condition, or a value to be equal to, and what happens then: a delta, or a value as a literal."""
        self._branches.append((Condition.equals(condition), _built(then)))
        return self

    def otherwise(self, delta: object) -> Self:
        """Set what happens if no condition is so; without it, nothing."""
        self._otherwise = _built(delta)
        return self

    def build(self) -> Delta:
        """Return the delta."""
        return conditional(self._branches, self._otherwise)


def _built(delta: object) -> Delta:
    """Return a delta as it is, that of a builder, and of anything else the literal."""
    if isinstance(delta, Builder):
        return delta.build()
    return delta if isinstance(delta, Delta) else Delta.literal(delta)
