"""The picture of the rooms is that of the imports."""

import re
from pathlib import Path

import pytest
from dev.rooms import PAGE, PROJECT, SOURCE, draw, picture_in, read_edges, reduced


def test_the_picture_on_the_page_is_the_one_that_is_drawn() -> None:
    assert picture_in(PAGE.read_text()) == draw(read_edges()), "run `python -m dev.rooms`, which draws it anew"


def test_every_room_of_the_picture_is_explained() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert explained == set(read_edges())


def test_every_module_that_the_page_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)`", PAGE.read_text())
    assert len(named) > 10
    assert [name for name in named if not ((SOURCE / name).is_file() or (PROJECT / name).is_file())] == []


def test_imports_anywhere_in_a_module_count(tmp_path: Path) -> None:
    for name, text in {
        "table/scan.py": "from siltstone.rows import fold\nfrom siltstone.errors import InvalidInputError\n",
        "rows/fold.py": "def fold():\n    import siltstone.model.rounds\n",
        "lake.py": "from siltstone import model, table\n",
        "document_table.py": "from siltstone.lake import Lake\n",
        "model/rounds.py": "import pyarrow\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    edges = read_edges(tmp_path)
    assert edges == {"table": {"rows"}, "rows": {"model"}, "lake": {"model", "table"}, "model": frozenset()}
    assert reduced(edges)["lake"] == {"table"}


def test_a_circle_of_rooms_is_an_error() -> None:
    with pytest.raises(ValueError, match="rooms import each other: a -> b -> a"):
        reduced({"a": frozenset("b"), "b": frozenset("a")})
