"""What is built is what works: the wheel, in a virtual environment that has nothing else."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

import siltstone

PROJECT = Path(__file__).parents[2]

pytestmark = pytest.mark.integration


def run(*command: str | Path, cwd: Path = PROJECT) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_installs_into_an_empty_environment_and_works(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", PROJECT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"siltstone-{siltstone.__version__}-py3-none-any.whl"
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    uv = Path(sys.executable).parent / "uv"
    run(uv, "pip", "install", "--python", python, "--require-hashes", "-r", PROJECT / "requirements.txt")
    run(uv, "pip", "install", "--python", python, "--no-deps", wheel)
    run(uv, "pip", "check", "--python", python)
    command = tmp_path / "venv/bin/siltstone"
    assert siltstone.__version__ in run(command, "--version", cwd=tmp_path)
    name = "from pyspark_siltstone import DefaultSource; print(DefaultSource.name())"
    assert run(python, "-c", name, cwd=tmp_path).strip() == "siltstone"
    (tmp_path / "orders.csv").write_text("order_id,note\n1,a\n2,b\n")
    run(command, "table", "create", "shop.orders", "--key", "order_id", "--from", "orders.csv", cwd=tmp_path)
    assert "2 rows" in run(command, "write", "shop.orders", "orders.csv", cwd=tmp_path)
    serving = subprocess.run([command, "cycle", "status"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert serving.returncode == 1
    assert "the service needs sqlalchemy, psycopg: run pip install 'siltstone[service]'" in serving.stderr
