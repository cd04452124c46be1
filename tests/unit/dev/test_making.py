"""`make` on machines that have another Python, or no Java: it finds what there is, or says in one line what to install."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dev import ensure_java

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs on a machine that has neither Python nor Java."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PATH", str(programs))
    return programs


def put(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def find_python() -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", str(PROJECT / "dev" / "find_python.sh")], capture_output=True, text=True, check=False
    )


def test_the_first_python_that_runs_and_is_new_enough_is_taken(machine: Path) -> None:
    put(machine / "python3.11", "#!/bin/sh\necho 'pyenv: python3.11: command not found' >&2\nexit 127\n")
    put(machine / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert find_python().stdout == "python3\n"
    put(machine / "python3.14", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    put(machine / "python3.13", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert find_python().stdout == "python3.13\n"


@pytest.mark.parametrize("version", ["(3, 10)", "(3, 15)"])
def test_without_a_python_that_will_do_one_line_says_what_to_install(machine: Path, version: str) -> None:
    program = f"import sys; sys.version_info = (*{version}, 0); exec(sys.argv[2])"
    put(machine / "python3", f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    told = find_python()
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("Siltstone needs Python 3.11, 3.12, 3.13 or 3.14")
    assert told.stderr.count("\n") == 1


def test_java_is_looked_for_before_anything_is_installed(tmp_path: Path) -> None:
    make = shutil.which("make")
    assert make is not None
    for target in ("demo", "test", "test-integration"):
        steps = subprocess.run(
            [make, "--dry-run", target, f"VENV={tmp_path / 'venv'}"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert 0 <= steps.index("dev.ensure_java") < steps.index("-m venv") < steps.index("uv pip sync")


def test_without_java_one_line_says_what_to_install(machine: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-S", "-m", "dev.ensure_java"],
        cwd=PROJECT,
        env={"PATH": str(machine), "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("Spark needs Java 17 or newer (not found): install Java 17")
    assert told.stderr.count("\n") == 1


APT = """#!{python}
import os, sys
with open("{folder}/asked", "a") as file:
    print(*sys.argv[1:], file=file)
if sys.argv[-1] != "{package}":
    sys.exit(sys.argv[-1] != "update")
with open("{folder}/java", "w") as file:
    print("#!/bin/sh", "echo 'openjdk version \\"{version}\\"' >&2", sep=chr(10), file=file)
os.chmod("{folder}/java", 0o755)
"""


def put_apt(machine: Path, package: str, version: str) -> None:
    put(
        machine / "apt-get",
        APT.format(python=sys.executable, folder=machine, package=package, version=version),
    )


@pytest.mark.parametrize(
    ("package", "version", "is_enough"),
    [
        ("openjdk-17-jre-headless", "17.0.15", True),
        ("default-jre-headless", "21.0.1", True),
        ("default-jre-headless", "11.0.1", False),
        ("none-of-them", "17.0.15", False),
    ],
)
def test_root_gets_java_by_apt(
    machine: Path, monkeypatch: pytest.MonkeyPatch, package: str, version: str, is_enough: bool
) -> None:
    put_apt(machine, package, version)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert ensure_java.main() == (0 if is_enough else 1)
    assert (machine / "asked").read_text().startswith("-qq update\n")


@pytest.mark.parametrize(("user", "home"), [(1000, ""), (0, "/nothing")])
def test_nobody_else_gets_java_installed_nor_who_says_where_it_is(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], user: int, home: str
) -> None:
    put_apt(machine, "openjdk-17-jre-headless", "17.0.15")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("JAVA_HOME", home)
    assert ensure_java.main() == 1
    assert not (machine / "asked").exists()
    assert "JAVA_HOME" in capfd.readouterr().err


def test_a_java_that_is_there_is_left_as_it_is(machine: Path) -> None:
    put(machine / "java", "#!/bin/sh\necho 'openjdk version \"25\"' >&2\n")
    assert ensure_java.main() == 0
