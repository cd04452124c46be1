"""A Glue job that runs a script on Spark with a wheel of ours: defined anew when something changed, started, followed."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from dev.deploy.aws.buckets import ensure_bucket, error_code, scripts_bucket
from dev.deploy.aws.stage import DeployError, s3_client

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient

# What a version of Glue runs; the Python side of Spark has to be of the same version.
SPARK_OF_GLUE = {"6.0": "4.1.1"}
GLUE_VERSION = "6.0"
WORKER_TYPE = "G.1X"
WORKERS = 2
MODULES = "--additional-python-modules"
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED", "ERROR", "TIMEOUT", "EXPIRED")
# What of a job's definition is ours to set; the rest is as somebody made it.
_DEFINED = ("Role", "Command", "DefaultArguments", "GlueVersion", "WorkerType", "NumberOfWorkers", "ExecutionProperty")


@dataclass(frozen=True)
class JobRequest:
    """What a job is to be like; None leaves it as it was."""

    name: str
    script_uri: str
    modules: str
    role: str | None = None
    workers: int | None = None


def job_name(stage: str) -> str:
    """Return the name of a stage's job."""
    return f"siltstone-runner-{stage}"


def upload_script(script: Path, *, stage: str, region: str) -> str:
    """Upload a script to the bucket for scripts, which is created where it is missing; return its address."""
    bucket = scripts_bucket(stage)
    placed = ensure_bucket(bucket, region)
    s3_client(placed).upload_file(str(script), bucket, script.name)
    return f"s3://{bucket}/{script.name}"


def modules_of(wheel_uri: str) -> str:
    """Return what a job installs: the wheel, and the Python side of the Spark that it finds there."""
    return f"{wheel_uri},pyspark=={SPARK_OF_GLUE[GLUE_VERSION]}"


def find_job(client: "GlueClient", name: str) -> dict[str, Any] | None:
    """Return a job's definition, None where there is no such job."""
    try:
        return dict(client.get_job(JobName=name)["Job"])
    except ClientError as error:
        if error_code(error) == "EntityNotFoundException":
            return None
        raise


def define_job(client: "GlueClient", request: JobRequest) -> str:
    """Create the job, or update it where it is another; return which: created, updated or unchanged.

    Raises: DeployError where a new job has no role.
    """
    known = find_job(client, request.name)
    wanted = _definition(request, known or {})
    if known is None:
        client.create_job(Name=request.name, **wanted)
        return "created"
    if all(known.get(key) == value for key, value in wanted.items()):
        return "unchanged"
    client.update_job(JobName=request.name, JobUpdate=wanted)  # type: ignore[arg-type]
    return "updated"


def _definition(request: JobRequest, known: Mapping[str, Any]) -> dict[str, Any]:
    role = request.role or known.get("Role")
    if not role:
        raise DeployError(f"job {request.name} does not exist yet: say --glue-iam-role, e.g. AWSGlueServiceRole")
    arguments = {
        **known.get("DefaultArguments", {}),
        MODULES: request.modules,
        "--job-language": "python",
        "--enable-metrics": "true",
    }
    return {
        **{key: known[key] for key in _DEFINED if key in known},
        "Role": role,
        "Command": {"Name": "glueetl", "ScriptLocation": request.script_uri, "PythonVersion": "3"},
        "DefaultArguments": arguments,
        "GlueVersion": GLUE_VERSION,
        "WorkerType": WORKER_TYPE,
        "NumberOfWorkers": request.workers or known.get("NumberOfWorkers") or WORKERS,
        "ExecutionProperty": {"MaxConcurrentRuns": 2},
    }


def start_job(client: "GlueClient", name: str, arguments: Mapping[str, str]) -> str:
    """Start a run and return its id. Raises: DeployError where too many are running."""
    try:
        return client.start_job_run(JobName=name, Arguments=dict(arguments))["JobRunId"]
    except ClientError as error:
        if error_code(error) == "ConcurrentRunsExceededException":
            raise DeployError(f"job {name} has two runs already; wait for one of them, or stop it") from error
        raise


def wait_for_job(
    client: "GlueClient",
    name: str,
    run_id: str,
    tell: Callable[[str], None],
    *,
    pause: Callable[[], None] = lambda: time.sleep(10),
) -> tuple[str, str]:
    """Wait for the end of a run, telling each new state; return the last state, and what Glue says about it."""
    state = ""
    while True:
        run = client.get_job_run(JobName=name, RunId=run_id)["JobRun"]
        if run["JobRunState"] != state:
            state = run["JobRunState"]
            tell(state)
        if state in _ENDED:
            return state, run.get("ErrorMessage", "")
        pause()
