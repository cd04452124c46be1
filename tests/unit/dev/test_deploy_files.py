"""The files for containers, clusters and monitoring: they name what there is."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from siltstone.cli.main import app
from tests.unit.web.conftest import service as service
from tests.unit.web.serving import Service, exposition

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\bsiltstone_\w+")


def load(name: str) -> Any:
    (document,) = yaml.safe_load_all((DEPLOY / name).read_text())
    return document


def exported(service: Service) -> set[str]:
    """The names of all metrics of a service in which a table fails, and another one is paused."""
    text = exposition(service)
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_dashboard_and_alerts_ask_for_metrics_that_there_are(service: Service) -> None:
    names = exported(service)
    asked = set(METRIC.findall((DEPLOY / "prometheus/alerts.yaml").read_text()))
    asked |= set(METRIC.findall((DEPLOY / "grafana/siltstone.json").read_text()))
    assert asked <= names, asked - names


def test_every_alert_says_what_to_do() -> None:
    rules = [rule for group in load("prometheus/alerts.yaml")["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all({"summary", "description"} <= rule["annotations"].keys() for rule in rules)
    assert {rule["labels"]["severity"] for rule in rules} == {"page", "ticket"}


def test_panels_of_the_dashboard_have_places_of_their_own() -> None:
    panels = json.loads((DEPLOY / "grafana/siltstone.json").read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_commands_of_containers_are_commands() -> None:
    from typer.main import get_command
    from typer.testing import CliRunner

    compose = load("compose.yaml")["services"]
    (nodes,) = (
        document["spec"]["template"]["spec"]["containers"]
        for document in yaml.safe_load_all((DEPLOY / "kubernetes/siltstone.yaml").read_text())
        if document["kind"] == "StatefulSet"
    )
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    default = json.loads(dockerfile.rpartition("CMD ")[2])
    commands = [default, compose["leader"]["command"], compose["worker"]["command"], nodes[0]["args"]]
    serve: Any = get_command(app)
    known = serve.commands["serve"].params
    options = {name for each in known for name in (*each.opts, *each.secondary_opts)}
    for command in commands:
        assert command[0] == "serve"
        assert {word.partition("=")[0] for word in command if word.startswith("--")} <= options
    assert CliRunner().invoke(app, ["serve", "--help"]).exit_code == 0


def test_the_entrypoint_runs_commands_and_starts_executors_as_spark_asks(tmp_path: Path) -> None:
    for name in ("siltstone", "java"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3").write_text("#!/bin/sh\necho /spark\n")
    (tmp_path / "python3").chmod(0o755)
    names = ("MEMORY", "ID", "CORES", "POD_IP", "POD_NAME")
    settings = {f"SPARK_EXECUTOR_{name}": name.lower() for name in names}
    settings |= {"SPARK_DRIVER_URL": "url", "SPARK_APPLICATION_ID": "app", "SPARK_RESOURCE_PROFILE_ID": "0"}
    settings |= {"SPARK_JAVA_OPT_0": "-Da=1 2", "SPARK_JAVA_OPT_1": "-Db=3", "PATH": f"{tmp_path}:/usr/bin:/bin"}

    def run(*words: str) -> str:
        entrypoint = [str(DEPLOY / "entrypoint.sh"), *words]
        return subprocess.run(entrypoint, env=settings, capture_output=True, text=True, check=True).stdout

    assert run("cycle", "status") == "siltstone cycle status\n"
    started = run("executor")
    assert started.startswith("java -Da=1 2 -Db=3 -Xmsmemory -Xmxmemory -cp /spark/jars/* org.apache.spark.")
    assert "--driver-url url --executor-id id --cores cores --app-id app --hostname pod_ip" in started
