"""Files that are dropped under a prefix of S3 are taken once each, moved, deleted and set aside there."""

import gzip
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import siltstone
from siltstone.errors import InvalidInputError
from siltstone.ingest.drop_options import Ingested
from tests.integration.s3_servers import BUCKET, gateway, gateway_environment

pytestmark = pytest.mark.integration

HOSTILE = ["two  spaces .jsonl", "tägü.jsonl", "a%2Fb.jsonl", "a%.jsonl", "a+b&c=d.jsonl", "😀.jsonl"]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with gateway(tmp_path) as endpoint:
        for name, value in gateway_environment(endpoint).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        # Not the session that others may have made before with other keys.
        yield boto3.Session().resource("s3").Bucket(BUCKET)


def test_files_under_a_prefix_are_taken_once_each(bucket: Any, tmp_path: Path) -> None:
    prefix = uuid.uuid4().hex
    source = f"s3://{BUCKET}/{prefix}/drops"

    def drop(name: str, *ids: int, text: str | None = None) -> None:
        body = "\n".join(json.dumps({"id": number}) for number in ids) if text is None else text
        data = gzip.compress(body.encode()) if name.endswith(".gz") else body.encode()
        bucket.put_object(Key=f"{prefix}/drops/{name}", Body=data)

    def names() -> list[str]:
        keys = [
            found.key.removeprefix(f"{prefix}/drops/") for found in bucket.objects.filter(Prefix=f"{prefix}/drops/")
        ]
        return sorted(key for key in keys if not key.endswith("/"))

    table = siltstone.open(f"s3://{BUCKET}/{prefix}/lake").create_table("shop.orders", schema={"id": "int64"})

    def take(**options: Any) -> Ingested:
        return table.ingest(source, pattern="**/*.jsonl*", **options)

    assert take().files == 0, "a prefix without objects is an empty folder"
    for number, name in enumerate(HOSTILE):
        drop(name, number)
    drop("2026/11/17/x.jsonl.gz", 90, 91)
    drop("_temporary/y.jsonl", 92)
    drop("empty.jsonl", text="")
    # S3 has objects whole or not at all: nothing is waited for.
    taken = take(settle_seconds=3600)
    assert (taken.files, taken.rows, taken.waiting_files) == (len(HOSTILE) + 2, len(HOSTILE) + 2, 0)
    assert take().files == 0
    drop("tägü.jsonl", 1)
    assert take().files == 0, "the same content under the same name has the same ETag"
    drop("tägü.jsonl", 1, 2)
    with pytest.raises(InvalidInputError, match=r"tägü\.jsonl: was taken in batch 0, and has changed since"):
        take()
    drop("bad.jsonl", text="{")
    drop("good.jsonl", 93)
    taken = take(quarantine=True, done="move")
    assert (taken.files, sorted(rejected.file for rejected in taken.rejected)) == (1, ["bad.jsonl", "tägü.jsonl"])
    moved = [name for name in [*HOSTILE, "empty.jsonl", "good.jsonl", "2026/11/17/x.jsonl.gz"] if name != "tägü.jsonl"]
    assert names() == sorted(
        ["_temporary/y.jsonl", *(f"done/{name}" for name in moved), "rejected/bad.jsonl", "rejected/tägü.jsonl"]
    )
    drop("last.jsonl", 94)
    assert take(done="delete", rejects=str(tmp_path / "aside")).files == 1
    assert "last.jsonl" not in names()
    assert sorted(table.scan(fresh=True).to_arrow()["id"].to_pylist()) == [*range(len(HOSTILE)), 90, 91, 93, 94]
    assert table.fsck() == []
    with pytest.raises(InvalidInputError, match="is inside the lake"):
        table.ingest(f"s3://{BUCKET}/{prefix}/lake/x")
