"""A second S3 server, written by other people in another language: it checks signatures and regions, as AWS does."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.waiting import LIMIT_SECONDS, wait_for

VERSION = "v1.8.0"
PACKAGE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
# Built once for each virtual environment, and removed with it.
TOOLS = Path(sys.prefix) / "tools" / f"versitygw-{VERSION}"
REGION = "eu-central-1"
ACCESS_KEY, SECRET_KEY = "gateway-key", "gateway-secret"
BUCKET = "siltstone-gateway"


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
