"""The Java process of a session in this process: how it starts, which of its messages are shown, and how it is ended."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from subprocess import Popen
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from siltstone.errors import NotInstalledError

# What every start of Spark says, though all is well. Its log is quiet by our own configuration; these come before that is
# read, or from Java itself.
_USUAL = (
    "WARNING: Using incubator modules:",
    "WARNING: A restricted method in ",
    "WARNING: A terminally deprecated method in ",
    "WARNING: java.lang.System::loadLibrary has been called ",
    "WARNING: sun.misc.Unsafe::",
    "WARNING: Use --enable-native-access=",
    "WARNING: Restricted methods will be blocked ",
    "WARNING: Please consider reporting this to the maintainers of class ",
    "Setting default log level to ",
    "To adjust logging level use ",
    "Using Spark's default log4j profile:",
)
_USUAL_WITHIN = (
    " WARN NativeCodeLoader: Unable to load native-hadoop library ",
    " WARN Utils: Your hostname, ",
    " WARN Utils: Set SPARK_LOCAL_IP if ",
)
_DRAIN_SECONDS = 5


class _Output:
    """Passes on what Java and the Python workers say, line by line, to wherever standard error is at that moment.

    A progress bar takes the place of standard error while it is shown, and prints such lines above itself.
    """

    def __init__(self) -> None:
        self._source, self.sink = os.pipe()
        self.is_muted = False
        self._thread = threading.Thread(target=self._run, name="siltstone-java-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the pipe to Java; it ends with the last process that has it."""
        os.close(self.sink)

    def drain(self) -> None:
        """Wait until all is passed on that a Java which has ended said."""
        self._thread.join(_DRAIN_SECONDS)

    def _run(self) -> None:
        rest = b""
        # The descriptor itself: a buffered file would have a lock that may be held when the interpreter ends.
        while data := os.read(self._source, 65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._pass_on(line)
        self._pass_on(rest)
        os.close(self._source)

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        if self.is_muted or not text.strip() or is_usual(text):
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


_output: _Output | None = None


def is_usual(line: str) -> bool:
    """Return whether Java or Spark says this at every start."""
    return line.startswith(_USUAL) or any(text in line for text in _USUAL_WITHIN)


def launch(settings: Mapping[str, str], *, is_short: bool) -> None:
    """Start Java for the sessions of this process, unless it runs already.

    Of a short session, what Java writes on standard output goes to standard error: the output is that of the command.
    Raises: NotInstalledError.
    """
    global _output
    if is_running():
        return
    output = _output = _Output()
    started: list[Popen[bytes]] = []
    files = {"stderr": output.sink, **({"stdout": output.sink} if is_short else {})}
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        with _recorded() as started:
            gateway = launch_gateway(conf, popen_kwargs=files)  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        output.close()
        output.drain()
        raise NotInstalledError(
            "Java ended before Spark could start; see what it says above, and what `siltstone doctor --spark` finds"
        ) from error
    except BaseException:
        # An interrupt: Java would notice that nobody is there only after it has started, and written to its folder.
        output.is_muted = True
        output.close()
        for process in started:
            process.kill()
            process.wait()
        raise
    output.close()
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


@contextlib.contextmanager
def _recorded() -> Iterator[list[Popen[bytes]]]:
    """Yield a list of the processes that are started for the gateway, which it keeps to itself until they are ready."""
    started: list[Popen[bytes]] = []

    class Recorded(Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    java_gateway.Popen = Recorded  # type: ignore[attr-defined, assignment]
    try:
        yield started
    finally:
        java_gateway.Popen = Popen  # type: ignore[attr-defined]


def is_running() -> bool:
    """Return whether this process has a Java for its sessions."""
    return SparkContext._gateway is not None


def end() -> None:
    """End Java at once, without a word; nothing that it runs is of use any more. Can be called by a signal handler."""
    if _output is not None:
        _output.is_muted = True
    # It prints a trace when Java hangs up on it.
    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
