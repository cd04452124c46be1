"""Whose deployment it is: the stage in the names of buckets and jobs, the region, and clients for both."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient
    from mypy_boto3_s3 import S3Client

DEFAULT_REGION = "us-east-1"
_STAGE = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
# The longest name made of it is that of a bucket, which may have 63 characters.
_STAGE_LIMIT = 63 - len("siltstone-glue-scripts-")


class DeployError(Exception):
    """Something is not as a deployment needs it; the message says what to do."""


def find_stage(environment: Mapping[str, str] | None = None) -> str:
    """Return $SILTSTONE_STAGE, else $USER, as it may stand in the name of a bucket. Raises: DeployError."""
    env = os.environ if environment is None else environment
    stage = env.get("SILTSTONE_STAGE") or env.get("USER") or env.get("LOGNAME") or ""
    if not stage:
        raise DeployError("neither SILTSTONE_STAGE nor USER is set; run e.g. export SILTSTONE_STAGE=dev")
    name = stage.lower().replace("_", "-").replace(".", "-")
    if not _STAGE.fullmatch(name) or len(name) > _STAGE_LIMIT:
        raise DeployError(
            f"stage {stage!r} cannot be part of a bucket's name: use up to {_STAGE_LIMIT} letters, digits and hyphens, "
            "e.g. export SILTSTONE_STAGE=dev"
        )
    return name


def find_region(region: str | None = None) -> str:
    """Return the region asked for, else that of the environment or profile, else us-east-1."""
    return region or os.environ.get("AWS_REGION") or boto3.Session().region_name or DEFAULT_REGION


def s3_client(region: str) -> "S3Client":
    """Return a client that signs for a region. Stores other than AWS get their buckets in the path of the address."""
    elsewhere = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    style = Config(signature_version="s3v4", s3={"addressing_style": "path" if elsewhere else "auto"})
    return boto3.client("s3", region_name=region, config=style)


def glue_client(region: str) -> "GlueClient":
    """Return a client for the jobs of a region."""
    return boto3.client("glue", region_name=region)
