"""What the README shows works as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**{name: value for name, value in os.environ.items() if name != "SILTSTONE_ROOT"}, "PATH": path}


@pytest.mark.parametrize("block", blocks("python"))
def test_python_examples_run(block: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, env=environment())


@pytest.mark.parametrize(("block", "output"), list(zip(blocks("console"), blocks("text"), strict=False)))
def test_console_examples_run_and_end_as_shown(block: str, output: str, tmp_path: Path) -> None:
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    assert commands
    done = subprocess.run(
        "\n".join(["set -e", *commands]), shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    shown = output.splitlines()
    ended = done.stdout.splitlines()[-len(shown) :]
    assert [without_figures(line) for line in ended] == [without_figures(line) for line in shown]


def without_figures(line: str) -> str:
    """Leave out what differs from run to run: times, signatures, and sizes that depend on the writer's version."""
    figures = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?|[0-9a-f]{32}|[\d.]+ k?B"
    return re.sub(r"\s+", " ", re.sub(figures, "…", line))


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
