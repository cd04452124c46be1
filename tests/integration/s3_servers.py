"""A second S3 server, written by other people in another language, which checks signatures and regions, as AWS does; and the JVM's own way to it."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pyspark
import pytest

from tests.waiting import LIMIT_SECONDS, wait_for

VERSION = "v1.8.0"
PACKAGE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
# Built once for each virtual environment, and removed with it.
TOOLS = Path(sys.prefix) / "tools" / f"versitygw-{VERSION}"
REGION = "eu-central-1"
ACCESS_KEY, SECRET_KEY = "gateway-key", "gateway-secret"
BUCKET = "siltstone-gateway"
S3A_PROJECT = """<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>tests</artifactId>
<version>1</version><dependencies><dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-aws</artifactId>
<version>{}</version></dependency></dependencies></project>"""


def build_gateway() -> Path:
    """Return the server's program; it is built from the Go registry where it is not there yet."""
    program = TOOLS / "versitygw"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        pytest.fail("the second S3 server is built with Go, and there is none on the PATH: install Go 1.21 or newer")
    building = TOOLS.with_name(f"{TOOLS.name}.{os.getpid()}")
    done = subprocess.run(
        [go, "install", PACKAGE],
        env={**os.environ, "GOBIN": str(building), "GOFLAGS": "-buildvcs=false"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"the second S3 server could not be built: {done.stderr[-500:]}")
    with contextlib.suppress(OSError):
        building.rename(TOOLS)
    return program


def listens(host: str, port: str) -> bool:
    """Tell whether somebody answers at an address."""
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), LIMIT_SECONDS):
        return True
    return False


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[str]:
    """Serve a folder as S3, with one bucket and one user, and return the address."""
    program = build_gateway()
    data = folder / "gateway"
    data.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = ["--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION, "--port", address, "--quiet"]
    with (folder / "gateway.log").open("wb") as log:
        server = subprocess.Popen([program, *options, "posix", str(data)], stdout=log, stderr=log)
    try:
        wait_for("the S3 server", lambda: listens(*address.split(":")))
        boto3.client(
            "s3",
            endpoint_url=f"http://{address}",
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        ).create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(LIMIT_SECONDS)


def gateway_environment(endpoint: str) -> dict[str, str]:
    """Return what a process needs to reach it."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }


def s3a_classes(folder: Path) -> str:
    """Return the class path with which the JVM of Spark reaches S3, in the release that fits its Hadoop; Maven has it."""
    maven = shutil.which("mvn")
    if maven is None:
        pytest.fail("the JVM's own way to S3 comes by Maven, and there is no mvn on the PATH: install it")
    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    (folder / "pom.xml").write_text(S3A_PROJECT.format(version))
    wanted = ["-Dmdep.outputFile=classes.txt", "-DincludeScope=runtime"]
    done = subprocess.run(
        [maven, "-q", "dependency:build-classpath", *wanted], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"Maven could not get hadoop-aws {version}: {done.stdout[-500:]}")
    return (folder / "classes.txt").read_text().strip()


def s3a_settings(endpoint: str) -> dict[str, str]:
    """Return what the JVM needs to reach the server."""
    settings = {
        "endpoint": endpoint,
        "endpoint.region": REGION,
        "access.key": ACCESS_KEY,
        "secret.key": SECRET_KEY,
        "path.style.access": "true",
        # Else it is slow to say that nobody answers, or that a key is wrong.
        "attempts.maximum": "1",
        "retry.limit": "1",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
