"""The whole product on S3: two servers, credentials by every rule, and errors that say what is wrong with the root."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from typer.testing import CliRunner

import siltstone
from siltstone.cli.main import app
from siltstone.errors import AccessDeniedError, InvalidInputError, StorageError
from siltstone.objects import open_objects
from siltstone.publish.comparison import difference
from siltstone.storage import object_store
from siltstone.testing import CHECKS
from siltstone.testing.storage_conformance import Check
from tests.integration.s3_proxy import proxy_to
from tests.integration.s3_servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, gateway, gateway_environment
from tests.unit.publish.foreign import images
from tests.unit.rounds.compaction import MAJOR, MINOR, compact

pytestmark = pytest.mark.integration

SCHEMA = {"id": "int64", "v": "string"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def environment(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that reaches the server; tests take from it or add to it."""
    for name, value in gateway_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def new_root() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def use(root: str) -> None:
    """Create, write and read: a few rows under a root."""
    table = siltstone.open(root).create_table("shop.orders", schema=SCHEMA, primary_keys=["id"])
    table.write(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    assert [delta.stream_position for delta in table.deltas()] == [1]


def doctor(root: str) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(app, ["doctor", "--root", root, "--json"])
    return {check["name"]: check for check in json.loads(done.stdout)}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_storage_conforms_on_another_server(check: Check, environment: pytest.MonkeyPatch) -> None:
    check(object_store, new_root())


def test_doctor_finds_nothing_wrong_and_tells_how_s3_is_reached(environment: pytest.MonkeyPatch, endpoint: str) -> None:
    found = doctor(new_root())
    assert [found[name]["state"] for name in ("s3", "root", "root writable", "create-if-absent", "clock")] == ["ok"] * 5
    assert endpoint in found["s3"]["detail"]
    assert REGION in found["s3"]["detail"]
    assert SECRET_KEY not in json.dumps(found)


def test_a_profile_gives_keys_region_and_endpoint(
    environment: pytest.MonkeyPatch, endpoint: str, tmp_path: Path
) -> None:
    for name in gateway_environment(endpoint):
        environment.delenv(name)
    (tmp_path / "credentials").write_text(
        f"[lakes]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    (tmp_path / "config").write_text(
        f"[profile lakes]\nregion = {REGION}\nservices = here\nendpoint_url = http://127.0.0.1:9\n\n"
        f"[services here]\ns3 =\n  endpoint_url = {endpoint}\n"
    )
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    environment.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    environment.setenv("AWS_PROFILE", "lakes")
    use(new_root())


def test_a_profile_whose_keys_a_program_prints_works_too(
    environment: pytest.MonkeyPatch, endpoint: str, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    keys = {"Version": 1, "AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    (tmp_path / "config").write_text(f"[profile program]\ncredential_process = cat {tmp_path / 'keys.json'}\n")
    environment.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    environment.setenv("AWS_PROFILE", "program")
    use(new_root())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"AWS_ACCESS_KEY_ID": "somebody"}, "the store does not know this access key.*AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": "guessed"}, "the secret access key does not belong to this.*AWS_SECRET_ACCESS_KEY"),
        ({"AWS_REGION": "us-west-2"}, f"another region.*set AWS_REGION={REGION}"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no AWS credentials.*AWS_PROFILE"),
    ],
    ids=["unknown key", "wrong secret", "wrong region", "no credentials"],
)
def test_what_is_wrong_with_the_environment_is_said_whatever_one_does(
    environment: pytest.MonkeyPatch, changes: dict[str, str], told: str
) -> None:
    for name, value in changes.items():
        environment.setenv(name, value)
    root = new_root()
    for call in (
        lambda: siltstone.open(root).tables(),
        lambda: open_objects(root).read("x"),
        lambda: open_objects(root).create("x", b"y"),
        lambda: open_objects(root).list_objects("x"),
        lambda: open_objects(root).delete(["x"]),
        lambda: siltstone.open(root).create_table("shop.orders", schema=SCHEMA),
    ):
        with pytest.raises(AccessDeniedError, match=told):
            call()
    failed = doctor(root)["root"]
    assert failed["state"] == "failed"


def test_a_missing_bucket_is_said_to_be_missing(environment: pytest.MonkeyPatch) -> None:
    lake = siltstone.open("s3://siltstone-nowhere/lake")
    with pytest.raises(StorageError, match=r"s3://siltstone-nowhere/lake: the bucket does not exist; create it"):
        lake.create_table("shop.orders", schema=SCHEMA)


def test_a_server_that_is_not_there_is_said_to_be_unreachable(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    environment.setenv("AWS_MAX_ATTEMPTS", "2")
    with pytest.raises(
        StorageError, match=r"the store was not reached, since it refused the connection; check the network"
    ):
        siltstone.open(new_root()).tables()


def test_a_profile_that_does_not_exist_is_named(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InvalidInputError, match=r"AWS profile 'nobody' is neither in"):
        siltstone.open(new_root()).tables()


def test_a_table_that_is_published_on_s3_is_read_from_there_by_others(
    environment: pytest.MonkeyPatch, endpoint: str
) -> None:
    feed = {"publish.delta.change_feed": "true"}
    lake = siltstone.open(new_root())
    table = lake.create_table("shop.orders", schema=SCHEMA, primary_keys=["id"], properties=feed)
    rounds: dict[str, int] = {}
    options = {**gateway_environment(endpoint), "AWS_ALLOW_HTTP": "true"}
    for number, settings in enumerate((MINOR, MINOR, MAJOR)):
        table.write(pa.table({"id": range(number, 10), "v": [f"{number}"] * (10 - number)}))
        compact(table, settings)
        delta, iceberg = table.publish("delta"), table.publish("iceberg")
        opened = deltalake.DeltaTable(delta.address, storage_options=options)
        found = pa.table(deltalake.QueryBuilder().register("rows", opened).execute("SELECT * FROM rows"))
        assert difference(table.to_arrow(), found, ["id"]) == ""
        changed = pa.table(opened.load_cdf(starting_version=delta.version))
        ours = table.changes(after=rounds, upto=delta.rounds).to_arrow()
        assert images(changed, ["id", "v"], kinds=False) == images(ours, ["id", "v"], kinds=False)
        rounds = delta.rounds
        access = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
        static = StaticTable.from_metadata(
            f"{iceberg.address}/metadata/v{iceberg.version}.metadata.json",
            {"s3.endpoint": endpoint, "s3.region": REGION, **access},
        )
        assert difference(table.to_arrow(), static.scan().to_arrow(), ["id"]) == ""
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert table.fsck() == []
    assert table.unpublish() == ["delta", "iceberg"]
    left = [info.path for info in open_objects(table.lake.root).list_objects("tables", recursive=True)]
    assert not [path for path in left if path.endswith(".begun")]


def test_doctor_refuses_a_store_that_ignores_the_condition_of_a_write(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy_to(s3_endpoint) as proxy:
        proxy.add("ignore_condition", lambda request: True, times=None)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        found = doctor(f"s3://siltstone-tests/{uuid.uuid4().hex}")
    assert found["create-if-absent"]["state"] == "failed"
    assert "conditional writes" in found["create-if-absent"]["fix"]
