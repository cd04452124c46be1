"""The built wheel, tested with every Python and every Spark that it is for, and over Spark Connect: `make test-matrix`.

`python -m dev.matrix --python 3.12 --spark 4.2` runs a part. Each combination has an environment of its own in build/matrix. What came
out is kept in docs/compatibility.json, from which the table in docs/compatibility.md is made.
"""

import argparse
import datetime
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args
from xml.etree import ElementTree

PROJECT = Path(__file__).parents[1]
FOLDER = PROJECT / "build" / "matrix"
PINS = PROJECT / "dev-requirements.txt"
RESULTS = PROJECT / "docs" / "compatibility.json"
PAGE = PROJECT / "docs" / "compatibility.md"
BLOCK = re.compile(r"(<!-- results -->\n).*?(<!-- end of results -->)", re.DOTALL)

Kind = Literal["spark", "connect", "lowest"]
SESSIONS: Mapping[Kind, str] = {
    "spark": "in the process",
    "connect": "Spark Connect",
    "lowest": "in the process, lowest requirements",
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SPARKS = ("4.1", "4.2", "4.3")
# The Python with which every Spark is run; the others are run with the Spark that is pinned.
_ONE_PYTHON = "3.12"
_CONNECT_PACKAGES = ("grpcio==1.85.1", "grpcio-status==1.85.1", "googleapis-common-protos==1.76.0")
_LOWEST_EXTRAS = ("aws", "iceberg", "service", "sql")
# One or several of all that is done on Spark: a combination is to take two minutes.
_SPARK_TESTS = (
    "tests/spark/test_compaction.py",
    "tests/spark/test_document_tables.py",
    "tests/spark/test_hanging_jobs.py",
    "tests/spark/test_many_partitions.py",
    "tests/spark/test_models_in_spark.py",
    "tests/spark/test_types.py",
    "tests/spark/test_changes.py::test_a_stream_of_a_feed_makes_another_table_the_same",
    "tests/spark/test_format.py::test_options_are_honoured_and_filters_hold",
    "tests/spark/test_format.py::test_tables_created_in_sql_are_read_and_wrong_options_are_refused",
    "tests/spark/test_format.py::test_a_data_frame_is_written_as_one_commit_under_the_options_that_a_write_has",
    "tests/spark/test_format.py::test_an_overwrite_replaces_the_table_or_the_partitions_that_rows_belong_to",
    "tests/spark/test_format.py::test_filters_mean_what_they_mean_to_spark_with_and_without_push_down",
    "tests/spark/test_frames.py::test_executors_write_one_delta_that_the_driver_commits",
    "tests/spark/test_frames.py::test_compacted_rows_come_back_as_a_frame_and_by_format",
    "tests/spark/test_frames.py::test_frames_can_include_what_is_not_compacted_and_show_older_states",
    "tests/spark/test_frames.py::test_exactly_the_dead_rows_are_left_out",
    "tests/spark/test_log_interop.py::test_spark_goes_on_with_a_log_that_we_began",
    "tests/spark/test_log_interop.py::test_we_go_on_with_a_log_that_spark_began_and_spark_after_us",
    "tests/spark/test_streams.py::test_a_batch_is_written_once_by_a_function_of_three_lines",
    "tests/spark/test_streams.py::test_a_stream_of_change_events_is_the_table_of_the_source",
    "tests/spark/test_streams.py::test_documents_take_streams",
)
# Commands find the server by SPARK_REMOTE.
_CONNECT_TESTS = ("tests/spark/test_cli_compaction.py",)
# What meets other packages: files, stores, numbers and times, pages, commands and databases.
_UNIT_TESTS = (
    "tests/unit/cdc",
    "tests/unit/cli/test_table_commands.py",
    "tests/unit/documents/test_language.py",
    "tests/unit/log",
    "tests/unit/publish/test_delta.py",
    "tests/unit/rows/test_fold.py",
    "tests/unit/service/test_database.py",
    "tests/unit/table/test_where.py",
    "tests/unit/test_objects.py",
    "tests/unit/test_written_data.py",
    "tests/unit/web/test_pages.py",
)
_ASK_VERSIONS = """
import importlib.metadata, json, platform, siltstone, siltstone.java
names = ("pyspark", "pyarrow", "pandas", "numpy", "obstore")
versions = {"python": platform.python_version(), "java": siltstone.java.find_java().detail.split()[0]}
versions.update((name, importlib.metadata.version(name)) for name in names)
print(json.dumps({"file": siltstone.__file__, "versions": versions}))
"""


@dataclass(frozen=True, order=True)
class Combination:
    """What the wheel is run with: minor versions of Python and Spark, and where the session is."""

    kind: Kind
    python: str
    spark: str

    @property
    def title(self) -> str:
        """What to call it."""
        return f"Python {self.python}, pyspark {self.spark}, {SESSIONS[self.kind]}"

    @property
    def folder(self) -> Path:
        """Where its environment is."""
        return FOLDER / f"{self.kind}-{self.python}-{self.spark}"


@dataclass(frozen=True)
class Result:
    """What came out of a combination, on which day, and with which versions; `failures` name what did not pass."""

    combination: Combination
    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    passed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    seconds: int = 0

    @property
    def verdict(self) -> str:
        """What to say of it."""
        counts = f"{self.passed} passed, {len(self.failures)} failed, {self.skipped} skipped"
        return f"{counts} in {self.seconds} s"


class SetupError(Exception):
    """An environment cannot be made, or its tests did not run to their end; the message says why."""


def all_combinations() -> list[Combination]:
    """Return what can be asked for."""
    kinds: tuple[Kind, ...] = ("spark", "connect")
    product = [Combination(*each) for each in itertools.product(kinds, PYTHONS, SPARKS)]
    return [*product, Combination("lowest", PYTHONS[0], SPARKS[0])]


def usual_combinations() -> list[Combination]:
    """Return what is run if nothing else is asked for: every Python, every Spark, every Spark over Connect, and the lowest bounds."""
    pinned = pinned_spark()
    return [
        each
        for each in all_combinations()
        if each.kind == "lowest" or each.python == _ONE_PYTHON or (each.kind == "spark" and each.spark == pinned)
    ]


def choose(pythons: Sequence[str], sparks: Sequence[str], kinds: Sequence[Kind]) -> list[Combination]:
    """Return the combinations of some Pythons, Sparks and kinds; of the usual ones unless both versions are given."""
    return [
        each
        for each in (all_combinations() if pythons and sparks else usual_combinations())
        if each.python in (pythons or PYTHONS) and each.spark in (sparks or SPARKS) and each.kind in (kinds or SESSIONS)
    ]


def find_interpreter(minor: str) -> str | None:
    """Return the interpreter of a minor version that is on the PATH, else the newest that pyenv has; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    installed = sorted(pyenv.glob(f"{minor}.*"), key=lambda folder: [int(n) for n in re.findall(r"\d+", folder.name)])
    candidates = [shutil.which(f"python{minor}"), *(str(folder / "bin" / "python") for folder in reversed(installed))]
    check = f"import sys; sys.exit(sys.version_info[:2] != {tuple(map(int, minor.split('.')))})"
    for candidate in candidates:
        # What pyenv puts on the PATH fails where the version is not chosen.
        if candidate is not None and _succeeds([candidate, "-c", check]):
            return candidate
    return None


def pinned_spark() -> str:
    """Return the minor version of Spark that is pinned."""
    return ".".join(pinned_version("pyspark").split(".")[:2])


def pinned_version(name: str) -> str:
    """Return the version of a package that is pinned, whatever the Python."""
    match = re.search(rf"^{re.escape(name)}==(\S+)", PINS.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
    if match is None:
        raise SetupError(f"{name} is not in {PINS.name}; run `make lock`")
    return match[1]


def pins_without(name: str) -> str:
    """Return all pins with their hashes but those of a package."""
    text = PINS.read_text(encoding="utf-8")
    return re.sub(rf"^{re.escape(name)}==.*\n(?:[ \t].*\n)*", "", text, flags=re.MULTILINE)


def tools() -> list[str]:
    """Return the packages that tests need beside ours, as pinned."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = [re.split(r"[<>=]", line)[0] for line in (*extras["dev"], *extras["testing"])]
    return [f"{name}=={pinned_version(name.split('[')[0])}" for name in names if not name.startswith(project["name"])]


def install_commands(combination: Combination, python: Path, wheel: Path) -> Iterator[list[str | Path]]:
    """Yield the commands that install the wheel and what its tests need."""
    uv = Path(sys.executable).with_name("uv")
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
    if combination.kind == "lowest":
        extras = [word for extra in _LOWEST_EXTRAS for word in ("--extra", extra)]
        # Of a wheel, the bounds would not be those of direct requirements.
        lowest: list[str | Path] = [
            "--resolution",
            "lowest-direct",
            "--requirements",
            PROJECT / "pyproject.toml",
            *extras,
        ]
        yield [*install, *lowest, *tools()]
        yield [*install, "--no-deps", wheel]
        return
    constraints = combination.folder / "constraints.txt"
    constraints.write_text(pins_without("pyspark"), encoding="utf-8")
    is_pinned = combination.spark == pinned_spark()
    spark = f"pyspark=={pinned_version('pyspark') if is_pinned else combination.spark + '.*'}"
    connect = _CONNECT_PACKAGES if combination.kind == "connect" else ()
    yield [*install, "--constraints", constraints, f"siltstone[dev] @ {wheel.as_uri()}", spark, *connect]


def set_up(combination: Combination, interpreter: str, wheel: Path) -> Path:
    """Return the Python of an environment with the wheel, made from nothing. Raises: SetupError."""
    shutil.rmtree(combination.folder, ignore_errors=True)
    combination.folder.mkdir(parents=True)
    uv = Path(sys.executable).with_name("uv")
    _run([uv, "venv", "--quiet", "--python", interpreter, combination.folder / "venv"])
    python = combination.folder / "venv" / "bin" / "python"
    for command in install_commands(combination, python, wheel):
        _run(command)
    return python


def find_versions(combination: Combination, python: Path) -> dict[str, str]:
    """Return the versions in an environment. Raises: SetupError, also where it is not the wheel that would be tested."""
    asked = json.loads(_run([python, "-c", _ASK_VERSIONS], cwd=combination.folder))
    if not Path(asked["file"]).is_relative_to(combination.folder):
        raise SetupError(f"{combination.title}: would test {asked['file']} instead of the wheel")
    versions: dict[str, str] = asked["versions"]
    return versions


def test_command(combination: Combination, python: Path, report: Path) -> list[str | Path]:
    """Return the command that runs the tests of a combination."""
    pytest: list[str | Path] = [python, "-m", "pytest", "-n", "2", f"--junitxml={report}", *_SPARK_TESTS]
    return [*pytest, *_CONNECT_TESTS, "--connect"] if combination.kind == "connect" else [*pytest, *_UNIT_TESTS]


def run_tests(combination: Combination, python: Path) -> tuple[int, int, tuple[str, ...]]:
    """Run the tests, show how they come along, and return (passed, skipped, names of those that failed). Raises: SetupError."""
    report, log = combination.folder / "tests.xml", combination.folder / "tests.log"
    # Spark's archive of classes goes with the environment.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "SILTSTONE_CACHE": str(combination.folder / "cache")}
    for name in ("PYTHONPATH", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_PYTHON"):
        environment.pop(name, None)
    command = test_command(combination, python, report)
    with log.open("wb") as file, _started(command, environment) as process:
        assert process.stdout is not None
        # Not by lines: a line of pytest's is many tests.
        while chunk := os.read(process.stdout.fileno(), 1 << 16):
            file.write(chunk)
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    if not report.exists():
        raise SetupError(f"pytest ended with {process.returncode} and no report; see {log.relative_to(PROJECT)}")
    return read_report(report)


def _started(command: Sequence[str | Path], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def read_report(report: Path) -> tuple[int, int, tuple[str, ...]]:
    """Return (passed, skipped, names of those that failed) of a JUnit report."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))  # noqa: S314 - our own file
    failures = tuple(
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    return len(cases) - len(failures) - skipped, skipped, failures


def run(combination: Combination, interpreter: str, wheel: Path) -> Result:
    """Make the environment of a combination, run its tests, and return what came out."""
    started = time.monotonic()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions: dict[str, str] = {}
    try:
        python = set_up(combination, interpreter, wheel)
        versions = find_versions(combination, python)
        passed, skipped, failures = run_tests(combination, python)
    except SetupError as error:
        passed, skipped, failures = 0, 0, (str(error),)
    return Result(combination, today, versions, passed, skipped, failures, round(time.monotonic() - started))


def read_results(path: Path = RESULTS) -> dict[Combination, Result]:
    """Return what came out of each combination when it was run last."""
    if not path.exists():
        return {}
    results = [
        Result(**{**each, "combination": Combination(**each["combination"]), "failures": tuple(each["failures"])})
        for each in json.loads(path.read_text(encoding="utf-8"))
    ]
    return {result.combination: result for result in results}


def write_results(results: Mapping[Combination, Result], path: Path = RESULTS, page: Path = PAGE) -> None:
    """Write what came out, and put it into the page."""
    ordered = [asdict(results[combination]) for combination in sorted(results, key=_order)]
    path.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
    page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def filled(text: str, results: Mapping[Combination, Result]) -> str:
    """Return the text of the page with a table of results."""
    table = "\n".join(table_lines(results))
    return BLOCK.sub(lambda block: f"{block[1]}{table}\n{block[2]}", text)


def table_lines(results: Mapping[Combination, Result]) -> Iterator[str]:
    """Yield the lines of the table: one for each combination that is usually run, or was."""
    names = ("pyarrow", "pandas", "numpy", "obstore")
    head = ["Python", "PySpark", "session", "Java", *names, "passed", "failed", "skipped", "on"]
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for combination in sorted({*usual_combinations(), *results}, key=_order):
        result = results.get(combination)
        if result is None:
            cells = [
                combination.python,
                combination.spark,
                SESSIONS[combination.kind],
                *[""] * 5,
                "not run",
                "",
                "",
                "",
            ]
        else:
            versions = result.versions
            of = [versions.get("python", combination.python), versions.get("pyspark", combination.spark)]
            others = [versions.get(name, "") for name in ("java", *names)]
            counts = [f"{result.passed:,}", f"{len(result.failures):,}", f"{result.skipped:,}"]
            cells = [*of, SESSIONS[combination.kind], *others, *counts, result.date]
        yield "| " + " | ".join(cells) + " |"


def _order(combination: Combination) -> tuple[object, ...]:
    return get_args(Kind).index(combination.kind), combination.spark, combination.python


def _run(command: Sequence[str | Path], cwd: Path = PROJECT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SetupError(f"{' '.join(map(str, command))} failed: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


def build_wheel() -> Path:
    """Build the wheel that is tested, and return it. Raises: SetupError."""
    folder = FOLDER / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, PROJECT])
    (wheel,) = folder.glob("*.whl")
    return wheel


def main() -> int:
    """Run combinations, and return 1 if one of them failed, or if there is no interpreter for one that was asked for."""
    parser = argparse.ArgumentParser(prog="make test-matrix ARGS=…", description=__doc__)
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=[], help="only these Pythons")
    parser.add_argument("--spark", nargs="+", choices=SPARKS, default=[], help="only these Sparks")
    parser.add_argument("--kind", nargs="+", choices=get_args(Kind), default=[], help="only sessions of these kinds")
    asked = parser.parse_args()
    combinations = choose(asked.python, asked.spark, asked.kind)
    if not combinations:
        parser.error("that is none of the usual combinations; give both --python and --spark for others")
    interpreters = {minor: find_interpreter(minor) for minor in sorted({each.python for each in combinations})}
    missing = [minor for minor, interpreter in interpreters.items() if interpreter is None]
    for minor in missing:
        print(f"Python {minor} was not found, neither on the PATH as python{minor} nor in pyenv: not run")
    runs = [(each, found) for each in combinations if (found := interpreters[each.python]) is not None]
    wheel = build_wheel() if runs else None
    failed = []
    for number, (combination, interpreter) in enumerate(runs, 1):
        assert wheel is not None
        print(f"[{number}/{len(runs)}] {combination.title}: with {interpreter}", flush=True)
        result = run(combination, interpreter, wheel)
        write_results({**read_results(), combination: result})
        print(f"[{number}/{len(runs)}] {combination.title}: {result.verdict}", flush=True)
        if result.failures:
            failed.append(result)
    for result in failed:
        print("\n".join([f"\n{result.combination.title}:", *(f"  {name}" for name in result.failures)]))
    print(f"{len(runs) - len(failed)} of {len(runs)} combinations passed")
    return 1 if failed or (asked.python and missing) else 0


if __name__ == "__main__":
    sys.exit(main())
