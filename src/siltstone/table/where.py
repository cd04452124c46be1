"""Which rows a read wants: a filter as text or as an Arrow expression, compiled once.

The expression chooses rows exactly. The tree of the same filter rules out what need not be opened: partitions by their
values, buckets by the hashes of whole keys, row groups by their statistics. It errs on the side of opening. As in SQL, a
row for which the filter is null is not wanted; as in Arrow, NaN is neither equal to, less nor greater than any number.
"""

import datetime
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import InvalidInputError
from siltstone.model.locators import did_you_mean
from siltstone.model.schema import HOUR_24, check_known, describe_type
from siltstone.rows.files import Range, Ranges

_TRUTHS = {"true": True, "false": False}
_INTEGER = re.compile(r"[+-]?[0-9]+")
MAX_KEYS = 1000
"""So many keys at most are looked up one by one; for more, all buckets are read."""


def parse_literal(text: str, field: "pa.Field[Any]") -> "pa.Scalar[Any]":
    """Read a value as the type of a column; times without a zone are in UTC. Raises: InvalidInputError."""
    try:
        return pa.scalar(_value(text, field.type), field.type)
    except (ValueError, ArithmeticError, OverflowError, pa.ArrowException) as error:
        raise InvalidInputError(
            f"column {field.name!r}: {text!r} is not of its type, {describe_type(field.type)}"
        ) from error


