"""A command on a terminal of its own, as somebody has it who types: with a bar, and with a Ctrl-C that reaches all processes."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

COMMAND = "import sys; sys.argv[0] = 'siltstone'; from siltstone.cli.entry import main; main()"
# Against hanging only.
_LIMIT_SECONDS = 180
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """Runs a command line in a session of its own, on a terminal that is read and typed into from here."""

    def __init__(
        self, *args: str, folder: Path, width: int = 100, environment: Mapping[str, str] | None = None
    ) -> None:
        self._leader, follower = os.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        self.temporary = temporary
        self._process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *args],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", "TMPDIR": str(temporary), **(environment or {})},
            preexec_fn=lambda: os.login_tty(follower),
        )
        os.close(follower)
        self._output = b""

    @property
    def text(self) -> str:
        """All that was shown so far, without colours and movements of the cursor."""
        return _CONTROLS.sub("\n", self._output.decode(errors="replace")).replace("\n\n", "\n")

    def wait_for(self, pattern: str) -> None:
        """Wait until something is shown."""
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text
            assert self._read(), f"it ended first: {self.text}"

    def interrupt(self) -> None:
        """Type Ctrl-C, which the terminal turns into a signal to all processes in its foreground."""
        os.write(self._leader, b"\x03")

    def end(self) -> int:
        """Wait for the end; return the exit code."""
        while self._read():
            pass
        return self._process.wait(_LIMIT_SECONDS)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._leader], [], [], _LIMIT_SECONDS)
        assert ready, f"nothing happens any more: {self.text}"
        try:
            data = os.read(self._leader, 65536)
        except OSError:
            # Linux says so when nobody has the other end any more.
            data = b""
        self._output += data
        return bool(data)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._leader)
