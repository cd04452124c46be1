"""Make sure of a Java for Spark, before anything else is installed: as root, get it by apt where there is none.

It runs before the requirements are there, so it needs Python alone.
"""

import os
import shutil
import subprocess
import sys

from siltstone.errors import NotInstalledError
from siltstone.java import require_java

# Some releases of Debian have no Java 17 any more; their default is newer.
PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")


def main() -> int:
    """Return 1, and say what to install, where Spark cannot start."""
    try:
        require_java()
    except NotInstalledError as missing:
        try:
            if not may_install():
                raise
            install()
            require_java()
        except NotInstalledError:
            print(missing, file=sys.stderr)
            return 1
    return 0


def may_install() -> bool:
    """Tell whether it is for us to install Java: somebody who says where it is wants to use that one."""
    return not os.environ.get("JAVA_HOME") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def install() -> None:
    """Install the first package that there is."""
    print("Installing Java for Spark by apt", flush=True)
    _apt_get("update")
    for package in PACKAGES:
        if _apt_get("install", "--yes", "--no-install-recommends", package):
            return


def _apt_get(*arguments: str) -> bool:
    command = ["apt-get", "-qq", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
