"""The Java that Spark would start: which one it is, whether it is new enough, and what to install if not."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from siltstone.errors import NotInstalledError

MIN_JAVA = 17
# Set by spark-submit for the Python process it starts: a Java is running already.
SUBMITTED = "PYSPARK_GATEWAY_PORT"
# Names a Spark Connect server, whose Java is elsewhere, or a master to start one on here.
REMOTE = "SPARK_REMOTE"
_PACKAGE = f"on Debian and Ubuntu: apt install openjdk-{MIN_JAVA}-jre-headless"
# A limit for a Java that hangs, not for a machine that is slow.
_HANGING_SECONDS = 120


@dataclass(frozen=True)
class Java:
    """The major version, 0 if none runs, and how to fix it if it is missing or too old."""

    major: int
    detail: str
    fix: str = ""


def find_java() -> Java:
    """Return the Java that Spark would use: from JAVA_HOME first, then from the PATH."""
    home = os.environ.get("JAVA_HOME")
    source = "JAVA_HOME" if home else "PATH"
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        return Java(0, "not found", f"install Java {MIN_JAVA} ({_PACKAGE}), or set JAVA_HOME to where it is")
    if not os.path.exists(java):
        return Java(0, f"not found at {java} (by {source})", f"set JAVA_HOME to a Java {MIN_JAVA}, or unset it")
    try:
        answer = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_HANGING_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Java(0, f"{java} (by {source}) does not run: {error}", f"set JAVA_HOME to a Java {MIN_JAVA}")
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', answer.stderr + answer.stdout)
    major = int(match[2]) if match else 0
    detail = f"{match[1] if match else 'of an unknown version'} at {java} (by {source})"
    fix = f"install Java {MIN_JAVA} or newer, and point JAVA_HOME to it" if major < MIN_JAVA else ""
    return Java(major, detail, fix)


def require_java() -> None:
    """Make sure that Spark can start here. Raises: NotInstalledError."""
    if SUBMITTED in os.environ or os.environ.get(REMOTE, "").startswith("sc://"):
        return
    if _recorded_major() >= MIN_JAVA:
        return
    java = find_java()
    if java.major < MIN_JAVA:
        raise NotInstalledError(f"Spark needs Java {MIN_JAVA} or newer ({java.detail}): {java.fix}")


def _recorded_major() -> int:
    """Return the major version that is written down beside Java, which is read sooner than Java answers; 0 if it is not."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    try:
        record = (java.resolve(strict=True).parent.parent / "release").read_text(errors="replace")
    except OSError:
        return 0
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', record, re.MULTILINE)
    return int(match[1]) if match else 0
