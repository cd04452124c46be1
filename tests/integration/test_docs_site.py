"""The documentation builds strictly, every link in it leads somewhere, and no page loads anything from elsewhere."""

import json
from pathlib import Path

import pytest
from dev import docs_site

import siltstone

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    docs_site.build(folder / "site", folder / "staged")
    return folder / "site"


def test_the_site_has_every_page_and_no_broken_link(site: Path) -> None:
    pages = {path.relative_to(docs_site.PROJECT / "docs") for path in (docs_site.PROJECT / "docs").rglob("*.md")}
    for page in pages:
        built = site / page.parent / ("index.html" if page.name == "README.md" else f"{page.stem}.html")
        assert built.is_file(), page
    assert list(docs_site.broken_links(site)) == []


def test_the_navigation_of_every_page_has_the_four_parts(site: Path) -> None:
    page = (site / "formats.html").read_text(encoding="utf-8")
    for part in ("Tutorial", "How-to", "Reference", "Explanation"):
        assert f"{part}\n" in page or f">{part}<" in page, part


def test_the_python_api_is_generated_with_every_public_name(site: Path) -> None:
    page = (site / "python.html").read_text(encoding="utf-8")
    for name in siltstone.__all__:
        assert name == "__version__" or f'.{name}"' in page, name
    assert 'id="siltstone.lake.Table.compact"' in page
    assert 'id="siltstone.lake.Table._asked"' not in page


def test_the_search_finds_words_of_the_pages(site: Path) -> None:
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    assert "SILTPKI2" in json.dumps(index)


def test_a_link_that_leads_nowhere_is_found(site: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<h1 id="here"></h1><a href="#here"></a><a href="#gone"></a><a href="gone.html"></a><a href="https://elsewhere"></a>'
        '<script src="https://elsewhere/a.js"></script><img src="gone.png">'
    )
    assert list(docs_site.broken_links(tmp_path)) == [
        "page.html: #gone leads to no heading",
        "page.html: gone.html leads to no file",
        "page.html: it loads https://elsewhere/a.js",
        "page.html: gone.png leads to no file",
    ]
