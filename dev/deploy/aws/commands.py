"""What `runner.py` takes: a script, and where to run it: as a Glue job, in this process's place, or on any Spark."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyspark
from botocore.exceptions import BotoCoreError, ClientError

from dev.deploy.aws import glue
from dev.deploy.aws.buckets import ensure_bucket, packages_bucket
from dev.deploy.aws.deploy_s3 import deploy, tell
from dev.deploy.aws.stage import DeployError, find_region, find_stage, glue_client
from dev.deploy.aws.wheels import WORKSPACE, build_wheel, newest_wheel


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if not options.script.is_file():
            raise DeployError(f"{options.script}: no such script")
        return int(options.run(options))
    except (DeployError, BotoCoreError, ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runner.py", description="Run a script that uses Siltstone.")
    where = parser.add_subparsers(required=True, metavar="WHERE")
    aws = where.add_parser("aws", help="on AWS").add_subparsers(required=True, metavar="SERVICE")
    job = aws.add_parser("glue", help="as a Glue job", description=run_on_glue.__doc__)
    job.add_argument("--glue-iam-role", metavar="ROLE", help="the job's role; needed once, to create the job")
    job.add_argument("--region", metavar="R", help="default: that of the environment, else us-east-1")
    job.add_argument("--workers", type=_positive, metavar="N", help=f"default: as before, at first {glue.WORKERS}")
    job.add_argument("--wait", action="store_true", help="wait for the end; the exit code tells how it ended")
    job.set_defaults(run=run_on_glue)
    here = where.add_parser("local", help="on this machine", description=run_here.__doc__)
    here.set_defaults(run=run_here)
    submit = where.add_parser("submit", help="on any Spark", description=run_by_submitting.__doc__)
    submit.add_argument("--master", required=True, help="e.g. spark://host:7077, yarn, k8s://…, local[2]")
    submit.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    submit.set_defaults(run=run_by_submitting)
    for each in (job, here, submit):
        each.add_argument("script", type=Path, metavar="SCRIPT")
        each.add_argument(
            "--script-args",
            type=_script_arguments,
            default={},
            metavar="JSON",
            help="""arguments of the script, e.g. '{"--var1": "Try that"}'""",
        )
    for each in (job, submit):
        each.add_argument(
            "--deploy-local-siltstone", action="store_true", help="build the workspace, and run with that"
        )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _script_arguments(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from error
    if not isinstance(found, dict) or not all(isinstance(value, str | int | float) for value in found.values()):
        raise argparse.ArgumentTypeError("""write an object of names and values, e.g. '{"--var1": "Try that"}'""")
    return {f"--{name.lstrip('-')}": str(value) for name, value in found.items()}


def run_on_glue(options: argparse.Namespace) -> int:
    """Run a script as a Glue job on Spark.

    The script goes to the bucket for scripts, the job is created or updated, and a run is started. The job uses the
    wheel it used last, or else the newest in the bucket for packages; with --deploy-local-siltstone, one of the
    workspace, which is built and uploaded.
    """
    stage, region = find_stage(), find_region(options.region)
    client, name = glue_client(region), glue.job_name(stage)
    ensure_bucket(packages_bucket(stage), region)
    modules = _modules(options, stage, region)
    script_uri = glue.upload_script(options.script, stage=stage, region=region)
    print(f"uploaded {script_uri}")
    request = glue.JobRequest(name, script_uri, modules, options.glue_iam_role, options.workers)
    print(f"job {name} {glue.define_job(client, request)}; it installs {modules}")
    run_id = glue.start_job(client, name, options.script_args)
    print(f"started run {run_id}; to follow it:")
    for group in ("output", "error"):
        print(f"  aws logs tail /aws-glue/jobs/{group} --log-stream-names {run_id} --follow --region {region}")
    if not options.wait:
        print(f"  aws glue get-job-run --job-name {name} --run-id {run_id} --region {region}")
        return 0
    state, message = glue.wait_for_job(client, name, run_id, lambda each: print(f"{run_id} {each.lower()}"))
    if state != "SUCCEEDED":
        print(f"error: run {run_id} ended as {state}: {message or 'see the logs above'}", file=sys.stderr)
    return 0 if state == "SUCCEEDED" else 1


def _modules(options: argparse.Namespace, stage: str, region: str) -> str:
    if options.deploy_local_siltstone:
        wheel = deploy(stage=stage, region=region)
        tell(wheel)
        return glue.modules_of(wheel.uri)
    known = glue.find_job(glue_client(region), glue.job_name(stage)) or {}
    last_used = known.get("DefaultArguments", {}).get(glue.MODULES)
    if last_used:
        return str(last_used)
    newest = newest_wheel(stage=stage, region=region)
    if newest is None:
        raise DeployError(f"no wheel in s3://{packages_bucket(stage)} yet: say --deploy-local-siltstone")
    return glue.modules_of(newest.uri)


def run_here(options: argparse.Namespace) -> int:
    """Run a script with this Python. Its arguments are environment variables, too."""
    return _run([sys.executable, str(options.script)], options.script_args)


def run_by_submitting(options: argparse.Namespace) -> int:
    """Run a script by spark-submit; its driver is here. Its arguments are environment variables of it, too."""
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin/spark-submit"), "--master", options.master]
    for setting in options.conf:
        command += ["--conf", setting]
    with tempfile.TemporaryDirectory() as folder:
        if options.deploy_local_siltstone:
            command += ["--py-files", str(build_wheel(Path(folder)))]
        return _run([*command, str(options.script)], options.script_args, SPARK_HOME=str(home))


def _run(command: list[str], arguments: dict[str, str], **environment: str) -> int:
    environment.update({name.lstrip("-"): value for name, value in arguments.items()})
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    path = os.pathsep.join(filter(None, [str(WORKSPACE / "src"), os.environ.get("PYTHONPATH")]))
    words = [word for pair in arguments.items() for word in pair]
    done = subprocess.run([*command, *words], env={**os.environ, "PYTHONPATH": path, **environment}, check=False)  # noqa: S603
    return done.returncode
