"""A SELECT as DuckDB's own parser reads it: that it only reads, which tables it names, and as of when.

DuckDB gives its syntax tree as JSON, and takes one back; so nothing here reads SQL. Text is rewritten only where it says what
DuckDB has no view for: `AT (VERSION => 12)`, a table whose name has dots, or one in a namespace that DuckDB uses itself.
"""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from siltstone.errors import InvalidInputError
from siltstone.model.locators import check_tag
from siltstone.table.snapshot import Moment, parse_moment

if TYPE_CHECKING:
    import duckdb

Node: TypeAlias = dict[str, Any]

# What a query may consist of; others write: COPY and INSERT can stand in a WITH clause.
_READING = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
VIEWS = "siltstone"
"""The schema of views that cannot have the name of their table."""
RESERVED_SCHEMAS = {"information_schema", "main", "memory", "pg_catalog", VIEWS, "system", "temp"}
"""Names that mean something else where a namespace would stand, in lower case."""
_UNITS = ("VERSION => 120", "VERSION => 'release-7'", "TIMESTAMP => '2024-05-01T08:00:00Z'")


@dataclass(frozen=True)
class View:
    """What DuckDB knows a table as, at one moment: the view `name` in a schema."""

    schema: str
    name: str

    @property
    def sql(self) -> str:
        """The view as SQL names it."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def folded(self) -> tuple[str, str]:
        """What DuckDB compares names by."""
        return self.schema.lower(), self.name.lower()


def quoted(name: str) -> str:
    """Return a name as SQL has it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class TableRef:
    """A place where a statement names a table; `moment` is what its AT clause says."""

    node: Node
    moment: Moment | None = None

    @property
    def path(self) -> list[str]:
        """The parts of the name."""
        return list(self.node["qualified_name"]["path"])

    @property
    def name(self) -> str:
        """The name as one text, e.g. `shop.orders`."""
        return ".".join(self.path)

    def point_to(self, view: View) -> bool:
        """Make the statement read a view here; return whether that changed it."""
        # Names are compared as DuckDB does it.
        if self.node["at_clause"] is None and tuple(part.lower() for part in self.path) == view.folded:
            return False
        self.node.update(
            alias=self.node["alias"] or self.path[-1],
            at_clause=None,
            catalog_name="",
            schema_name=view.schema,
            table_name=view.name,
            qualified_name={"path": [view.schema, view.name]},
        )
        return True


class Statement:
    """One SELECT, and the tables that it names; names of its own WITH clauses are not among them."""

    def __init__(self, text: str, connection: "duckdb.DuckDBPyConnection") -> None:
        """Read a text. Raises: InvalidInputError, and what DuckDB raises where it is not SQL."""
        self._connection = connection
        statements = connection.extract_statements(text)
        if len(statements) != 1:
            raise InvalidInputError(f"SQL: {len(statements)} statements; give one SELECT")
        self._tree = self._parsed(text)
        if any(name not in _READING for name in _query_nodes(self._tree)):
            raise InvalidInputError(f"SQL: {_ONLY_READS}")
        own = {str(entry["key"]).lower() for node in _nodes(self._tree) for entry in _own_names(node)}
        nodes = [node for node in _nodes(self._tree) if node.get("type") == "BASE_TABLE"]
        self.tables = [
            TableRef(node, self._moment(node)) for node in nodes if not _is_own(node["qualified_name"]["path"], own)
        ]

    def text(self) -> str:
        """Return the statement as it is now."""
        return self._deparsed(self._tree)

    def _parsed(self, text: str) -> Node:
        tree = _loaded(str(self._value("SELECT json_serialize_sql(?::VARCHAR)", text)))
        if tree["error"]:
            # It parsed as SQL, and so is a statement of another kind.
            raise InvalidInputError(f"SQL: {_ONLY_READS}")
        return tree

    def _deparsed(self, tree: Node) -> str:
        return str(self._value("SELECT json_deserialize_sql(?::VARCHAR::JSON)", orjson.dumps(tree).decode()))

    def _value(self, select: str, *parameters: str) -> object:
        """Return the one value of a result, all of which is fetched: an unfinished one is in the way of the next."""
        ((value,),) = self._connection.execute(select, list(parameters)).fetchall()
        return value

    def _moment(self, node: Node) -> Moment | None:
        """Return what an AT clause says, which may be any expression without columns. Raises: InvalidInputError."""
        clause = node["at_clause"]
        if clause is None:
            return None
        asked = self._parsed("SELECT 1")
        asked["statements"][0]["node"]["select_list"] = [clause["expr"]]
        value, unit = self._value(self._deparsed(asked)), clause["unit"].upper()
        if unit == "VERSION" and isinstance(value, int) and not isinstance(value, bool):
            return value
        if unit == "VERSION" and isinstance(value, str):
            return check_tag(value)
        if unit == "TIMESTAMP" and isinstance(value, str | datetime.date):
            moment = parse_moment(value if isinstance(value, str) else value.isoformat())
            if isinstance(moment, datetime.datetime):
                return moment
        examples = " or ".join(f"AT ({example})" for example in _UNITS)
        raise InvalidInputError(
            f"SQL: AT ({unit} => {value!r}) is no position, tag or time of a table; write {examples}"
        )


_ONLY_READS = "only a SELECT is run, which reads; nothing is written, attached, installed or set"


def _loaded(text: str) -> Node:
    try:
        tree: Node = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError("SQL: the statement is nested too deeply; write it flatter") from error
    return tree


def _nodes(tree: object) -> Iterator[Node]:
    """Yield all objects in a syntax tree, in the order of the text as far as the tree has it."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))


def _query_nodes(tree: object) -> Iterator[str]:
    for node in _nodes(tree):
        name = node.get("type")
        # Expressions have a class beside their type.
        if isinstance(name, str) and name.endswith("_NODE") and "class" not in node:
            yield name


def _own_names(node: Mapping[str, Any]) -> list[Node]:
    names = node.get("cte_map")
    entries: list[Node] = names["map"] if isinstance(names, dict) else []
    return entries


def _is_own(path: list[str], own: set[str]) -> bool:
    """Return whether a name is not one of the lake's: a single word is of a WITH clause, or of DuckDB."""
    return len(path) == 1 and (path[0].lower() in own or "." not in path[0])
