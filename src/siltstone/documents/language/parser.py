"""From text to deltas and conditions.

What is plain JSON, or plain JSON behind `{..,`, is left to `read_plain`, which is many times faster and reads nothing else than the
grammar would. Everything else, and every error, is the business of the grammar.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

from siltstone.documents.language.conditions import (
    COMPARISONS,
    STATES,
    Comparison,
    Condition,
    Equal,
    Intrinsic,
    MapCondition,
    Partition,
)
from siltstone.documents.language.deltas import DELETE, NOOP, Delta, Literal, MapDelta, SetDelta, conditional, map_delta
from siltstone.documents.language.scanner import Scanner, read_plain
from siltstone.documents.language.values import UNDEFINED, Json, identity, value_text
from siltstone.errors import InvalidInputError

_Taken = TypeVar("_Taken")
_KEEPING: Final = '{..,"'
_PLAIN_STARTS: Final = frozenset('{["-0123456789tfn')
_OF_VALUES: Final = {
    "in": Condition.is_in,
    "containsAny": Condition.contains_any,
    "containsAll": Condition.contains_all,
    "containsOnly": Condition.contains_only,
}
_DOTS_AND_MORE: Final = re.compile(r"[\x00-\x20]*\.\.[\x00-\x20]*,")
_A_CONDITION: Final = "a condition"


def parse_delta(text: str) -> Delta:
    """Read a delta. Raises: InvalidInputError."""
    if isinstance(text, str):
        if text.startswith(_KEEPING):
            puts = read_plain("{" + text[4:])
            if isinstance(puts, dict):
                return MapDelta(puts, {}, True, False)
        elif text[:1] in _PLAIN_STARTS:
            value = read_plain(text)
            if value is not UNDEFINED:
                return Literal(value)
    return parse_by_grammar(text)


def parse_by_grammar(text: str) -> Delta:
    """Read a delta without the help of orjson: slower, with the same result. Raises: InvalidInputError."""
    parser = _Parser(text, "delta")
    delta = parser.delta()
    parser.end()
    return delta


def parse_deltas(text: str) -> list[Delta]:
    """Read several deltas: `[delta,delta]`, or one after another with blanks between. Raises: InvalidInputError."""
    parser = _Parser(text, "deltas")
    deltas: list[Delta] = []
    if parser.peek() == "[":
        parser.position += 1
        deltas = parser.items("]", parser.delta)
        parser.end()
    while parser.peek():
        deltas.append(parser.delta())
    return deltas


def parse_condition(text: str) -> Condition:
    """Read a condition. Raises: InvalidInputError."""
    parser = _Parser(text, "condition")
    condition = parser.condition()
    parser.end()
    return condition


def parse_value(text: str, what: str = "value") -> Json:
    """Read a JSON value; `what` names it in errors. Raises: InvalidInputError."""
    value = read_plain(text) if isinstance(text, str) else UNDEFINED
    if value is UNDEFINED:
        scanner = Scanner(text, what)
        value = scanner.value()
        scanner.end()
    return value


class _Parser(Scanner):
    """The grammar, top down."""

    def delta(self) -> Delta:
        character = self.peek()
        if character == "{":
            return self._map_delta()
        if character == '"':
            return Literal(self.string())
        if character == "(":
            return self._set_delta()
        if character == "[":
            return Literal(self.array())
        if character == "~":
            self.position += 1
            return DELETE
        if character == ".":
            self._dots()
            return NOOP
        word = self.token()
        return self._conditional() if word == "if" else Literal(self.scalar(word, "a delta"))

    def condition(self) -> Condition:
        character = self.peek()
        if character == "{":
            return self._map_condition()
        if character in ("~", "+"):
            self.position += 1
            return Condition.is_a("undefined" if character == "~" else "defined")
        if character in ('"', "["):
            return Equal(self.value())
        start = self.position
        token = self.token()
        if not token or token[0] in "-0123456789" or token in ("true", "false", "null"):
            return Equal(self.scalar(token, _A_CONDITION))
        self.enter()
        condition = self._function(token, start)
        self.depth -= 1
        return condition

    def _dots(self) -> None:
        """Take `..`, whose first dot was seen."""
        if not self.text.startswith("..", self.position):
            self.fail("'..'", at=self.position + 1)
        self.position += 2

    def _starts_keeping(self, close: str) -> tuple[bool, bool]:
        """Take `..` and the comma after it; return whether they were there, and whether more follows."""
        match = _DOTS_AND_MORE.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            return True, True
        character = self.peek()
        if character == ".":
            self._dots()
            return True, self.more(close)
        if character == close:
            self.position += 1
            return False, False
        return False, True

    def _question_mark(self) -> bool:
        if not self.text.startswith("?", self.position):
            return False
        self.position += 1
        return True

    def _map_delta(self) -> Delta:
        self.enter()
        self.position += 1
        puts: dict[str, Json] = {}
        others: dict[str, Delta] = {}
        keeps_rest, more = self._starts_keeping("}")
        while more:
            key = self.key(puts, others)
            delta = self.delta()
            if isinstance(delta, Literal):
                puts[key] = delta.value
            else:
                others[key] = delta
            more = self.more("}")
        self.depth -= 1
        return map_delta(puts, others, keeps_rest=keeps_rest, deletes_if_empty=self._question_mark())

    def _set_delta(self) -> Delta:
        self.enter()
        self.position += 1
        added: dict[object, Json] = {}
        removed: dict[object, Json] = {}
        keeps_rest, more = self._starts_keeping(")")
        while more:
            members = added
            if self.peek() == "~":
                self.position += 1
                members = removed
            self.peek()
            start = self.position
            member = self.value("a JSON value as member of the set")
            name = identity(member)
            if name in added or name in removed:
                self.reject(f"the member {value_text(member)[:24]} occurs twice", start)
            members[name] = member
            more = self.more(")")
        self.depth -= 1
        return SetDelta(added, removed, keeps_rest, self._question_mark())

    def _conditional(self) -> Delta:
        self.enter()
        branches: list[tuple[Condition, Delta]] = []
        word = "elif"
        while word == "elif":
            condition = self.condition()
            self._word("then")
            branches.append((condition, self.delta()))
            word = self._word("elif", "else", "end")
        otherwise: Delta = NOOP
        if word == "else":
            otherwise = self.delta()
            self._word("end")
        self.depth -= 1
        return conditional(branches, otherwise)

    def _word(self, *words: str) -> str:
        token = self.token()
        if token not in words:
            expected = " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
            self.fail(expected, at=self.position - len(token), found=token)
        return token

    def _map_condition(self) -> Condition:
        start = self.position
        self.position += 1
        if self.peek() != ".":
            self.position = start
            return Equal(self.value())
        self.enter()
        self._dots()
        entries: dict[str, Condition] = {}
        while self.more("}"):
            key = self.key(entries)
            entries[key] = self.condition()
        self.depth -= 1
        return MapCondition(entries)

    def _function(self, name: str, start: int) -> Condition:
        """Take the arguments of a condition that is written like a function."""
        if name in _OF_VALUES:
            return _OF_VALUES[name](*self._arguments(name, self.value))
        if name == "and":
            return Condition.all_of(*self._arguments(name, self.condition))
        if name == "or":
            return Condition.any_of(*self._arguments(name, self.condition))
        if name == "is":
            return self._is()
        if name == "not":
            return Condition.negate(self._one(name, self.condition))
        if name == "contains":
            return Condition.contains(self._one(name, self.value))
        if name in ("alwaysTrue", "alwaysFalse"):
            self._open(name)
            self.take(")")
            return Condition.always(name == "alwaysTrue")
        if name in COMPARISONS:
            bound = self._one(name, self.value)
            return self._made(start, lambda: Comparison(name, bound))
        if name == "like":
            pattern = self._one(name, self.string)
            return self._made(start, lambda: Condition.like(pattern))
        if name == "intrinsic":
            return self._intrinsic(start)
        if name == "partition":
            return self._partition(start)
        return self.fail(_A_CONDITION, at=start, found=name)

    def _made(self, start: int, make: Callable[[], Condition]) -> Condition:
        """Make a condition; what its arguments must be like is known there, where it is written, here."""
        try:
            return make()
        except InvalidInputError as error:
            reason = str(error)
        return self.reject(reason, start)

    def _intrinsic(self, start: int) -> Condition:
        self._open("intrinsic")
        name = self.string("the name of an intrinsic in double quotes")
        self.take(":")
        inner = self._inner()
        return self._made(start, lambda: Intrinsic(name, inner))

    def _partition(self, start: int) -> Condition:
        self._open("partition")
        self.peek()
        position = self.position
        count = self.value("the number of partitions")
        if type(count) is not int:
            self.fail("the number of partitions", at=position)
        self.take(":")
        inner = self._inner()
        return self._made(start, lambda: Partition(count, inner))

    def _is(self) -> Condition:
        self._open("is")
        self.peek()
        start = self.position
        state = self.token()
        if state not in STATES:
            self.fail(f"one of {', '.join(STATES)}", at=start)
        self.take(")")
        return Condition.is_a(state)

    def _open(self, name: str) -> None:
        self.take("(", f"'(' after {name}")

    def _one(self, name: str, take: Callable[[], _Taken]) -> _Taken:
        self._open(name)
        taken = take()
        self.take(")")
        return taken

    def _arguments(self, name: str, take: Callable[[], _Taken]) -> list[_Taken]:
        self._open(name)
        return self.items(")", take)

    def _inner(self) -> Condition:
        """Take at least one condition, of which any has to hold, and the closing bracket."""
        conditions = [self.condition()]
        while self.more(")"):
            conditions.append(self.condition())
        return Condition.any_of(*conditions)
