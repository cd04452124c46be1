"""Deploying wheels and running scripts on Glue, against an endpoint of our own: what is asked for, and what is there then."""

import json
import re
import subprocess
import sys
import uuid
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from dev.deploy.aws import commands, deploy_s3, glue
from dev.deploy.aws.local_endpoint import start_endpoint
from dev.deploy.aws.wheels import WORKSPACE

import siltstone
from tests.integration.s3_proxy import Proxy, Request, proxy_to

pytestmark = pytest.mark.integration

ROLE = "AWSGlueServiceRole"
HELLO = str(WORKSPACE / "examples/hello_world.py")
LOGGING = str(WORKSPACE / "examples/basic_logging.py")
WHEEL = rf"siltstone-{re.escape(siltstone.__version__)}-\d{{10}}-py3-none-any\.whl"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = start_endpoint()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def stage() -> str:
    return uuid.uuid4().hex[:12]


@pytest.fixture
def account(endpoint: str, stage: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """An account of AWS that remembers what was asked of it; each test has a stage of its own."""
    with proxy_to(endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("SILTSTONE_STAGE", stage)
        yield proxy


def glue_calls(account: Proxy) -> list[tuple[str, dict[str, Any]]]:
    """Return what was asked of Glue, by name."""
    return [
        (request.headers["X-Amz-Target"].removeprefix("AWSGlue."), json.loads(request.body))
        for request in account.requests
        if "X-Amz-Target" in request.headers
    ]


def job_of(stage: str, region: str = "us-east-1") -> dict[str, Any]:
    job = glue.find_job(boto3.client("glue", region_name=region), f"siltstone-runner-{stage}")
    assert job is not None
    return job


def deployed(output: str) -> str:
    """Return the signed address that a deployment printed."""
    found = re.search(r"^pip install 'siltstone @ (http[^']+)'$", output, re.MULTILINE)
    assert found, output
    return found[1]


def test_a_deployed_wheel_installs_from_its_signed_address_into_an_empty_environment(
    account: Proxy, stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy_s3.main([]) == 0
    output = capsys.readouterr().out
    url = deployed(output)
    assert re.search(rf"/siltstone-packages-{stage}/{WHEEL}\?", url)
    assert "X-Amz-Expires=604800" in url

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    wanted = f"siltstone @ {url}"
    subprocess.run([python, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", wanted], check=True)
    ask = "import siltstone, sys; print(siltstone.__version__, siltstone.__file__)"
    done = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True, cwd=tmp_path)
    version, file = done.stdout.split()
    assert version == siltstone.__version__
    assert Path(file).is_relative_to(tmp_path)


@pytest.mark.parametrize(("region", "constraint"), [("us-east-1", None), ("eu-west-1", "eu-west-1")])
def test_the_bucket_is_created_once_and_in_the_region(
    account: Proxy, stage: str, region: str, constraint: str | None
) -> None:
    bucket = f"siltstone-packages-{stage}"
    for _ in range(2):
        assert deploy_s3.main(["--region", region]) == 0
    creations = [request for request in account.requests if request.method == "PUT" and request.path == f"/{bucket}"]
    assert len(creations) == 1
    assert (constraint is not None) == (b"LocationConstraint" in creations[0].body)
    client = boto3.client("s3", region_name=region)
    assert client.get_bucket_location(Bucket=bucket)["LocationConstraint"] == constraint
    blocked = client.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert set(blocked.values()) == {True}


def test_a_first_run_deploys_defines_the_job_and_starts_it(
    account: Proxy, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["aws", "glue", LOGGING, "--glue-iam-role", ROLE, "--workers", "4", "--deploy-local-siltstone"]
    assert commands.main([*arguments, "--script-args", '{"--var1": "Try that", "var2": 5}']) == 0
    output = capsys.readouterr().out

    job = job_of(stage)
    wheel, spark = job["DefaultArguments"]["--additional-python-modules"].split(",")
    assert re.fullmatch(rf"s3://siltstone-packages-{stage}/{WHEEL}", wheel)
    assert spark == "pyspark==4.1.1"
    assert job["Role"] == ROLE
    assert job["GlueVersion"] == "6.0"
    assert (job["WorkerType"], job["NumberOfWorkers"]) == ("G.1X", 4)
    script = f"s3://siltstone-glue-scripts-{stage}/basic_logging.py"
    assert job["Command"] == {"Name": "glueetl", "ScriptLocation": script, "PythonVersion": "3"}
    stored = boto3.client("s3").get_object(Bucket=f"siltstone-glue-scripts-{stage}", Key="basic_logging.py")
    assert stored["Body"].read() == Path(LOGGING).read_bytes()

    asked = glue_calls(account)
    assert [name for name, _ in asked if name != "GetJob"] == ["CreateJob", "StartJobRun"]
    assert asked[-2][1]["Arguments"] == {"--var1": "Try that", "--var2": "5"}
    run_id = re.search(r"started run (\w+)", output)
    assert run_id is not None
    assert f"aws logs tail /aws-glue/jobs/output --log-stream-names {run_id[1]} --follow --region us-east-1" in output


def test_a_later_run_uses_the_wheel_and_settings_used_last_and_updates_what_differs(account: Proxy, stage: str) -> None:
    first = ["aws", "glue", HELLO, "--glue-iam-role", ROLE, "--workers", "4", "--deploy-local-siltstone"]
    assert commands.main(first) == 0
    before = job_of(stage)
    account.requests.clear()

    assert commands.main(["aws", "glue", HELLO]) == 0
    assert [name for name, _ in glue_calls(account) if name != "GetJob"] == ["StartJobRun"]
    assert job_of(stage)["DefaultArguments"] == before["DefaultArguments"]
    account.requests.clear()

    assert commands.main(["aws", "glue", LOGGING, "--wait"]) == 0
    names = [name for name, _ in glue_calls(account) if name != "GetJob"]
    assert names[:2] == ["UpdateJob", "StartJobRun"]
    assert set(names[2:]) == {"GetJobRun"}
    after = job_of(stage)
    assert after["Command"]["ScriptLocation"].endswith("/basic_logging.py")
    same = ("Role", "NumberOfWorkers", "DefaultArguments")
    assert [after[name] for name in same] == [before[name] for name in same]


def test_waiting_ends_with_the_result_of_the_run(
    account: Proxy, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["aws", "glue", HELLO, "--glue-iam-role", ROLE, "--deploy-local-siltstone", "--wait"]) == 0
    assert " succeeded" in capsys.readouterr().out
    failed = {"JobRun": {"JobRunState": "FAILED", "ErrorMessage": "ModuleNotFoundError: no module named 'x'"}}
    account.answers.append((is_question_about_a_run, json.dumps(failed).encode()))
    assert commands.main(["aws", "glue", HELLO, "--wait"]) == 1
    assert "ended as FAILED: ModuleNotFoundError: no module named 'x'" in capsys.readouterr().err


def is_question_about_a_run(request: Request) -> bool:
    return request.headers.get("X-Amz-Target") == "AWSGlue.GetJobRun"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["aws", "glue", HELLO, "--glue-iam-role", ROLE], "no wheel in .*: say --deploy-local-siltstone"),
        (["aws", "glue", "nosuch.py"], "nosuch.py: no such script"),
        (["aws", "glue", HELLO, "--deploy-local-siltstone"], "does not exist yet: say --glue-iam-role"),
    ],
)
def test_what_is_missing_is_said(
    account: Proxy, stage: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(arguments) == 1
    assert re.search(told, capsys.readouterr().err)


def test_the_runner_is_a_script_with_usage_for_each_place_to_run() -> None:
    runner = WORKSPACE / "dev/deploy/aws/runner.py"
    done = subprocess.run([sys.executable, runner, "aws", "glue", "-h"], capture_output=True, text=True, check=True)
    for option in ("--glue-iam-role", "--region", "--script-args", "--deploy-local-siltstone", "--workers", "--wait"):
        assert option in done.stdout
