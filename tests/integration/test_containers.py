"""The files for containers: valid by the schemas of those who read them; and the image, step by step, without a container engine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone
from tests.waiting import wait_for

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
UV = Path(sys.executable).parent / "uv"
VALIDATORS = ("kubernetes-validate==1.37.0", "check-jsonschema==0.39.0")
# What would change this machine: a container starts from an image that has none of it.
OF_THE_MACHINE = ("apt-get", "useradd", "rm", "install")
TOKEN = "a-long-enough-token-for-tests"


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = PROJECT) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def validators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that check files by schemas that came with them."""
    folder = tmp_path_factory.mktemp("validators") / "venv"
    run(UV, "venv", "--python", sys.executable, folder)
    run(UV, "pip", "install", "--python", folder / "bin/python", *VALIDATORS)
    return folder / "bin"


def is_manifest(validators: Path, path: Path) -> bool:
    command: list[str | Path] = [validators / "kubernetes-validate", "--strict", "-k", "1.37", path]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def is_compose_file(validators: Path, path: Path) -> bool:
    command: list[str | Path] = [validators / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_manifests_are_valid_by_the_schemas_of_kubernetes(validators: Path, tmp_path: Path) -> None:
    manifest = DEPLOY / "kubernetes/siltstone.yaml"
    assert is_manifest(validators, manifest)
    for right, wrong in (("replicas: 2", "replicas: two"), ("serviceName:", "servicename:")):
        text = manifest.read_text()
        assert right in text
        (tmp_path / "wrong.yaml").write_text(text.replace(right, wrong))
        assert not is_manifest(validators, tmp_path / "wrong.yaml")


def test_the_compose_file_is_valid_by_the_compose_specification(validators: Path, tmp_path: Path) -> None:
    compose = DEPLOY / "compose.yaml"
    assert is_compose_file(validators, compose)
    (tmp_path / "wrong.yaml").write_text(compose.read_text().replace("restart:", "restarts:"))
    assert not is_compose_file(validators, tmp_path / "wrong.yaml")


def instructions() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Dockerfile, each with its words on one line."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


class Stage:
    """A stage of the image: a folder instead of the root of a file system, with a Python of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root
        self.environment = {**os.environ, "PATH": f"{root}/venv/bin:{os.environ['PATH']}"}
        self.not_run: list[str] = []
        root.mkdir()
        run(UV, "venv", "--seed", "--python", sys.executable, root / "venv")

    def inside(self, text: str) -> str:
        """Let absolute paths be those of the stage."""
        return re.sub(r"(?<![\w.:/])/(?=[a-z])", f"{self.root}/", text)

    def copy(self, source: Path, names: list[str], target: str) -> None:
        place = Path(self.inside(target)) if target.startswith("/") else self.folder / target
        for name in names:
            found = source / name.lstrip("/")
            is_folder = target.endswith("/") or place.is_dir()
            if found.is_dir():
                shutil.copytree(
                    found, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
                )
            else:
                destination = place / found.name if is_folder else place
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, destination)

    def run(self, command: str) -> None:
        for step in map(str.strip, command.split("&&")):
            if shlex.split(step)[0] in OF_THE_MACHINE:
                self.not_run.append(step)
            else:
                run("sh", "-ec", self.inside(step), env=self.environment, cwd=self.folder)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """What the steps of the Dockerfile make in an empty folder."""
    folder = tmp_path_factory.mktemp("image")
    stages: dict[str, Stage] = {}
    for word, rest in instructions():
        if word == "FROM":
            stage = Stage(folder / f"stage-{len(stages)}")
            stages[rest.partition(" AS ")[2] or "last"] = stage
        elif word == "WORKDIR":
            stage.folder = Path(stage.inside(rest))
            stage.folder.mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            *names, target = rest.split()
            source = PROJECT
            if names[0].startswith("--from="):
                source = stages[names.pop(0).removeprefix("--from=")].root
            stage.copy(source, names, target)
        elif word == "RUN":
            stage.run(rest)
        elif word == "ENV":
            pairs = dict(pair.split("=", 1) for pair in rest.split())
            stage.environment |= {name: stage.inside(value) for name, value in pairs.items()}
    return stages["last"]


def test_the_steps_of_the_dockerfile_install_a_service_that_answers(image: Stage) -> None:
    # All that was not run is what prepares the machine.
    assert [shlex.split(step)[0] for step in image.not_run] == ["apt-get", "apt-get", "rm", "rm", "useradd", "install"]
    last = dict(instructions())
    entrypoint, command = json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])
    assert entrypoint[:2] == ["tini", "--"]
    program = image.root / "usr/local/bin" / entrypoint[2]
    version = run(program, "--version", env=image.environment, cwd=image.folder)
    assert version.strip() == f"siltstone {siltstone.__version__}"
    token = image.root / "run/secrets/siltstone_token"
    token.parent.mkdir(parents=True)
    token.write_text(TOKEN)
    # This machine's other addresses are left alone, and so is the port, which may be in use.
    words = [image.inside(word) if word.startswith("/") else word.replace("0.0.0.0", "127.0.0.1") for word in command]
    log = image.root / "service.log"
    with log.open("wb") as output:
        served = subprocess.Popen(
            [program, *words, "--port", "0", "--no-worker"],
            env=image.environment,
            cwd=image.folder,
            stdout=output,
            stderr=output,
        )
    try:
        address = wait_for("an address", lambda: re.search(r"http://127\.0\.0\.1:\d+/", log.read_text()))
        assert urllib.request.urlopen(f"{address[0]}healthz", timeout=60).status == 200
        served.terminate()
        assert served.wait(60) == 0
    finally:
        served.kill()
        served.wait()
