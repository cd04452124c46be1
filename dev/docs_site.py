"""The documentation site: `python -m dev.docs_site` builds it from docs/ into site/, strictly, and checks every link in it.

Pages are staged in build/docs, so that files outside docs/ which pages link to are part of the site, the navigation is that of
the index, and diagrams are pictures that need no script from elsewhere. Then Zensical builds what is staged.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

PROJECT = Path(__file__).parent.parent
INDEX = "README.md"
DECISIONS = "decisions"
# Files of the project that pages link to have their place in the site here, beside the pages of docs/.
OUTSIDE = "project"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^\| \[(?P<title>[^]]+)\]\((?P<page>[\w./-]+\.md)\) \|")
# A list right after a line of text: a list on GitHub, and text for Python's Markdown.
_LIST = re.compile(r"^((?![-*] |[|#>]|\d+\. )\S.*\n)(?=- |1\. )", re.MULTILINE)
_DIAGRAM = re.compile(r"^```mermaid\ngraph TD\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_ARROW = re.compile(r"(\w+) --> (\w+)")
_ROW_PIXELS, _GAP_PIXELS, _BOX = 62, 26, (124, 30)

Nav = list[dict[str, object]]


def build(target: Path = PROJECT / "site", staged: Path = PROJECT / "build" / "docs") -> None:
    """Build the site. Raises: SystemExit, with what is wrong, where a page or a link is."""
    shutil.rmtree(staged, ignore_errors=True)
    stage(staged)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(staged / "mkdocs.yml")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    shutil.rmtree(target, ignore_errors=True)
    (staged / "site").rename(target)
    problems = list(broken_links(target))
    if problems:
        raise SystemExit("\n".join(problems))


def stage(staged: Path) -> None:
    """Write all pages, the files that they link to, and the configuration to a folder."""
    for path in sorted((PROJECT / "docs").rglob("*")):
        if path.is_file():
            _stage_file(path.relative_to(PROJECT).as_posix(), staged / "docs")
    nav = nav_of((PROJECT / "docs" / INDEX).read_text(encoding="utf-8"))
    config = (PROJECT / "mkdocs.yml").read_text(encoding="utf-8").replace("paths: [src]", f"paths: [{PROJECT / 'src'}]")
    # Appended as text: the configuration has a tag for a Python object, which a safe loader would refuse.
    added = yaml.safe_dump({"nav": nav}, sort_keys=False, allow_unicode=True)
    (staged / "mkdocs.yml").write_text(config + added, encoding="utf-8")


def _stage_file(path: str, staged: Path) -> None:
    """Write a file of the project to its place, and what it links to, if that is outside of docs/."""
    place = staged / site_path(path)
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith(f"/{INDEX}") and not (PROJECT / path).is_file():
        place.write_text(_listing(path, staged), encoding="utf-8")
        return
    if not path.endswith(".md"):
        shutil.copyfile(PROJECT / path, place)
        return
    text = (PROJECT / path).read_text(encoding="utf-8")
    place.write_text(_with_lists(_with_diagrams(_with_links(text, path))), encoding="utf-8")
    for link, _ in _LINK.findall(_CODE.sub("", text)):
        target = _resolved(path, link)
        if not target.startswith("docs/") and (PROJECT / target).parent.is_dir():
            _stage_file(target, staged)


def _listing(path: str, staged: Path) -> str:
    """Return a page that leads to all files of a folder."""
    folder = PROJECT / posixpath.dirname(path)
    files = sorted(each for each in folder.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    for file in files:
        _stage_file(file.relative_to(PROJECT).as_posix(), staged)
    names = [file.relative_to(folder).as_posix() for file in files]
    return "\n".join([f"# {folder.name}/", "", *(f"- [{name}]({name})" for name in names), ""])


def site_path(path: str) -> str:
    """Return where the site has a file of the project."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{OUTSIDE}/{path}"


def _with_links(text: str, path: str) -> str:
    def rewritten(match: re.Match[str]) -> str:
        target = _resolved(path, match[1])
        here = posixpath.dirname(site_path(path)) or "."
        return posixpath.relpath(site_path(target), here) + (match[2] or "")

    kept = iter(_CODE.findall(text))
    parts = [_LINK.sub(rewritten, part) for part in _CODE.split(text)]
    return parts[0] + "".join(code + part for code, part in zip(kept, parts[1:], strict=True))


def _with_lists(text: str) -> str:
    """Put a blank line before each list that has none."""
    blocks = _BLOCK.split(text)
    return "".join(block if index % 2 else _LIST.sub(r"\1\n", block) for index, block in enumerate(blocks))


