"""The picture of the rooms in docs/architecture.md, drawn from the imports: `python -m dev.rooms` writes it anew."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

PROJECT = Path(__file__).parent.parent
SOURCE = PROJECT / "src" / "siltstone"
PAGE = PROJECT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by dev/rooms.py -->\n", "<!-- end of what is drawn -->\n"
# Everybody may use these; `testing` is for tests, and `__init__` only hands out names.
EVERYWHERE = frozenset({"__init__", "__version__", "actor", "clock", "errors", "java", "testing", "text"})
# Modules of one room: each hands out what another has.
JOINED = {"document_table": "lake"}

Edges = Mapping[str, frozenset[str]]


def room_of(module: str) -> str:
    """Return the room of a module, e.g. `table` of `siltstone.table.scan`."""
    name = module.split(".")[1] if "." in module else "__init__"
    return JOINED.get(name, name)


def read_edges(source: Path = SOURCE) -> Edges:
    """Return which rooms each room imports from, also inside functions and for types only."""
    edges: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        module = ".".join(["siltstone", *path.relative_to(source).with_suffix("").parts])
        room = room_of(module)
        if room in EVERYWHERE:
            continue
        used = {room_of(name) for name in _imported(ast.parse(path.read_text()))}
        edges.setdefault(room, set()).update(used - EVERYWHERE - {room})
    return {room: frozenset(used) for room, used in edges.items()}


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("siltstone."))
        elif isinstance(node, ast.ImportFrom) and node.module == "siltstone":
            yield from (f"siltstone.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("siltstone."):
            yield str(node.module)


def reduced(edges: Edges) -> Edges:
    """Leave out edges that a longer way stands for. Raises: ValueError where rooms import each other in a circle."""
    reachable: dict[str, set[str]] = {}

    def reach(room: str, way: tuple[str, ...] = ()) -> set[str]:
        if room in way:
            raise ValueError(f"rooms import each other: {' -> '.join([*way[way.index(room) :], room])}")
        if room not in reachable:
            direct = edges.get(room, frozenset())
            reachable[room] = set(direct).union(*(reach(each, (*way, room)) for each in direct))
        return reachable[room]

    return {
        room: frozenset(each for each in used if not any(each in reach(other) for other in used - {each}))
        for room, used in edges.items()
        if reach(room) is not None
    }


def draw(edges: Edges) -> str:
    """Return the picture in the language of Mermaid, which GitHub shows."""
    lines = [f"    {room} --> {used}" for room, uses in sorted(reduced(edges).items()) for used in sorted(uses)]
    return "\n".join(["```mermaid", "graph TD", *lines, "```", ""])


def picture_in(page: str) -> str:
    """Return the picture that a page has."""
    return page.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Draw the picture into the page."""
    page = PAGE.read_text()
    drawn = f"{BEGIN}{draw(read_edges())}{END}"
    PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: drawn, page, flags=re.DOTALL))


if __name__ == "__main__":
    main()
