"""The language of `--where`: comparisons of columns with literals, as Arrow expressions."""

import datetime
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import InvalidInputError
from siltstone.model.names import did_you_mean
from siltstone.model.schema import describe_type

_TRUTHS = {"true": True, "false": False}
_INTEGER = re.compile(r"[+-]?[0-9]+")


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
        return datetime.time.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        return _time(text, has_zone=kind.tz is not None)
    if pa.types.is_decimal(kind):
        return pa.scalar(text).cast(kind).as_py()
    return _refuse(text)


def _time(text: str, *, has_zone: bool) -> datetime.datetime:
    time = datetime.datetime.fromisoformat(text)
    if has_zone:
        return time.replace(tzinfo=time.tzinfo or datetime.UTC)
    return time if time.tzinfo is None else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*"|`[^`]*`)
      | (?P<operator><=|>=|!=|<>|==|=|<|>)
      | (?P<word>[^\s'"`<>=!()]+)
    )""",
    re.VERBOSE,
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}
_SYNONYMS = {"==": "=", "<>": "!="}
_FORM = "write e.g. amount >= 9.5 and status = 'paid' and note is not null"


class Condition(NamedTuple):
    """Which rows are wanted, and the columns that tell."""

    expression: pc.Expression
    columns: list[str]


class _Token(NamedTuple):
    kind: str
    text: str

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word


_END = _Token("end", "")


def parse_condition(text: str, schema: pa.Schema) -> Condition:
    """Read comparisons joined by `and`. Raises: InvalidInputError that says where it stops making sense."""
    tokens = _tokens(text)
    parts: list[Any] = []
    columns: dict[str, None] = {}
    while True:
        field = _column(tokens, schema)
        columns[field.name] = None
        parts.append(_comparison(tokens, field))
        token = _next(tokens)
        if token == _END:
            break
        if not token.is_word("and"):
            hint = "; only `and` joins comparisons" if token.is_word("or") else ""
            raise InvalidInputError(f"condition: unexpected {token.text!r}{hint}; {_FORM}")
    expression = parts[0]
    for part in parts[1:]:
        expression = expression & part
    return Condition(expression, list(columns))


def _tokens(text: str) -> list[_Token]:
    tokens = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidInputError(f"condition: cannot read {text[position:].strip()!r}; {_FORM}")
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, _unquoted(kind, match[kind])))
        position = match.end()
    if not tokens:
        raise InvalidInputError(f"condition: is empty; {_FORM}")
    return tokens[::-1]


def _unquoted(kind: str, text: str) -> str:
    if kind in ("text", "name"):
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


def _next(tokens: list[_Token]) -> _Token:
    return tokens.pop() if tokens else _END


def _column(tokens: list[_Token], schema: pa.Schema) -> "pa.Field[Any]":
    token = _next(tokens)
    if token.kind not in ("word", "name"):
        where = f"at {token.text!r}" if token.text else "at the end"
        raise InvalidInputError(f"condition: a column is missing {where}; {_FORM}")
    if token.text not in schema.names:
        raise InvalidInputError(
            f"condition: {token.text!r} is not a column; there are {', '.join(schema.names)}"
            f"{did_you_mean(token.text, schema.names)}"
        )
    return schema.field(token.text)


def _comparison(tokens: list[_Token], field: "pa.Field[Any]") -> Any:
    column = pc.field(field.name)
    token = _next(tokens)
    if token.is_word("is"):
        token = _next(tokens)
        is_negated = token.is_word("not")
        if is_negated:
            token = _next(tokens)
        if not token.is_word("null"):
            raise InvalidInputError(f"condition: after {field.name} is, only null or not null can follow; {_FORM}")
        return column.is_valid() if is_negated else column.is_null()
    operator = _SYNONYMS.get(token.text, token.text)
    if token.kind != "operator":
        found = f", not {token.text!r}" if token.text else ""
        raise InvalidInputError(
            f"condition: after {field.name} comes one of {' '.join(_COMPARE)} or is null{found}; {_FORM}"
        )
    value = _next(tokens)
    if value.kind == "operator" or value == _END:
        raise InvalidInputError(f"condition: a value is missing after {field.name} {token.text}; {_FORM}")
    if value.is_word("null"):
        raise InvalidInputError(f"condition: nothing is {operator} null; write {field.name} is null, or is not null")
    if pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_duration(field.type):
        raise InvalidInputError(f"condition: column {field.name!r} is {field.type}; only is null can be asked of it")
    return _COMPARE[operator](column, parse_literal(value.text, field))