def _resolved(path: str, link: str) -> str:
    """Return the file of the project that a link in a page leads to; of a folder, the page that lists its files."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{target}/{INDEX}" if (PROJECT / target).is_dir() else target


def nav_of(index: str) -> Nav:
    """Return the navigation that an index page describes: its second-level headings, with the pages that their tables name."""
    nav: Nav = [{"Start": INDEX}]
    pages: list[dict[str, object]] = []
    for line in index.splitlines():
        if line.startswith("## "):
            pages = []
            nav.append({line.removeprefix("## "): pages})
        elif entry := _ENTRY.match(line):
            page = entry["page"]
            pages.append({entry["title"]: _decisions() if page == f"{DECISIONS}/{INDEX}" else page})
    return nav


def _decisions() -> list[str]:
    pages = sorted(path.name for path in (PROJECT / "docs" / DECISIONS).glob("0*.md"))
    return [f"{DECISIONS}/{page}" for page in [INDEX, *pages]]


def _with_diagrams(text: str) -> str:
    return _DIAGRAM.sub(lambda match: draw(_ARROW.findall(match[1])), text)


def draw(edges: list[tuple[str, str]]) -> str:
    """Return a graph without circles as SVG. A node is below all that lead to it, and near them.

    A long edge has a place of its own in each row that it crosses, so that it leads past the nodes there.
    """
    above: dict[str, list[str]] = defaultdict(list)
    for start, end in edges:
        above[end].append(start)
        above.setdefault(start, [])
    rows: dict[str, int] = {}

    def row_of(node: str) -> int:
        if node not in rows:
            rows[node] = 1 + max(map(row_of, above[node]), default=-1)
        return rows[node]

    levels: list[list[str]] = [[] for _ in range(1 + max(map(row_of, above)))]
    for node, row in sorted(rows.items()):
        levels[row].append(node)
    ways = [
        [start, *(f"{start} {end} {row}" for row in range(rows[start] + 1, rows[end])), end] for start, end in edges
    ]
    before: dict[str, list[str]] = defaultdict(list)
    for way in ways:
        for row, step in enumerate(way[1:-1], rows[way[0]] + 1):
            levels[row].append(step)
        for upper, lower in pairwise(way):
            before[lower].append(upper)

    def width_of(step: str) -> int:
        return _BOX[0] + _GAP_PIXELS if step in rows else _GAP_PIXELS

    width = max(sum(map(width_of, level)) for level in levels)
    places: dict[str, float] = {}
    for level in levels:
        level.sort(key=lambda step: sum(places[each] for each in before[step]) / max(len(before[step]), 1))
        left = (width - sum(map(width_of, level))) / 2
        for step in level:
            places[step] = left + width_of(step) / 2
            left += width_of(step)
    lines = [_line([places[step] for step in way], rows[way[0]]) for way in ways]
    boxes = [
        f'<rect x="{places[node] - _BOX[0] / 2:g}" y="{_ROW_PIXELS * row}" width="{_BOX[0]}" height="{_BOX[1]}" rx="5"/>'
        f'<text x="{places[node]:g}" y="{_ROW_PIXELS * row + 20}">{node}</text>'
        for node, row in rows.items()
    ]
    tip = (
        '<marker id="tip" orient="auto" markerWidth="8" markerHeight="8" refX="7" refY="4">'
        '<path d="M0,1 L7,4 L0,7 z"/></marker>'
    )
    height = _ROW_PIXELS * len(levels)
    content = "".join([f"<defs>{tip}</defs>", *lines, *boxes])
    size = f'viewBox="-2 -2 {width + 4} {height}" width="{width + 4}" height="{height}"'
    return f'<svg class="diagram" {size} role="img">{content}</svg>\n'


def _line(places: list[float], row: int) -> str:
    """Return a line from the lower edge of a box, past those in between, to the upper edge of another."""
    x, y = places[0], _ROW_PIXELS * row + _BOX[1]
    path = [f"M{x:g},{y}"]
    for number, place in enumerate(places[1:], row + 1):
        is_last = number == row + len(places) - 1
        top, middle = _ROW_PIXELS * number - is_last, (y + _ROW_PIXELS * number) / 2
        path.append(f"C{x:g},{middle:g} {place:g},{middle:g} {place:g},{top}")
        x, y = place, top + _BOX[1]
        path += [] if is_last else [f"L{x:g},{y}"]
    return f'<path d="{" ".join(path)}" marker-end="url(#tip)"/>'


class _Page(HTMLParser):
    """The links and anchors of a page, and what it loads from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        found = [value for name in ("href", "src") if (value := values.get(name))]
        (self.links if tag == "a" else self.loaded).extend(found)


def broken_links(site: Path) -> Iterator[str]:
    """Yield what is wrong with the links of a built site: files and anchors that are not there, and what comes from elsewhere."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        # The page for addresses that lead nowhere is shown at any address, so its own links are from the root.
        base = site if path.name == "404.html" else path.parent
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and not link.startswith("data:"):
                    yield f"{name}: it loads {link}"
                continue
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name}: {link} leads to no file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {link} leads to no heading"


if __name__ == "__main__":
    build()
    sys.stdout.write(f"{PROJECT / 'site' / 'index.html'}\n")
