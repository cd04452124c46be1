"""What is staged for the documentation site: its navigation, links, lists and diagrams."""

import re
from pathlib import Path

import yaml
from dev import docs_site


def test_the_navigation_is_the_index_page() -> None:
    index = "# Title\n\n## How-to\n\n| task | page |\n|---|---|\n| [Do it](it.md) | and how |\n\nText.\n\n## Reference\n\n| [a](c/d.md) | |\n"
    assert docs_site.nav_of(index) == [
        {"Start": "README.md"},
        {"How-to": [{"Do it": "it.md"}]},
        {"Reference": [{"a": "c/d.md"}]},
    ]


def test_the_real_index_has_four_parts_and_leads_to_all_pages(tmp_path: Path) -> None:
    docs_site.stage(tmp_path)
    text = (tmp_path / "mkdocs.yml").read_text()
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    assert [next(iter(part)) for part in nav] == ["Start", "Tutorial", "How-to", "Reference", "Explanation"]
    named = set(re.findall(r"[\w./-]+\.md", str(nav)))
    staged = {path.relative_to(tmp_path / "docs").as_posix() for path in (tmp_path / "docs").rglob("*.md")}
    assert {page for page in staged if not page.startswith("project/")} == named


def test_a_page_links_to_files_outside_of_docs_where_the_site_has_them(tmp_path: Path) -> None:
    docs_site.stage(tmp_path)
    page = (tmp_path / "docs" / "cdc.md").read_text()
    assert "](project/examples/postgres_cdc.py)" in page
    assert (tmp_path / "docs/project/examples/postgres_cdc.py").is_file()
    readme = (tmp_path / "docs/project/README.md").read_text()
    assert "](../cdc.md)" in readme
    assert "](benchmarks/results/compaction.png)" in readme
    folder = (tmp_path / "docs/deploy.md").read_text()
    assert "](project/deploy/README.md)" in folder
    assert "](Dockerfile)" in (tmp_path / "docs/project/deploy/README.md").read_text()


def test_links_in_code_stay_as_they_are(tmp_path: Path) -> None:
    page = "[a](../README.md) `[b](../README.md)`\n```text\n[c](../README.md)\n```\n"
    assert docs_site._with_links(page, "docs/cdc.md") == page.replace("[a](..", "[a](project")


def test_lists_after_text_get_the_blank_line_that_python_s_markdown_wants() -> None:
    page = "**So:**\n- a\n  more\n- b\n\n| t |\n|---|\n\n```text\nx\n- y\n```\n1. z\n"
    assert docs_site._with_lists(page) == page.replace("**So:**\n", "**So:**\n\n")


def test_a_diagram_has_each_node_once_below_what_leads_to_it() -> None:
    drawn = docs_site.draw([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")])
    rows = {name: int(y) for y, name in re.findall(r'<text x="[\d.]+" y="(\d+)">(\w)</text>', drawn)}
    assert sorted(rows) == ["a", "b", "c", "d"]
    assert rows["a"] < rows["b"] == rows["c"] < rows["d"]
    assert drawn.count("marker-end") == 5
