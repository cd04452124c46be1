"""What the documentation site needs beyond MkDocs: a navigation read from the index, files outside docs/, and diagrams."""

import posixpath
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

PROJECT = Path(__file__).parent.parent
INDEX = "README.md"
DECISIONS = "decisions"
# Files of the project that pages link to have their place in the site here, beside the pages of docs/.
OUTSIDE = "project"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_ENTRY = re.compile(r"^\| (?P<title>[^|]+?) \| \[[^]]*\]\((?P<page>[\w./-]+\.md)\) \|$")
_DIAGRAM = re.compile(r"^```mermaid\ngraph TD\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_ARROW = re.compile(r"(\w+) --> (\w+)")

Nav = list[Any]


def nav_of(index: str) -> Nav:
    """Return the navigation that an index page describes: its second-level headings, with the pages that their tables name."""
    nav: Nav = [{"Start": INDEX}]
    for line in index.splitlines():
        if line.startswith("## "):
            nav.append({line.removeprefix("## "): []})
        elif (entry := _ENTRY.match(line)) and isinstance(pages := next(iter(nav[-1].values())), list):
            page = entry["page"]
            pages.append({entry["title"]: _decisions() if page == f"{DECISIONS}/{INDEX}" else page})
    return nav


def _decisions() -> list[str]:
    pages = sorted(path.name for path in (PROJECT / "docs" / DECISIONS).glob("*.md"))
    return [f"{DECISIONS}/{page}" for page in [INDEX, *(page for page in pages if page != INDEX)]]


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Take the navigation from the index."""
    config.nav = nav_of((PROJECT / "docs" / INDEX).read_text(encoding="utf-8"))
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the files outside docs/ that pages link to, and the pages among them."""
    from mkdocs.structure.files import File, InclusionLevel

    waiting = [(posixpath.join("docs", file.src_uri), file) for file in files.documentation_pages()]
    while waiting:
        place, file = waiting.pop()
        for match in _LINK.finditer(file.content_string):
            target = _resolved(place, match[1])
            uri = site_uri(target)
            if uri.startswith(f"{OUTSIDE}/") and files.get_file_from_path(uri) is None and (PROJECT / target).is_file():
                added = File.generated(config, uri, abs_src_path=str(PROJECT / target), inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(added)
                if added.is_documentation_page():
                    waiting.append((target, added))
    return files


def site_uri(path: str) -> str:
    """Return where the site has a file of the project."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"


def _resolved(place: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Point links to where the site has their files, and draw diagrams."""
    uri = page.file.src_uri
    place = uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else f"docs/{uri}"

    def rewritten(match: re.Match[str]) -> str:
        target = site_uri(_resolved(place, match[1]))
        return posixpath.relpath(target, posixpath.dirname(uri) or ".") + (match[2] or "")

    return _DIAGRAM.sub(lambda match: draw(_ARROW.findall(match[1])), _LINK.sub(rewritten, markdown))


def draw(edges: list[tuple[str, str]]) -> str:
    """Return a graph without circles as SVG, so that no page needs a script from elsewhere to show it.

    A node is below all that lead to it; within a row, nodes are ordered by where those are.
    """
    above: dict[str, list[str]] = defaultdict(list)
    for start, end in edges:
        above[end].append(start)
        above[start] = above[start]
    rows: dict[str, int] = {}

    def row_of(node: str) -> int:
        if node not in rows:
            rows[node] = 1 + max(map(row_of, above[node]), default=-1)
        return rows[node]

    places: dict[str, float] = {}
    levels = [[node for node in above if row_of(node) == row] for row in range(1 + max(map(row_of, above)))]
    for level in levels:
        level.sort(key=lambda node: (sum(places[each] for each in above[node]) / max(len(above[node]), 1), node))
        places |= {node: 360 + 150 * (index - (len(level) - 1) / 2) for index, node in enumerate(level)}
    height = 62 * len(levels)
    lines = [
        f'<path d="M{places[start]},{62 * rows[start] + 46} C{places[start]},{62 * rows[end] - 20} '
        f'{places[end]},{62 * rows[start] + 80} {places[end]},{62 * rows[end] + 14}" marker-end="url(#tip)"/>'
        for start, end in edges
    ]
    boxes = [
        f'<g><rect x="{places[node] - 62}" y="{62 * rows[node] + 16}" width="124" height="30" rx="5"/>'
        f'<text x="{places[node]}" y="{62 * rows[node] + 36}">{node}</text></g>'
        for node in above
    ]
    tip = '<marker id="tip" orient="auto" markerWidth="7" markerHeight="7" refX="6" refY="3.5"><path d="M0,0 L7,3.5 L0,7 z"/></marker>'
    return f'<svg class="diagram" viewBox="0 0 720 {height}" role="img"><defs>{tip}</defs>{"".join([*lines, *boxes])}</svg>\n'
