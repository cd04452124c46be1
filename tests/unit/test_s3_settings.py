"""Which endpoint, region and keys the environment and its profiles mean, by the rules that AWS tools share."""

import http.server
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.errors import AccessDeniedError, InvalidInputError, StorageError
from siltstone.objects import Access, open_objects, share_access
from siltstone.objects.s3 import Keys, S3Settings, find_settings, read_answer, shared, store_options, translated
from siltstone.objects.store import StoreObjects, open_s3

CONFIG = """
[default]
region = eu-north-1
[profile work]
region = ap-south-1
endpoint_url = https://all.example
max_attempts = 3
services = mine
[services mine]
dynamodb =
  endpoint_url = https://other.example
s3 =
  endpoint_url = https://s3.example/
[profile signed-on]
sso_session = x
"""
CREDENTIALS = """
[default]
aws_access_key_id = default-id
aws_secret_access_key = default-secret
[work]
aws_access_key_id = work-id
aws_secret_access_key = work-secret
aws_session_token = work-token
[half]
aws_access_key_id = half-id
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config").write_text(CONFIG)
    (tmp_path / "credentials").write_text(CREDENTIALS)
    return {
        "HOME": str(tmp_path / "home"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }


def test_without_anything_nothing_is_set(tmp_path: Path) -> None:
    assert find_settings({"HOME": str(tmp_path)}) == S3Settings()


def test_files_are_found_in_the_home_folder(files: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "home/.aws"
    folder.mkdir(parents=True)
    (tmp_path / "credentials").rename(folder / "credentials")
    assert find_settings({"HOME": files["HOME"]}).keys == Keys("default-id", "default-secret")


def test_the_default_profile_counts_where_none_is_named(files: dict[str, str]) -> None:
    found = find_settings(files)
    assert (found.region, found.keys) == ("eu-north-1", Keys("default-id", "default-secret"))


def test_a_named_profile_has_keys_and_an_endpoint_for_s3_alone(files: dict[str, str]) -> None:
    found = find_settings({**files, "AWS_PROFILE": "work"})
    assert found.keys == Keys("work-id", "work-secret", "work-token")
    assert (found.endpoint, found.region, found.max_attempts) == ("https://s3.example", "ap-south-1", 3)


def test_variables_win_over_the_profile(files: dict[str, str]) -> None:
    variables = {
        "AWS_PROFILE": "work",
        "AWS_ACCESS_KEY_ID": "own-id",
        "AWS_SECRET_ACCESS_KEY": "own-secret",
        "AWS_REGION": "us-west-2",
        "AWS_DEFAULT_REGION": "us-west-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000/",
        "AWS_MAX_ATTEMPTS": "7",
    }
    found = find_settings({**files, **variables})
    assert found.keys == Keys("own-id", "own-secret"), "no token of somebody else"
    assert (found.endpoint, found.region, found.max_attempts) == ("http://127.0.0.1:9000", "us-west-2", 7)
    assert find_settings({**files, **variables, "AWS_ENDPOINT_URL_S3": "http://s3"}).endpoint == "http://s3"
    assert find_settings({**files, **variables, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}).endpoint is None


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"AWS_PROFILE": "nobody"}, "AWS profile 'nobody' is neither in"),
        ({"AWS_PROFILE": "half"}, "profile half have no secret access key"),
        ({"AWS_SECRET_ACCESS_KEY": "x"}, "the environment have no access key id"),
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "'localhost:9000' is not an address"),
        ({"AWS_MAX_ATTEMPTS": "many"}, "AWS_MAX_ATTEMPTS='many'"),
    ],
)
def test_what_cannot_be_meant_is_refused(files: dict[str, str], variables: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        find_settings({**files, **variables})


def test_a_profile_file_that_cannot_be_read_is_named(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config").write_text("region = nowhere\n")
    with pytest.raises(InvalidInputError, match=r"config: cannot be read as an AWS profile file"):
        find_settings(files)


def test_a_profile_with_single_sign_on_gets_its_keys_when_they_are_needed(files: dict[str, str]) -> None:
    found = find_settings({**files, "AWS_PROFILE": "signed-on"})
    assert (found.keys, found.profile) == (None, "signed-on")
    assert "credential_provider" in store_options(found)


def test_secrets_show_in_no_text(files: dict[str, str]) -> None:
    found = find_settings({**files, "AWS_PROFILE": "work"})
    assert "work-secret" not in repr(found)
    assert "work-token" not in repr(Access("s3://x", found))


def test_settings_travel_with_their_keys_or_without_where_that_is_switched_off(files: dict[str, str]) -> None:
    found = find_settings({**files, "AWS_PROFILE": "work"})
    assert pickle.loads(pickle.dumps(shared(found, {}))) == found
    without = shared(found, {"SILTSTONE_SHARE_CREDENTIALS": "false"})
    assert (without.keys, without.endpoint, without.region) == (None, found.endpoint, found.region)


def test_only_s3_roots_have_anything_to_share(tmp_path: Path) -> None:
    assert share_access(str(tmp_path)).settings is None
    shared_one = share_access("s3://bucket/lake/")
    assert shared_one.root == "s3://bucket/lake"
    assert shared_one.settings is not None
    assert shared_one.settings.keys == Keys("testing", "testing")


def test_a_process_goes_on_with_the_settings_it_received(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = "s3://siltstone-tests/received"
    access = pickle.loads(pickle.dumps(share_access(root)))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessDeniedError, match="no AWS credentials"):
        open_objects(root)
    access.use()
    open_objects(root).replace("x", b"1")
    assert open_objects(root).read("x") == b"1"


def test_a_process_that_receives_no_keys_uses_its_own(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = "s3://siltstone-tests/no-keys-received"
    monkeypatch.setenv("SILTSTONE_SHARE_CREDENTIALS", "false")
    access = share_access(root)
    assert access.settings is not None
    assert access.settings.keys is None
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    access.use()
    open_objects(root).replace("x", b"1")
    assert open_objects(root).read("x") == b"1"


def test_a_redirect_to_another_region_is_understood() -> None:
    body = (
        "Server returned non-2xx status code: 301 Moved Permanently: <?xml version='1.0'?>\n<Error>"
        "<Code>PermanentRedirect</Code><Message>use the endpoint</Message>"
        "<Endpoint>bucket.s3.eu-west-3.amazonaws.com</Endpoint></Error>\n\nDebug source: …"
    )
    found = read_answer(OSError(body))
    assert (found.status, found.code, found.region) == (301, "PermanentRedirect", "eu-west-3")


class _Metadata(http.server.BaseHTTPRequestHandler):
    """A machine's metadata service that knows of no role."""

    def do_PUT(self) -> None:
        self.send_error(404)

    do_GET = do_PUT  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def no_role(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_EC2_METADATA_DISABLED",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("endpoint", ["http://{}", "http://127.0.0.1:1"])
def test_where_a_machine_has_no_role_the_error_says_that_no_credentials_were_found(
    no_role: str, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", endpoint.format(no_role))
    objects = open_objects(f"s3://bucket-{no_role.rpartition(':')[2]}/{endpoint[-1]}")
    for ask in (lambda: objects.create("x", b"1"), lambda: objects.read("x"), lambda: objects.list_objects("")):
        with pytest.raises(
            AccessDeniedError, match=r"no AWS credentials: none in AWS_ACCESS_KEY_ID, none in the profile 'default'"
        ):
            ask()


def test_an_answer_that_is_no_role_is_none(no_role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.objects.s3._METADATA_HOST", no_role)
    with pytest.raises(AccessDeniedError, match="this machine has no role"):
        store_options(S3Settings())


def test_a_store_that_refuses_connections_says_so() -> None:
    settings = S3Settings(endpoint="http://127.0.0.1:1", region="eu-north-1", keys=Keys("id", "secret"), max_attempts=1)
    objects = StoreObjects("s3://bucket/lake", open_s3("s3://bucket/lake", settings))
    with pytest.raises(
        StorageError, match=r"lake/x: the store was not reached, since it refused the connection; check"
    ):
        objects.create("x", b"1")


def test_an_endpoint_whose_name_is_not_found_says_so() -> None:
    text = (
        "Generic S3 error: Error performing PUT http://nowhere/bucket/x in 658µs - HTTP error: error sending request\n\n"
        'Debug source:\nConnectError("dns error", failed to lookup address information)'
    )
    with pytest.raises(StorageError, match="since its name was not found"), translated("s3://bucket", "x"):
        raise OSError(text)
