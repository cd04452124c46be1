"""Documents of another store: in its own encoding, in batches, once each however often they are imported; and bad ones aside."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import siltstone
from siltstone.documents.cells import decoded_cells
from siltstone.documents.record import change_id_at
from siltstone.errors import AlreadyExistsError, InvalidInputError, SiltstoneError
from siltstone.testing import Killed, faults
from tests.unit.cli.command_line import Cli
from tests.unit.documents.tables import NAME, Written, change_id, make


def t(number: int) -> str:
    """The change id of a second in 2014."""
    return change_id_at(1_408_977_300_000 + 1000 * number)


def document(key: str, number: int = 1) -> dict[str, Any]:
    return {"key": key, "deltas": [{"id": t(number), "delta": {"n": number}}]}


@pytest.fixture
def written(local_root: str) -> Written:
    return make(local_root)


@pytest.fixture
def docs(written: Written) -> siltstone.DocumentTable:
    return written.docs


class TestCells:
    def test_cells_of_all_encodings_are_deltas_records_and_history(self, local_root: str) -> None:
        docs = make(local_root, keep_history=True).docs
        record = {
            "count": 2,
            "first": t(1),
            "cutoff": t(2),
            "cutoffSignature": "ab" * 16,
            "compactedDelta": '{"n":2}',
            "lastTags": ["x"],
        }
        kept = {"changeId": t(1), "delta": '{"n":1}', "content": {"n": 1, "~version": 1, "~id": "k", "~deleted": False}}
        cells = {
            t(9): f"C1:{json.dumps(record)}",
            t(1): f"H1:{json.dumps(kept)}",
            t(2): 'D1:{"n":2}',
            t(3): 'D2:["x","y"]:{..,"m":1}',
            t(4): 'D3:[]:M:{..,"m":2}',
            t(5): 'D3:["z"]::{..,"l":"a:b"}',
        }
        assert docs.import_documents([{"key": "k", "cells": cells}]).imported == 1
        found = docs.get("k")
        assert (found["n"], found["m"], found["l"], found["~version"]) == (2, 2, "a:b", 5)
        assert [(event.version, event.state, event.tags) for event in docs.timeline("k") if event.kind == "delta"] == [
            (1, "history", ()),
            (2, "compacted", ()),
            (3, "waiting", ("x", "y")),
            (4, "waiting", ()),
            (5, "waiting", ("z",)),
        ]

    def test_values_in_blocks_are_put_together_and_a_legacy_record_is_read(self, docs: siltstone.DocumentTable) -> None:
        legacy = {"count": 1, "first": t(1), "cutoff": t(2), "cutoffSignature": "ab" * 16}
        cells = [
            {"id": t(2), "block": 1, "value": '"long text"}'},
            {"id": t(2), "block": 0, "value": '0002D2:[]:{"text":'},
            {"id": t(5), "block": 0, "value": f"0001C1:{json.dumps(legacy)}"},
        ]
        docs.import_documents([{"key": "k", "cells": cells}])
        assert (docs.get("k")["text"], docs.get("k")["~version"]) == ("long text", 2)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"cells": {t(1): "D4:{}"}}, "begins with none of D1"),
            ({"cells": {t(1): "D2:x:{}"}}, "begins with a list of tags"),
            ({"cells": {t(1): "C1:{"}}, "not valid JSON"),
            ({"cells": {t(1): "C1:[]"}}, "not a JSON object"),
            ({"cells": {t(1): 'H1:{"delta":"~"}'}}, "history without the content"),
            ({"cells": {}, "deltas": []}, "has cells and deltas"),
            ({"cells": 7}, "cells are a map"),
            ({"cells": [{"id": 1, "value": "D1:~"}]}, "has an id and a value"),
            ({"cells": [{"id": "a", "value": "D1:~"}] * 2}, "occurs twice"),
            ({"cells": [{"id": "a", "value": "D1:~", "block": 1}]}, "one is missing"),
        ],
    )
    def test_what_is_wrong_with_a_cell_is_said(self, given: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            decoded_cells(given)


class TestBatches:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("siltstone.documents.imports.BATCH_DOCUMENTS", 3)

    def test_an_import_that_dies_anywhere_goes_on_and_doubles_nothing(self, local_root: str) -> None:
        documents = [document(f"k{number}") for number in range(7)]
        for at_call in range(1, 400, 11):
            docs = make(f"memory://{local_root}/{at_call}").docs
            ignored = contextlib.suppress(SiltstoneError, Killed)
            with faults(docs.lake.root, at_call=at_call, kind="kill_after") as store, ignored:
                docs.import_documents(documents)
            before = len(docs.table.deltas())
            # Somebody goes on with what is there already.
            if before:
                docs.update("k0", '{..,"mine":1}', (), change_id(1))
            done = docs.import_documents(documents)
            assert (done.imported + done.repeated, done.skipped) == (7, 0)
            assert done.repeated == min(3 * before, 7)
            versions = [each["~version"] for each in docs.get_many([f"k{number}" for number in range(7)])]
            assert versions == [2 if before else 1, *[1] * 6]
            if store.calls < at_call:
                return
        pytest.fail("an import makes 400 calls")

    def test_documents_are_known_by_their_signature_where_the_batch_is_another(
        self, docs: siltstone.DocumentTable
    ) -> None:
        docs.import_documents([document("a"), document("b")])
        assert docs.import_documents([document("b"), document("c"), document("a")])[:3] == (1, 0, 2)
        docs.update("b", '{..,"m":1}', (), change_id(1))
        with pytest.raises(AlreadyExistsError, match="document 'b' cannot be imported"):
            docs.import_documents([document("d"), document("b")])
        assert docs.get("d")["~version"] == 0

    def test_a_bad_document_stops_the_import_and_what_was_before_it_is_told(
        self, docs: siltstone.DocumentTable
    ) -> None:
        documents = [*(document(f"k{number}") for number in range(4)), {"key": "bad"}]
        with pytest.raises(
            InvalidInputError, match=r"document 5, key 'bad': has neither.*3 documents before it are imported"
        ):
            docs.import_documents(documents)
        assert docs.import_documents(documents[:4])[:3] == (1, 0, 3)


class TestRejects:
    def test_bad_lines_are_put_aside_with_the_reason_and_the_others_imported(self, tmp_path: Path) -> None:
        cli = Cli(tmp_path)
        cli("documents", "create", NAME)
        cli("documents", "update", NAME, "here", '{"n":1}')
        lines = [
            json.dumps(document("fine")),
            "{",
            "",
            json.dumps({"key": "k", "deltas": [{"id": "x", "delta": "~"}]}),
            json.dumps(document("here")),
            json.dumps(document("fine", 2)),
        ]
        file = cli.file("old.jsonl", "\n".join(lines))
        assert "old.jsonl, line 2: not valid JSON" in cli.fails("documents", "import", NAME, file)
        rejects = tmp_path / "bad"
        command = ("documents", "import", NAME, file, "--rejects", str(rejects))
        planned = cli.json(*command, "--dry-run")
        assert (planned["imported"], planned["rejected"], rejects.exists()) == (1, 4, False)
        done = cli.json(*command)
        assert {**done, "dry_run": True} == planned
        aside = [json.loads(line) for line in Path(done["rejects_files"][0]).read_text().splitlines()]
        assert [(each["place"].rpartition(", ")[2], each["reason"][:14]) for each in aside] == [
            ("line 2", "not valid JSON"),
            ("line 4", "deltas[0].id: "),
            ("line 6", "occurs twice; "),
            ("line 5", "something else"),
        ]
        assert [each["document"] for each in aside] == [lines[1], lines[3], lines[5], lines[4]]
        again = cli.json(*command)
        assert (again["imported"], again["repeated"], again["rejected"]) == (0, 1, 4)
        text = cli("documents", "import", NAME, file, "--rejects", str(rejects)).stdout
        assert "imported 0 documents into shop.reviews; 1 document imported before; 4 documents put aside in" in text
