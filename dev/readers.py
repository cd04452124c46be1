"""Readers of other projects in environments of their own, since they need other releases than ours: `make readers`.

DuckDB has packages of its extensions for one release only, and Delta Lake and Iceberg have jars for older releases of Spark.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

ANSWER = "answer: "
FOLDER = Path(__file__).parents[1] / "readers"
SCRIPTS = Path(__file__).parent / "reader_scripts"
PACKAGES = {
    "duckdb": [
        "duckdb==1.5.5",
        "duckdb-extension-avro==1.5.5",
        "duckdb-extension-delta==1.5.5",
        "duckdb-extension-iceberg==1.5.5",
        "pyarrow==26.0.1",
    ],
    "spark": ["pyspark==4.1.4", "pandas==2.3.3", "pyarrow==22.0.0"],
}
JARS = {
    "delta": ("io.delta", "delta-spark_4.1_2.13", "4.4.0"),
    "iceberg": ("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),
}
# Spark has all others that they need.
_OWN_JARS = ("delta-*.jar", "iceberg-*.jar", "unitycatalog-*.jar")
_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>readers</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies><dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
</dependencies></project>"""


def why_missing(name: str) -> str | None:
    """Return why a reader cannot be set up here, or None."""
    if name == "spark" and shutil.which("mvn") is None:
        return "Delta Lake and Iceberg for Spark come by Maven, and there is no mvn on the PATH"
    return None


def set_up(name: str) -> Path:
    """Return the Python of a reader's environment, which is made where it is not there yet, or is of other releases."""
    folder = FOLDER / name
    stamp = folder / "installed"
    python = folder / "venv" / "bin" / "python"
    wanted = "\n".join([*PACKAGES[name], *(":".join(jar) for jar in JARS.values() if name == "spark")])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    uv = Path(sys.executable).with_name("uv")
    _run([uv, "venv", "-q", "--python", sys.executable, folder / "venv"])
    _run([uv, "pip", "install", "-q", "--python", python, *PACKAGES[name]])
    if name == "spark":
        for jar, (group, artifact, version) in JARS.items():
            pom = folder / jar / "pom.xml"
            pom.parent.mkdir()
            pom.write_text(_POM.format(name=jar, group=group, artifact=artifact, version=version), encoding="utf-8")
            _run(["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime"])
    stamp.write_text(wanted, encoding="utf-8")
    return python


def spark_jars() -> str:
    """Return the class path of Delta Lake and Iceberg, in the environment of Spark."""
    folders = [FOLDER / "spark" / kind / "target" / "dependency" for kind in JARS]
    return ":".join(str(jar) for folder in folders for own in _OWN_JARS for jar in folder.glob(own))


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed: {(done.stderr or done.stdout)[-2000:]}")


class Reader:
    """A reader that runs in its own environment until this is closed."""

    def __init__(self, name: str) -> None:
        python = set_up(name)
        command = [str(python), str(SCRIPTS / f"{name}_reader.py")]
        if name == "spark":
            command.append(spark_jars())
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="siltstone-reader-")
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def read(self, format: str, path: str, **request: Any) -> pa.Table:
        """Return the rows of a table as this reader sees them. Raises: RuntimeError with what it says."""
        out = f"{self._folder.name}/rows.arrow"
        self.ask({"format": format, "path": path, "out": out, **request})
        with pa.OSFile(out) as file:
            return pa.ipc.open_file(file).read_all()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer. Raises: RuntimeError with what it says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        # Some print to the same place.
        line = next((line for line in self._process.stdout if line.startswith(ANSWER)), None)
        if line is None:
            raise RuntimeError(f"the reader {self.name} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        """End the reader."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main() -> int:
    """Set up all readers that can be had here."""
    for name in PACKAGES:
        missing = why_missing(name)
        print(f"{name}: {missing or set_up(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
