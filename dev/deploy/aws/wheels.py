"""Wheels of the workspace: built, named so that pip takes them, uploaded, and lent out by signed addresses."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dev.deploy.aws.buckets import ensure_bucket, find_bucket, packages_bucket
from dev.deploy.aws.stage import DeployError, s3_client

WORKSPACE = Path(__file__).resolve().parents[3]
DISTRIBUTION = "siltstone"
SIGNED_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True)
class StoredWheel:
    """A wheel in the packages bucket of a stage."""

    bucket: str
    key: str
    region: str

    @property
    def uri(self) -> str:
        """Its address for whoever has access to the bucket."""
        return f"s3://{self.bucket}/{self.key}"

    def signed_url(self, seconds: int = SIGNED_SECONDS) -> str:
        """Return an address that anybody can download it from, for some time."""
        return s3_client(self.region).generate_presigned_url(
            "get_object", Params={"Bucket": self.bucket, "Key": self.key}, ExpiresIn=seconds
        )


def build_wheel(folder: Path, workspace: Path = WORKSPACE) -> Path:
    """Build a wheel of the workspace into an empty folder. Raises: DeployError."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(workspace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = sorted(folder.glob(f"{DISTRIBUTION}-*.whl"))
    if done.returncode or len(wheels) != 1:
        raise DeployError(f"the wheel was not built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return wheels[0]


def tagged_name(wheel: str, timestamp: int) -> str:
    """Return a wheel's file name with a build tag, which goes between the version and the tags of PEP 491.

    Among wheels of one version, installers prefer the highest build tag, so that is a time in seconds.
    Raises: DeployError for a name that has one already, or that is none of a wheel.
    """
    parts = wheel.removesuffix(".whl").split("-")
    if not wheel.endswith(".whl") or len(parts) != 5:
        raise DeployError(f"{wheel} is not the name of a wheel without a build tag")
    distribution, version, *tags = parts
    return f"{'-'.join([distribution, version, str(timestamp), *tags])}.whl"


def upload_wheel(wheel: Path, *, stage: str, region: str, timestamp: int | None = None) -> StoredWheel:
    """Upload a wheel under a name of its own to the packages bucket, which is created where it is missing."""
    bucket = packages_bucket(stage)
    placed = ensure_bucket(bucket, region)
    key = tagged_name(wheel.name, int(time.time()) if timestamp is None else timestamp)
    s3_client(placed).upload_file(str(wheel), bucket, key)
    return StoredWheel(bucket, key, placed)


def newest_wheel(*, stage: str, region: str) -> StoredWheel | None:
    """Return the wheel of a stage that was uploaded last, None where there is none."""
    bucket = packages_bucket(stage)
    placed = find_bucket(bucket, region)
    if placed is None:
        return None
    pages = s3_client(placed).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{DISTRIBUTION}-")
    wheels = [each for page in pages for each in page.get("Contents", []) if each["Key"].endswith(".whl")]
    if not wheels:
        return None
    return StoredWheel(bucket, max(wheels, key=lambda each: (each["LastModified"], each["Key"]))["Key"], placed)
