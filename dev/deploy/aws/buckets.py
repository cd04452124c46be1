"""The buckets of a stage: there after asking for them, in the right region, and ours."""

from botocore.exceptions import ClientError

from dev.deploy.aws.stage import DEFAULT_REGION, DeployError, s3_client


def packages_bucket(stage: str) -> str:
    """Return the name of the bucket that holds the wheels of a stage."""
    return f"siltstone-packages-{stage}"


def scripts_bucket(stage: str) -> str:
    """Return the name of the bucket that holds the scripts that jobs of a stage run."""
    return f"siltstone-glue-scripts-{stage}"


def ensure_bucket(bucket: str, region: str) -> str:
    """Create a bucket where it is missing, closed to the public, and return the region it is in.

    Raises: DeployError where the name belongs to another account.
    """
    found = find_bucket(bucket, region)
    if found is not None:
        return found
    client = s3_client(region)
    try:
        if region == DEFAULT_REGION:
            # The one region that refuses to be named as the place of a bucket.
            client.create_bucket(Bucket=bucket)
        else:
            client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})  # type: ignore[typeddict-item]
    except ClientError as error:
        if error_code(error) != "BucketAlreadyOwnedByYou":
            raise DeployError(f"bucket {bucket} could not be created in {region}: {error}") from error
    client.put_public_access_block(
        Bucket=bucket,
        PublicAccessBlockConfiguration={
            "BlockPublicAcls": True,
            "IgnorePublicAcls": True,
            "BlockPublicPolicy": True,
            "RestrictPublicBuckets": True,
        },
    )
    return region


def find_bucket(bucket: str, region: str) -> str | None:
    """Return the region of a bucket, None where there is no such bucket. Raises: DeployError."""
    try:
        answer = s3_client(region).head_bucket(Bucket=bucket)
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
        if status == 404:
            return None
        if status in (301, 400) and "x-amz-bucket-region" in headers:
            return str(headers["x-amz-bucket-region"])
        if status == 403:
            raise DeployError(
                f"bucket {bucket}: access denied. Either the credentials are wrong, or the name belongs to another "
                "account; check AWS_PROFILE, or choose another name by export SILTSTONE_STAGE=…"
            ) from error
        raise DeployError(f"bucket {bucket} could not be looked at: {error}") from error
    headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
    return headers.get("x-amz-bucket-region") or region


def error_code(error: ClientError) -> str:
    """Return what the service calls the error."""
    return str(error.response.get("Error", {}).get("Code", ""))
