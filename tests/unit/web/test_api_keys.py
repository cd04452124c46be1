"""What the JSON API shows is an interface: its keys, and the types of the values, stay; see `test_json_keys`."""

import json
from pathlib import Path

from siltstone.service.node import NodeIdentity, register_node
from tests.unit.cli.test_json_keys import Shape, differences, shape_of
from tests.unit.rounds.compaction import make_table, rows
from tests.unit.web.serving import Service

GOLDEN = Path(__file__).parents[2] / "fixtures" / "api_keys.json"
JSON = {"Content-Type": "application/json"}


def record(service: Service, drops: Path) -> dict[str, Shape]:
    """Return the shape of every answer, of a lake with partitions, a failure, a backlog and controls."""
    browser = service.browser()
    register_node(service.database, NodeIdentity("node"), is_worker=True)
    published = {"publish": "delta"}
    table = make_table(service.root, "shop.days", partition_keys=["v"], primary_keys=["v", "id"], properties=published)
    for number in range(2):
        service.write(number)
        table.write(rows([number], "a").set_column(1, "v", [["a"]]))
        service.run_cycle()
    service.write(2)
    for name, text in (("a.jsonl", '{"v": "a", "id": 9}'), ("b.jsonl", "{")):
        (drops / name).write_text(text)
    table.ingest(drops, quarantine=True, settle_seconds=0)
    shapes = {}
    for path in ("trigger", "freeze", "unfreeze", "disable", "enable"):
        shapes[f"POST /api/{path}"] = shape_of(browser.post(f"/api/{path}", headers=JSON).json())
        if path in ("freeze", "disable"):
            shapes[f"GET /api/status after {path}"] = shape_of(browser.get("/api/status").json())
    for path in ("pause", "resume", "compact"):
        shapes[f"POST /api/tables/NAME/{path}"] = shape_of(
            browser.post(f"/api/tables/shop.orders/{path}", headers=JSON).json()
        )
    shapes["GET /api/audit"] = shape_of(browser.get("/api/audit").json())
    for path in (
        "status",
        "cycles",
        "cycles/1",
        "cycles/2",
        "tables",
        "tables/shop.orders",
        "tables/shop.days",
        "tables/shop.days/health",
        "tables/shop.days/ingests",
        "tables/shop.days/published",
        "tables/shop.days/schema",
        "tables/shop.days/readers",
        "tables/shop.orders/rows",
        "tables/shop.orders/keys?key.id=2",
        "node",
        "nodes",
    ):
        shapes[f"GET /api/{path}"] = shape_of(browser.get(f"/api/{path}").json())
    docs = table.lake.create_document_table("shop.reviews")
    docs.update("r7", {"stars": 3, "old": True}, tags=["first"])
    docs.update("r7", '{..,"stars":5,"old":~,"text":"good"}')
    shapes["GET /api/tables/NAME/documents"] = shape_of(browser.get("/api/tables/shop.reviews/documents?key=r7").json())
    request_id = browser.post("/api/trigger", headers=JSON).json()["request_id"]
    shapes["GET /api/requests/"] = shape_of(browser.get(f"/api/requests/{request_id}").json())
    shapes["GET /api/cycles/99"] = shape_of(browser.get("/api/cycles/99").json())
    return shapes


def test_the_api_has_the_keys_it_always_had(service: Service, tmp_path: Path) -> None:
    (drops := tmp_path / "drops").mkdir()
    shapes = record(service, drops)
    changed = differences(shapes, json.loads(GOLDEN.read_text()))
    recorded = tmp_path / GOLDEN.name
    recorded.write_text(json.dumps(shapes, indent=1, sort_keys=True) + "\n")
    assert not changed, "\n".join(
        [*changed, f"If that is meant: say so in CHANGELOG.md, and copy {recorded} to {GOLDEN.relative_to(Path.cwd())}"]
    )
