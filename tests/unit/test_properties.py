"""Table properties: one list of them, checked when they are set, wherever that is done."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import siltstone
from siltstone.catalog import main as catalog
from siltstone.cli.main import app
from siltstone.errors import InvalidInputError
from siltstone.model import TableRules
from siltstone.model.properties import (
    CLOSED_BEFORE_MS,
    ROW_GROUP_ROWS,
    SCHEMA_EVOLUTION,
    TABLE_PROPERTIES,
    TOMBSTONE_RETENTION_SECONDS,
    Property,
    change_properties,
)
from siltstone.model.schema import schema_from_json
from tests.unit.rounds.compaction import SCHEMA, check_rows, compact, make_table, rows

PAGE = Path(__file__).parents[2] / "docs" / "properties.md"
WRONG = [
    ("publsih", "delta", "there is no property publsih; .*user.publsih"),
    ("delta_retention", "5", r"did you mean delta_retention_seconds\?"),
    ("Tombstone_Retention_Seconds", "5", "did you mean tombstone_retention_seconds"),
    ("delta_retention_seconds", "x", "is 'x'; give seconds"),
    ("delta_retention_seconds", "", "is ''; give seconds"),
    ("tombstone_retention_seconds", "-1", "is '-1'; give seconds"),
    ("tombstone_retention_seconds", "nan", "is 'nan'; give seconds"),
    ("tombstone_retention_seconds", "7 days", "is '7 days'; give seconds"),
    ("row_group_rows", "0", "from 1 to 131072"),
    ("row_group_rows", "131073", "from 1 to 131072"),
    ("siltstone.row_group_rows", "10", "is called row_group_rows now"),
    ("schema_evolution", "lax", "give `add_and_widen` or `strict`"),
    ("siltstone.kind", "documents", "kept by the system"),
    ("siltstone.closed_before_ms", "1", "kept by the system"),
    ("siltstone.full_consistency_delay_ms", "1", "kept by the system"),
    ("siltstone.documents.name", "shop.x", "kept by the system"),
    ("siltstone.mine", "1", "there is no property siltstone.mine; .*user.mine"),
    ("user.", "1", "there is no property user"),
    ("", "1", "there is no property ; .*user.owner"),
]


@pytest.mark.parametrize(("name", "text", "message"), WRONG)
def test_unknown_reserved_and_meaningless_properties_are_refused_and_nothing_is_written(
    name: str, text: str, message: str, local_root: str
) -> None:
    lake = siltstone.open(local_root)
    with pytest.raises(InvalidInputError, match=message):
        lake.create_table("shop.new", schema=SCHEMA, properties={name: text})
    with pytest.raises(InvalidInputError, match=message):
        lake.create_document_table("shop.new", properties={name: text})
    assert lake.namespaces() == []
    table = make_table(local_root)
    with pytest.raises(InvalidInputError, match=message):
        table.alter(properties={"user.a": "1", name: text}, add_columns={"note": "string"})
    assert (table.properties, table.schema.names) == ({}, ["id", "v"])


def test_what_is_right_is_taken_over_and_removed_again(local_root: str) -> None:
    right = {
        "delta_retention_seconds": "0",
        "tombstone_retention_seconds": "forever",
        "row_group_rows": "131072",
        "schema_evolution": "strict",
        "user.anything at all": "",
    }
    table = make_table(local_root, properties=right)
    assert table.properties == right
    table.alter(properties=dict.fromkeys(right, None))
    assert table.properties == {}


def test_a_value_that_is_not_text_is_refused(local_root: str) -> None:
    table = make_table(local_root)
    with pytest.raises(InvalidInputError, match="row_group_rows is 10, which is not text; give '10'"):
        table.alter(properties={"row_group_rows": 10})  # type: ignore[dict-item]


def test_the_closing_time_of_documents_cannot_be_set_back_nor_removed(local_root: str) -> None:
    docs = siltstone.open(local_root).create_document_table("shop.reviews")
    before = docs.table.properties
    for name in before:
        if name.startswith("siltstone."):
            for text in ("0", None):
                with pytest.raises(InvalidInputError, match=f"{name} is kept by the system"):
                    docs.table.alter(properties={name: text})
    docs.table.alter(properties={**before, "user.owner": "ann"})
    assert docs.table.properties == {**before, "user.owner": "ann"}, "what stays as it is may be given again"


def test_tables_of_documents_have_small_row_groups_unless_told_otherwise(local_root: str) -> None:
    lake = siltstone.open(local_root)
    docs = lake.create_document_table("shop.reviews")
    assert ROW_GROUP_ROWS.of(docs.table.properties, docs.name) == 1024
    docs = lake.create_document_table("shop.large", properties={"row_group_rows": "1000"})
    assert ROW_GROUP_ROWS.of(docs.table.properties, docs.name) == 1000


def test_a_table_with_properties_from_before_they_were_checked_works_and_can_be_tidied(local_root: str) -> None:
    legacy = {"owner": "ann", "publsih": "delta", "siltstone.row_group_rows": "7", "siltstone.x": "1"}
    catalog.create_table(
        "shop.orders",
        schema=schema_from_json(SCHEMA),
        rules=TableRules(primary_keys=["id"]),
        reserved_properties=legacy,
        root=local_root,
    )
    table = siltstone.open(local_root).table("shop.orders")
    table.write(rows([1, 2]))
    compact(table)
    table.write(rows([2, 3], "again"))
    compact(table)
    check_rows(table)
    assert ROW_GROUP_ROWS.of(table.properties, table.name) == 7
    table.alter(properties={"user.a": "1"}, add_columns={"note": "string"})
    with pytest.raises(InvalidInputError, match="there is no property owner"):
        table.alter(properties={"owner": "bob"})
    table.alter(properties={"row_group_rows": "8", "owner": None, "siltstone.x": None})
    assert table.properties == {"publsih": "delta", "row_group_rows": "8", "user.a": "1"}
    table.alter(properties={"row_group_rows": None})
    assert ROW_GROUP_ROWS.of(table.properties, table.name) == 131072


def test_removing_a_property_removes_its_old_name_as_well() -> None:
    assert change_properties({"siltstone.row_group_rows": "7"}, {"row_group_rows": None}, "t") == {}


def test_absent_properties_have_their_defaults() -> None:
    assert TOMBSTONE_RETENTION_SECONDS.of({}, "t") == 7 * 24 * 3600
    assert SCHEMA_EVOLUTION.of({}, "t") == "add_and_widen"
    assert CLOSED_BEFORE_MS.of({}, "t") is None


def test_namespaces_take_only_properties_of_the_users_own(local_root: str) -> None:
    lake = siltstone.open(local_root)
    with pytest.raises(InvalidInputError, match=r"namespace shop: .*user\.owner"):
        lake.create_namespace("shop", properties={"owner": "ann"})
    lake.create_namespace("shop", properties={"user.owner": "ann"})


def test_names_have_one_style() -> None:
    for name in TABLE_PROPERTIES:
        assert re.fullmatch(
            r"(siltstone\.(documents\.)?|feed\.|ingest\.|history\.|publish\.(delta|iceberg)\.)?[a-z]+(_[a-z]+)*", name
        ), name


def row_of(known: Property[object]) -> str:
    cells = (f"`{known.name}`", known.values, known.default_text, known.read_by, known.meaning)
    return f"| {' | '.join(cells)} |"


def test_the_page_lists_exactly_the_properties_there_are() -> None:
    listed = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert listed == [row_of(known) for known in TABLE_PROPERTIES.values()]


def blocks_of(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks_of("python")
    exec(block, {"lake": siltstone.open(tmp_path / "python")})
    assert siltstone.open(tmp_path / "python").table("shop.orders").properties == {
        "delta_retention_seconds": "86400",
        "tombstone_retention_seconds": "forever",
        "user.owner": "sales",
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SILTSTONE_ROOT", str(tmp_path / "commands"))
    Path("orders.csv").write_text("order_id,amount\n1,5\n")
    (block,) = blocks_of("console")
    for line in block.splitlines():
        done = CliRunner().invoke(app, shlex.split(line.removeprefix("$ siltstone ")))
        assert done.exit_code == 0, done.output
    assert siltstone.open(tmp_path / "commands").table("shop.orders").properties == {
        "tombstone_retention_seconds": "forever"
    }
