import json
from pathlib import Path

import pytest

from siltstone.log import SinkLog, SourceEntry, SourceLog
from tests.unit.cli.command_line import Cli


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """An output directory with 25 files in a sink's log, as Spark leaves it."""
    folder = tmp_path / "events"
    folder.mkdir()
    log = SinkLog(folder)
    for batch_id in range(25):
        (folder / f"part-{batch_id:05}.parquet").write_bytes(b"x" * (100 + batch_id))
        log.add(batch_id, [log.entry(f"part-{batch_id:05}.parquet")])
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_show_tells_the_batches_of_a_log(cli: Cli, events: Path) -> None:
    shown = cli.json("log", "show", str(events))
    assert shown["kind"] == "sink"
    assert shown["latest"] == 24
    assert shown["live_entries"] == 25
    text = cli("log", "show", str(events / "_spark_metadata")).stdout
    assert "19.compact" in text
    assert "25 live entries" in text


def test_files_come_one_per_line_also_as_json(cli: Cli, events: Path) -> None:
    text = cli("log", "files", str(events)).stdout.splitlines()
    assert len(text) == 25
    assert text[3].endswith("part-00003.parquet")
    lines = cli("log", "files", str(events), "--json").stdout.splitlines()
    assert [json.loads(line)["size"] for line in lines] == [100 + batch_id for batch_id in range(25)]


def test_files_of_a_source_log_and_of_a_lake_show_too(cli: Cli, tmp_path: Path) -> None:
    source = SourceLog(tmp_path / "checkpoint" / "sources" / "0")
    source.add(0, [SourceEntry("file:///in/a.json", 1700000000000, 0)])
    assert "file:///in/a.json" in cli("log", "files", str(tmp_path / "checkpoint")).stdout
    cli("table", "create", "shop.t", "--schema", cli.file("schema.json", '{"id": "int64"}'))
    keys = [json.loads(line)["key"] for line in cli("log", "files", str(cli.root / "catalog")).stdout.splitlines()]
    assert "table/shop/t" in keys
    assert cli.json("log", "verify", str(cli.root / "catalog"))["not_known"] is None


def test_verify_exits_with_1_on_findings_and_names_the_file(cli: Cli, events: Path) -> None:
    assert cli.json("log", "verify", str(events))["findings"] == []
    assert "all is well" in cli("log", "verify", str(events)).stdout
    assert "not known: whether whole lines" in cli("log", "verify", str(events)).stdout
    (events / "part-00003.parquet").unlink()
    assert "part-00003.parquet" in cli("log", "verify", str(events), exit_code=1).stdout
    found = cli.json("log", "verify", str(events), exit_code=1)["findings"]
    assert [finding["code"] for finding in found] == ["missing-file"]
    cli("log", "verify", str(events), "--no-data-files")


def test_compact_can_be_seen_first(cli: Cli, events: Path) -> None:
    before = content(events)
    planned = cli.json("log", "compact", str(events), "--retention", "0s", "--dry-run")
    assert content(events) == before
    assert planned["dry_run"] is True
    done = cli.json("log", "compact", str(events), "--retention", "0s")
    assert done["entries_after"] == planned["entries_after"]
    assert (events / "_spark_metadata" / done["backup_file"]).exists()


def test_compact_without_retention_keeps_every_entry(cli: Cli, events: Path) -> None:
    cli("log", "compact", str(events), "--no-backup")
    assert len(cli("log", "files", str(events)).stdout.splitlines()) == 25


def test_wrong_paths_and_durations_are_told(cli: Cli, events: Path) -> None:
    assert "nosuch" in cli.fails("log", "show", str(events / "nosuch"))
    assert "nosuch" in cli.fails("log", "files", str(events / "nosuch"))
    for wrong in ("7", "d", "-1d", "1.h", "7 years", ""):
        assert "--retention" in cli.misused("log", "compact", str(events), "--retention", wrong)


def test_a_lakes_own_log_is_summed_up(cli: Cli) -> None:
    cli("table", "create", "shop.t", "--schema", cli.file("schema.json", '{"id": "int64"}'))
    assert "summed up" in cli("log", "compact", str(cli.root / "catalog")).stdout
    assert (cli.root / "catalog" / "0.compact").exists()
