"""What newcomers and the forge use runs the same commands as everybody, and names what exists."""

import re
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[3]
MAKEFILE = (PROJECT / "Makefile").read_text()


def recipe(target: str) -> list[str]:
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found, target
    return [line.strip().replace("$(BIN)", "venv/bin") for line in found[1].splitlines()]


def test_the_workflow_runs_what_must_pass_before_a_change_lands_on_the_oldest_python_and_java() -> None:
    workflow = yaml.safe_load((PROJECT / ".github/workflows/tests.yaml").read_text())
    steps = workflow["jobs"]["tests"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]
    versions = {name: value for step in steps for name, value in step.get("with", {}).items() if "version" in name}
    assert versions == {"python-version": "3.11", "java-version": "17"}
    called = re.findall(r"^make ([\w-]+)$", (PROJECT / ".ci/run").read_text(), re.MULTILINE)
    assert {"lint", "test", "test-integration", "demo"} <= set(called)
    for target in called:
        assert recipe(target)


def test_the_hooks_of_pre_commit_are_the_checks_of_make_lint() -> None:
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    checks = [hook["entry"].replace(" --force-exclude", "") for hook in hooks]
    assert sorted(checks) == sorted(line.removesuffix(" .") for line in recipe("lint"))


def test_issue_forms_ask_for_what_a_report_needs_and_have_the_parts_that_the_forge_demands() -> None:
    forms = {path.name: yaml.safe_load(path.read_text()) for path in (PROJECT / ".github/ISSUE_TEMPLATE").iterdir()}
    assert set(forms) == {"bug.yaml", "idea.yaml", "config.yml"}
    for name in ("bug.yaml", "idea.yaml"):
        form = forms[name]
        assert form["name"]
        assert form["description"]
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)
    required = {field["id"] for field in forms["bug.yaml"]["body"] if field.get("validations", {}).get("required")}
    assert required == {"seen", "expected", "doctor", "version"}
