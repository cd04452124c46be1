"""Pages name what exists: files, headings, targets of make, public names and format versions. Their commands are run in tests/unit/cli."""

import json
import re
from pathlib import Path

import pytest

import siltstone
from siltstone.log import state
from siltstone.model import rounds
from siltstone.rows import index
from siltstone.service import schema

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text()


def test_every_make_target_and_file_that_is_named_exists() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z0-9-]+)`?", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (PROJECT / link).exists(), link


@pytest.mark.parametrize("page", sorted((PROJECT / "docs").glob("**/*.md")), ids=lambda page: page.name)
def test_links_of_pages_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in anchors, link


def test_every_page_is_in_the_index() -> None:
    index = (PROJECT / "docs/README.md").read_text()
    for page in (PROJECT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name}" in index, page.name


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 200


def test_every_decision_is_in_the_index_of_decisions() -> None:
    folder = PROJECT / "docs" / "decisions"
    listed = re.findall(r"\]\((.*?)\)", (folder / "README.md").read_text())
    assert listed == sorted(page.name for page in folder.glob("0*.md"))


def test_every_public_name_is_on_the_page_of_the_python_api() -> None:
    page = (PROJECT / "docs/python.md").read_text()
    described = set(re.findall(r"^::: siltstone\.(?:\w+\.)*(\w+)$", page, re.MULTILINE))
    errors = {name for name in siltstone.__all__ if name.endswith("Error")}
    assert described == {*siltstone.__all__, "errors"} - errors - {"__version__"}


def test_the_page_of_formats_has_the_versions_that_are_written() -> None:
    page = (PROJECT / "docs/formats.md").read_text()
    stated = dict(re.findall(r"^\| ([a-z' ]+) \| (\d+) \| .*\|$", page, re.MULTILINE))
    assert stated == {
        "log batches and checkpoints": str(state.VERSION),
        "round completions": str(rounds.FORMAT_VERSION),
        "key indices": index.MAGIC.decode()[-1],
        "tags": "1",
        "the service's database": str(schema.SCHEMA_VERSION),
    }


def test_the_page_of_formats_names_every_field_of_a_batch_head_and_a_delta(tmp_path: Path) -> None:
    page = (PROJECT / "docs/formats.md").read_text()
    table = siltstone.open(tmp_path).create_table(
        "shop.orders", schema={"order_id": "int64"}, primary_keys=["order_id"]
    )
    table.write([{"order_id": 1}], idempotency=("nightly", 1))
    (batch,) = tmp_path.glob("tables/shop/orders/*/log/1")
    version, head, *entries = batch.read_text().splitlines()
    assert version == f"v{state.VERSION}"
    for field in json.loads(head):
        assert f"`{field}`" in page or f'"{field}"' in page, field
    (delta,) = (json.loads(entry) for entry in entries if '"key":"delta/' in entry)
    for field in delta:
        assert f"`{field}`" in page or f'"{field}"' in page, field
    for field in rounds.RoundCompletion._fields:
        assert f"`{field}`" in page, field


def test_the_changelog_has_a_section_for_this_version_below_what_is_unreleased() -> None:
    sections = re.findall(r"^## (.*)$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(siltstone.__version__)} \(\d{{4}}-\d\d-\d\d\)", sections[1])