def _value(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return _TRUTHS[text.lower()] if text.lower() in _TRUTHS else _refuse(text)
    if pa.types.is_integer(kind):
        return int(text) if _INTEGER.fullmatch(text) else _refuse(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(text)
    if pa.types.is_time(kind):
        return _refuse(text) if HOUR_24.search(text) else datetime.time.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        return _time(text, has_zone=kind.tz is not None)
    if pa.types.is_decimal(kind):
        return pa.scalar(text).cast(kind).as_py()
    return _refuse(text)


def _time(text: str, *, has_zone: bool) -> datetime.datetime:
    if HOUR_24.search(text):
        raise ValueError(text)
    time = datetime.datetime.fromisoformat(text)
    if has_zone:
        return time.replace(tzinfo=time.tzinfo or datetime.UTC)
    return time if time.tzinfo is None else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)


@dataclass(frozen=True)
class Comparison:
    """A column compared with a value that is not null."""

    column: str
    operator: str
    value: "pa.Scalar[Any]"


@dataclass(frozen=True)
class In:
    """A column that has one of some values, none of them null."""

    column: str
    values: tuple["pa.Scalar[Any]", ...]


@dataclass(frozen=True)
class IsNull:
    """A column that is null."""

    column: str


@dataclass(frozen=True)
class IsNan:
    """A column of floats that is not a number."""

    column: str


@dataclass(frozen=True)
class Like:
    """A column of text that matches a pattern: `%` is any text, `_` any character, a backslash takes them literally."""

    column: str
    pattern: str


@dataclass(frozen=True)
class Not:
    """The opposite of a filter; null stays null."""

    part: "Node"


@dataclass(frozen=True)
class And:
    """Several filters, all of which must be true."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Or:
    """Several filters, one of which must be true."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Opaque:
    """Some part of an Arrow expression that only Arrow evaluates: it rules out nothing."""


Node: TypeAlias = Comparison | In | IsNull | IsNan | Like | Not | And | Or | Opaque


def expression_of(node: Node) -> Any:
    """Return a filter as Arrow evaluates it; one that has an opaque part is there as an expression already."""
    match node:
        case Comparison(column, sign, value):
            return COMPARE[sign](pc.field(column), value)
        case In(name, values):
            # Null for null; and for floats one comparison each, since -0.0 equals 0.0.
            if pa.types.is_floating(values[0].type):
                return expression_of(_comparisons(node))
            column = pc.field(name)
            among = column.isin(pa.array([value.as_py() for value in values], values[0].type))
            return pc.if_else(column.is_valid(), among, pa.scalar(None, pa.bool_()))
        case IsNull(column):
            return pc.field(column).is_null()
        case IsNan(column):
            return pc.is_nan(pc.field(column))
        case Like(column, pattern):
            return pc.match_like(pc.field(column), pattern)
        case Not(part):
            return ~expression_of(part)
        case And(parts):
            return _joined([expression_of(part) for part in parts], operator.and_)
        case Or(parts):
            return _joined([expression_of(part) for part in parts], operator.or_)
    raise TypeError(node)


def _comparisons(node: In) -> Or:
    return Or(tuple(Comparison(node.column, "=", value) for value in node.values))


def _joined(parts: Sequence[Any], join: Callable[[Any, Any], Any]) -> Any:
    """Join expressions pairwise, so that many of them do not nest deeply."""
    while len(parts) > 1:
        pairs = itertools.zip_longest(parts[::2], parts[1::2])
        parts = [first if second is None else join(first, second) for first, second in pairs]
    return parts[0]


class Possible(NamedTuple):
    """Whether a filter may be true, and whether it may be false, for any of some rows."""

    true: bool
    false: bool


_UNKNOWN = Possible(True, True)


def _possible(node: Node, ranges: Ranges) -> Possible:
    """Return what a filter may be for rows whose values are in ranges."""
    match node:
        case Comparison():
            return _possible_comparison(node, ranges(node.column))
        case In():
            return _possible(_comparisons(node), ranges)
        case IsNull(column):
            return Possible(ranges(column).may_be_null, ranges(column).may_be_valid)
        case IsNan(column):
            # Statistics say nothing of NaN.
            return Possible(ranges(column).may_be_valid, ranges(column).may_be_valid)
        case Like(column, pattern):
            return _possible_like(pattern, ranges(column))
        case Not(part):
            true, false = _possible(part, ranges)
            return Possible(false, true)
        case And(parts):
            possible = [_possible(part, ranges) for part in parts]
            return Possible(all(part.true for part in possible), any(part.false for part in possible))
        case Or(parts):
            possible = [_possible(part, ranges) for part in parts]
            return Possible(any(part.true for part in possible), all(part.false for part in possible))
    return _UNKNOWN


def _possible_comparison(node: Comparison, values: Range) -> Possible:
    value, least, greatest = node.value.as_py(), values.least, values.greatest
    if not values.may_be_valid:
        return Possible(False, False)
    if least is None or greatest is None or least != least or greatest != greatest or value != value:
        return _UNKNOWN
    try:
        true, false = _AGAINST_RANGE[node.operator](least, greatest, value)
    except TypeError:
        # Values of another kind than the statistics', e.g. with a time zone and without, rule out nothing.
        return _UNKNOWN
    if pa.types.is_floating(node.value.type):
        # NaN is left out of statistics: it is unequal to everything, and all else is false of it.
        return Possible(true or node.operator == "!=", false or node.operator != "!=")
    return Possible(true, false)


def _possible_like(pattern: str, values: Range) -> Possible:
    if not values.may_be_valid:
        return Possible(False, False)
    prefix = re.split(r"[%_\\]", pattern, maxsplit=1)[0]
    if not isinstance(values.least, str) or not isinstance(values.greatest, str):
        return _UNKNOWN
    return Possible(values.least[: len(prefix)] <= prefix <= values.greatest[: len(prefix)], True)


def _candidates(node: Node, column: str) -> frozenset[Any] | None:
    """Return the values that a column can have where a filter is true, None where it can have any."""
    match node:
        case Comparison(name, "=", value) if name == column:
            return frozenset([value.as_py()])
        case In(name, values) if name == column:
            return frozenset(value.as_py() for value in values)
        case IsNull(name) if name == column:
            return frozenset([None])
        case IsNan(name) if name == column:
            return frozenset([math.nan])
        case And(parts) | Or(parts):
            limits = [limit for part in parts if (limit := _candidates(part, column)) is not None]
            if isinstance(node, And):
                return min(limits, key=len, default=None)
            return frozenset().union(*limits) if len(limits) == len(parts) else None
    return None


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_AGAINST_RANGE: dict[str, Callable[[Any, Any, Any], tuple[bool, bool]]] = {
    "=": lambda least, greatest, value: (least <= value <= greatest, not least == value == greatest),
    "!=": lambda least, greatest, value: (not least == value == greatest, least <= value <= greatest),
    "<": lambda least, greatest, value: (least < value, greatest >= value),
    "<=": lambda least, greatest, value: (least <= value, greatest > value),
    ">": lambda least, greatest, value: (greatest > value, least <= value),
    ">=": lambda least, greatest, value: (greatest >= value, least < value),
}


@dataclass(frozen=True)
class Condition:
    """A compiled filter: the Arrow expression that chooses rows, the columns it needs, and a tree to rule out rows by.

    All names are those that the table has. It can be pickled.
    """

    expression: pc.Expression
    columns: tuple[str, ...]
    tree: Node

    def may_match(self, ranges: Ranges) -> bool:
        """Return whether rows whose values are in ranges may be wanted; no is certain, yes is not."""
        return _possible(self.tree, ranges).true

    def keys(self, names: Sequence[str], schema: pa.Schema) -> pa.Table | None:
        """Return all keys that wanted rows can have, by the names of a key's columns; None where they are too many."""
        choices = [values for name in names if (values := _candidates(self.tree, name)) is not None]
        if not names or len(choices) < len(names) or math.prod(map(len, choices)) > MAX_KEYS:
            return None
        rows = list(itertools.product(*choices))
        return pa.table(
            [
                # A float column may be compared with a number that it cannot hold.
                pa.array([row[place] for row in rows], pa.float64() if pa.types.is_floating(kind) else kind)
                for place, kind in enumerate(schema.field(name).type for name in names)
            ],
            names=list(names),
        )


def compile_where(where: "str | pc.Expression | Condition", schema: pa.Schema) -> Condition:
    """Compile a filter for a table's columns. Raises: InvalidInputError."""
    if isinstance(where, Condition):
        check_known(where.columns, schema, "condition: column")
        return where
    if isinstance(where, str):
        return parse_condition(where, schema)
    if isinstance(where, pc.Expression):
        return _from_expression(where, schema)
    raise InvalidInputError(f'where is {where!r}; give text, e.g. "amount > 9", or an Arrow expression')


def condition_of(tree: Node, columns: Iterable[str]) -> Condition:
    """Return the condition that a tree stands for."""
    return Condition(expression_of(tree), tuple(dict.fromkeys(columns)), tree)


def key_condition(key: Mapping[str, "pa.Scalar[Any]"]) -> Condition:
    """Return the condition that a row has a key, in which null equals null, and NaN equals NaN."""
    parts: list[Node] = []
    for column, value in key.items():
        if not value.is_valid:
            parts.append(IsNull(column))
        elif value.as_py() != value.as_py():
            parts.append(IsNan(column))
        else:
            parts.append(Comparison(column, "=", value))
    return condition_of(And(tuple(parts)), key)


def both(one: Condition | None, other: Condition | None) -> Condition | None:
    """Return the condition that two conditions hold, None where there is none."""
    if one is None or other is None:
        return one or other
    expression: Any = one.expression
    columns = tuple(dict.fromkeys([*one.columns, *other.columns]))
    return Condition(expression & other.expression, columns, And((one.tree, other.tree)))


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<hex>[xX]'[^']*')
      | (?P<text>'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*"|`[^`]*`)
      | (?P<operator><=|>=|!=|<>|==|=|<|>)
      | (?P<mark>[(),])
      | (?P<word>[^\s'"`<>=!(),]+)
    )""",
    re.VERBOSE,
)
_SYNONYMS = {"==": "=", "<>": "!="}
_FORM = "write e.g. amount >= 9.5 and (status in ('paid', 'sent') or note is not null)"
_MAX_NESTING = 100


class _Token(NamedTuple):
    kind: str
    text: str
    place: int

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word

    def is_mark(self, mark: str) -> bool:
        return self.kind == "mark" and self.text == mark

    @property
    def where(self) -> str:
        return "at the end" if self.kind == "end" else f"at {self.text!r} (character {self.place + 1})"


def parse_condition(text: str, schema: pa.Schema) -> Condition:
    """Read a filter in words. Raises: InvalidInputError that says where it stops making sense."""
    parser = _Parser(_tokens(text), schema)
    tree = parser.read_or(0)
    rest = parser.take()
    if rest.kind != "end":
        raise InvalidInputError(f"condition: unexpected {rest.text!r} at character {rest.place + 1}; {_FORM}")
    return condition_of(tree, parser.columns)


def _tokens(text: str) -> list[_Token]:
    tokens = []
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            rest = text[place:].strip()
            raise InvalidInputError(
                f"condition: cannot read {rest!r} from character {len(text) - len(rest) + 1} on; {_FORM}"
            )
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, _unquoted(kind, match[kind]), match.start(kind)))
        place = match.end()
    if not tokens:
        raise InvalidInputError(f"condition: is empty; {_FORM}")
    return [*tokens, _Token("end", "", len(text))]


def _unquoted(kind: str, text: str) -> str:
    if kind in ("text", "name"):
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


class _Parser:
    """Reads tokens from left to right; `or` binds less than `and`, `and` less than `not`."""

    def __init__(self, tokens: Sequence[_Token], schema: pa.Schema) -> None:
        self._tokens = list(reversed(tokens))
        self._schema = schema
        self.columns: dict[str, None] = {}

    def take(self) -> _Token:
        return self._tokens.pop() if len(self._tokens) > 1 else self._tokens[0]

    def _takes(self, is_wanted: Callable[[_Token], bool]) -> bool:
        return is_wanted(self._tokens[-1]) and bool(self.take())

    def _takes_word(self, word: str) -> bool:
        return self._takes(lambda token: token.is_word(word))

    def read_or(self, depth: int) -> Node:
        if depth > _MAX_NESTING:
            raise InvalidInputError(f"condition: is nested more than {_MAX_NESTING} levels deep; write it flatter")
        parts = [self._read_and(depth)]
        while self._takes_word("or"):
            parts.append(self._read_and(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _read_and(self, depth: int) -> Node:
        parts = [self._read_not(depth)]
        while self._takes_word("and"):
            parts.append(self._read_not(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _read_not(self, depth: int) -> Node:
        is_negated = False
        while self._takes_word("not"):
            is_negated = not is_negated
        if self._takes(lambda token: token.is_mark("(")):
            inner = self.read_or(depth + 1)
            self._expect(")", "to close the parenthesis")
        else:
            inner = self._read_comparison()
        return Not(inner) if is_negated else inner

    def _expect(self, mark: str, why: str) -> None:
        token = self.take()
        if not token.is_mark(mark):
            raise InvalidInputError(f"condition: a {mark!r} is missing {token.where}, {why}; {_FORM}")

    def _read_column(self) -> "pa.Field[Any]":
        token = self.take()
        if token.kind not in ("word", "name"):
            raise InvalidInputError(f"condition: a column is missing {token.where}; {_FORM}")
        if token.text not in self._schema.names:
            raise InvalidInputError(
                f"condition: {token.text!r} is not a column; there are {', '.join(self._schema.names)}"
                f"{did_you_mean(token.text, self._schema.names)}"
            )
        self.columns[token.text] = None
        return self._schema.field(token.text)

    def _read_comparison(self) -> Node:
        field = self._read_column()
        token = self.take()
        if token.is_word("is"):
            return self._read_is(field)
        if token.kind == "operator":
            sign = _SYNONYMS.get(token.text, token.text)
            return Comparison(field.name, sign, self._read_value(field, token.text))
        is_negated = token.is_word("not")
        if is_negated:
            token = self.take()
        node: Node
        if token.is_word("in"):
            node = self._read_in(field)
        elif token.is_word("between"):
            node = self._read_between(field)
        elif token.is_word("like"):
            node = self._read_like(field)
        else:
            found = f", not {token.text!r}" if token.text else ""
            raise InvalidInputError(
                f"condition: after {field.name} comes one of {' '.join(COMPARE)} in between like or is null{found}, "
                f"{token.where}; {_FORM}"
            )
        return Not(node) if is_negated else node

    def _read_is(self, field: "pa.Field[Any]") -> Node:
        is_negated = self._takes_word("not")
        token = self.take()
        node: Node
        if token.is_word("null"):
            node = IsNull(field.name)
        elif token.is_word("nan") and pa.types.is_floating(field.type):
            node = IsNan(field.name)
        else:
            raise InvalidInputError(
                f"condition: after {field.name} is, only null or not null can follow, {token.where}; {_FORM}"
            )
        return Not(node) if is_negated else node

    def _read_in(self, field: "pa.Field[Any]") -> In:
        self._expect("(", f"after {field.name} in")
        values = [self._read_value(field, "in (")]
        while self._takes(lambda token: token.is_mark(",")):
            values.append(self._read_value(field, ","))
        self._expect(")", f"after the values of {field.name} in")
        return In(field.name, tuple(values))

    def _read_between(self, field: "pa.Field[Any]") -> And:
        least = self._read_value(field, "between")
        token = self.take()
        if not token.is_word("and"):
            raise InvalidInputError(
                f"condition: `and` is missing {token.where}, for {field.name} between … and …; {_FORM}"
            )
        greatest = self._read_value(field, "and")
        return And((Comparison(field.name, ">=", least), Comparison(field.name, "<=", greatest)))

    def _read_like(self, field: "pa.Field[Any]") -> Like:
        if not pa.types.is_string(field.type):
            raise InvalidInputError(
                f"condition: column {field.name!r} is {describe_type(field.type)}; like is for text only"
            )
        pattern = str(self._read_value(field, "like").as_py())
        if re.search(r"(?<!\\)(?:\\\\)*\\(?![%_\\])", pattern):
            raise InvalidInputError(f"condition: in {pattern!r}, a backslash comes before %, _ or another one only")
        return Like(field.name, pattern)

    def _read_value(self, field: "pa.Field[Any]", after: str) -> "pa.Scalar[Any]":
        token = self.take()
        if token.kind not in ("word", "text", "hex", "name"):
            raise InvalidInputError(f"condition: a value is missing after {field.name} {after}, {token.where}; {_FORM}")
        kind = field.type
        if token.is_word("null"):
            raise InvalidInputError(
                f"condition: nothing is {after} null, {token.where}; write {field.name} is null, or is not null"
            )
        if pa.types.is_binary(kind) and token.kind == "hex":
            try:
                return pa.scalar(bytes.fromhex(token.text[2:-1]), kind)
            except ValueError as error:
                raise InvalidInputError(f"condition: {token.text} is not hexadecimal, {token.where}") from error
        if token.kind == "hex":
            raise InvalidInputError(
                f"condition: column {field.name!r} is {describe_type(kind)}, not bytes as {token.text}, {token.where}"
            )
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_duration(kind):
            hint = ", or bytes as X'00ff'" if pa.types.is_binary(kind) else ""
            raise InvalidInputError(
                f"condition: column {field.name!r} is {kind}; only is null can be asked of it{hint}"
            )
        value = parse_literal(token.text, field)
        if pa.types.is_floating(kind) and math.isnan(value.as_py()):
            raise InvalidInputError(f"condition: nothing is {after} NaN; write {field.name} is nan, or is not nan")
        return value


class _Steps(NamedTuple):
    """An Arrow expression as Arrow stores it: what it is made of, depth first, and its literals and options."""

    steps: list[tuple[str, str]]
    values: list["pa.Scalar[Any]"]


_ARROW_COMPARISONS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_STEP = re.compile(r"(call|end|field_ref|nested_field_ref|literal|options): '(.*)'")


def _from_expression(expression: pc.Expression, schema: pa.Schema) -> Condition:
    try:
        stored = pa.ipc.open_file(expression.__reduce__()[1][0])
    except pa.ArrowNotImplementedError as error:
        raise InvalidInputError(
            f'where: {expression} names a column by its place, which may change; use pc.field("name")'
        ) from error
    steps = _steps(stored.schema)
    columns = tuple(dict.fromkeys(text for kind, text in steps if kind in ("field_ref", "nested_field_ref")))
    check_known(columns, schema, "where: column")
    try:
        schema.empty_table().filter(expression)
    except pa.ArrowException as error:
        raise InvalidInputError(f"where: {expression} cannot be evaluated on the table's columns ({error})") from error
    batch = stored.get_batch(0) if stored.num_record_batches else None
    values = [] if batch is None else [column[0] for column in batch.columns]
    # Without any column, there would be no rows to choose from.
    return Condition(expression, columns or tuple(schema.names[:1]), _tree(_Steps(steps[::-1], values), schema))


def _steps(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return what an expression is made of, which Arrow stores as metadata; a field of a struct is its column."""
    lines = schema.to_string(show_field_metadata=False, truncate_metadata=False).splitlines()
    found = iter([(match[1], match[2]) for match in map(_STEP.fullmatch, lines) if match is not None])
    steps = []
    for kind, text in found:
        if kind == "nested_field_ref":
            path = [name for _, name in itertools.islice(found, int(text))]
            steps.append((kind, path[0]))
        else:
            steps.append((kind, text))
    return steps


def _tree(stored: _Steps, schema: pa.Schema) -> Node:
    node = _read_stored(stored, schema)
    return node if isinstance(node, Node) else Opaque()


class _Column(NamedTuple):
    field: "pa.Field[Any]"


def _read_stored(stored: _Steps, schema: pa.Schema) -> "Node | _Column | pa.Scalar[Any]":
    """Take the next part of a stored expression: a filter, a column or a literal."""
    if not stored.steps:
        return Opaque()
    kind, text = stored.steps.pop()
    if kind == "nested_field_ref":
        return Opaque()
    if kind == "field_ref":
        return _Column(schema.field(text))
    if kind == "literal":
        return stored.values[int(text)]
    parts: list[Any] = []
    options: dict[str, Any] = {}
    while stored.steps and stored.steps[-1][0] != "end":
        if stored.steps[-1][0] == "options":
            options = stored.values[int(stored.steps.pop()[1])].as_py()
        else:
            parts.append(_read_stored(stored, schema))
    if stored.steps:
        stored.steps.pop()
    return _call(text, parts, options)


def _call(name: str, parts: Sequence[Any], options: Mapping[str, Any]) -> Node:
    nodes = tuple(part if isinstance(part, Node) else Opaque() for part in parts)
    if name in ("and_kleene", "and"):
        return And(nodes)
    if name in ("or_kleene", "or"):
        return Or(nodes)
    if name == "invert":
        return Not(nodes[0])
    if name == "if_else" and len(parts) == 3 and isinstance(parts[2], pa.Scalar) and not parts[2].is_valid:
        # True where both are; that it is null and not false elsewhere rules out nothing more.
        return And(nodes[:2])
    if name in _ARROW_COMPARISONS and len(parts) == 2:
        sign, (left, right) = _ARROW_COMPARISONS[name], parts
        if isinstance(left, _Column) and isinstance(right, pa.Scalar):
            return _compared(left.field, sign, right)
        if isinstance(right, _Column) and isinstance(left, pa.Scalar):
            return _compared(right.field, _MIRRORED[sign], left)
    if len(parts) == 1 and isinstance(parts[0], _Column):
        return _asked(name, parts[0].field, options)
    return Opaque()


def _asked(name: str, field: "pa.Field[Any]", options: Mapping[str, Any]) -> Node:
    if name == "is_null" and not options.get("nan_is_null"):
        return IsNull(field.name)
    if name == "is_valid":
        return Not(IsNull(field.name))
    if name == "is_in" and not pa.types.is_floating(field.type) and options.get("null_matching_behavior") == 0:
        values = options["value_set"]
        parts = [_compared(field, "=", pa.scalar(value)) for value in values if value is not None]
        known = tuple(part.value for part in parts if isinstance(part, Comparison))
        if len(known) == len(parts):
            # For a null this is true or false, never null.
            is_null = IsNull(field.name)
            return (
                Or((is_null, In(field.name, known))) if None in values else And((Not(is_null), In(field.name, known)))
            )
    return Opaque()


def _compared(field: "pa.Field[Any]", sign: str, value: "pa.Scalar[Any]") -> Node:
    """Return a comparison where Arrow compares the values as they are; it may also convert both to a third type."""
    if not value.is_valid:
        return Opaque()
    if pa.types.is_floating(field.type) and pa.types.is_integer(value.type) and abs(value.as_py()) <= 1 << 24:
        value = value.cast(pa.float64())
    if not _is_same_family(value.type, field.type):
        return Opaque()
    try:
        typed = value if pa.types.is_floating(field.type) else value.cast(field.type)
    except pa.ArrowException:
        return Opaque()
    return Comparison(field.name, sign, typed)


_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_time,
    pa.types.is_decimal,
)


def _is_same_family(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return (one.tz is None) == (other.tz is None)
    return any(family(one) and family(other) for family in _FAMILIES)
