"""`make deploy-s3`: the workspace as a wheel in S3, and the line that installs it anywhere for a week."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from dev.deploy.aws.stage import DeployError, find_region, find_stage
from dev.deploy.aws.wheels import StoredWheel, build_wheel, upload_wheel


def deploy(*, stage: str, region: str) -> StoredWheel:
    """Build a wheel of the workspace and upload it. Raises: DeployError."""
    with tempfile.TemporaryDirectory() as folder:
        return upload_wheel(build_wheel(Path(folder)), stage=stage, region=region)


def tell(wheel: StoredWheel) -> None:
    """Print where the wheel is and how to install it."""
    print(f"uploaded {wheel.uri} ({wheel.region})")
    credentials = boto3.Session().get_credentials()
    if credentials is not None and credentials.token:
        print("the signed address below ends with your temporary credentials, maybe sooner than in 7 days")
    print("to install run:")
    address = wheel.signed_url()
    print(f"pip install 'siltstone @ {address}'")
    print("or, to serve pages and compact in cycles, too:")
    print(f"pip install 'siltstone[service] @ {address}'")


def main(arguments: Sequence[str] | None = None) -> int:
    """Deploy, and say so."""
    parser = argparse.ArgumentParser(prog="deploy_s3", description=__doc__)
    parser.add_argument("--region", help="of the bucket; default: that of the environment, else us-east-1")
    options = parser.parse_args(arguments)
    try:
        tell(deploy(stage=find_stage(), region=find_region(options.region)))
    except (DeployError, BotoCoreError, ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
