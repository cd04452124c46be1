"""The Java process of a session in this process: how it starts, which of its messages are shown, and how it is ended."""

import contextlib
import importlib.util
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import PIPE, Popen

from siltstone.errors import NotInstalledError
from siltstone.java import SUBMITTED

_SECRET = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - a name
_CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_POLL_SECONDS = 0.01
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
_process: Popen[bytes] | None = None


def is_usual(line: str) -> bool:
    """Return whether Java or Spark says this at every start."""
    return line.startswith(_USUAL) or any(text in line for text in _USUAL_WITHIN)


def spark_home() -> Path:
    """Return where Spark is, without importing it where it is part of the package, which takes a while."""
    found = importlib.util.find_spec("pyspark")
    home = Path(os.environ.get("SPARK_HOME") or Path(found.origin if found and found.origin else "").parent)
    if _script(home).is_file():
        return home
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def _script(home: Path) -> Path:
    return home / "bin" / "spark-submit"


def launch(settings: Mapping[str, str], folder: Path, *, is_short: bool) -> None:
    """Start Java for the sessions of this process, unless it runs already; `folder` is for what is written meanwhile.

    While it starts, pyspark is imported, and pandas. Of a short session, what Java writes on standard output goes to standard error: the
    output is that of the command. Raises: NotInstalledError.
    """
    global _output, _process
    if is_running():
        return
    output = _output = _Output()
    connection = folder / "connection"
    try:
        _process = _start(settings, connection, output, is_short=is_short)
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        threading.Thread(target=_import_converters, daemon=True).start()
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        port, secret = _await_connection(_process, connection)
        with _environment({SUBMITTED: str(port), _SECRET: secret}):
            gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
    except NotInstalledError:
        output.close()
        output.drain()
        raise
    except BaseException:
        # An interrupt: Java would notice that nobody is there only after it has started, and written to its folder.
        output.is_muted = True
        output.close()
        if _process is not None:
            _process.kill()
            _process.wait()
        raise
    output.close()
    gateway.proc = _process
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _start(settings: Mapping[str, str], connection: Path, output: _Output, *, is_short: bool) -> Popen[bytes]:
    """Start Java, which writes to a file how it can be reached, and ends when this process does. Raises: NotInstalledError."""
    home = spark_home()
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submitted = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    try:
        return Popen(  # noqa: S603
            [_script(home), *options, *submitted],
            stdin=PIPE,
            stdout=output.sink if is_short else None,
            stderr=output.sink,
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_CONNECT_MODE": "0", _CONNECTION: str(connection)},
            # Ctrl-C is for the command, which ends Java.
            preexec_fn=_ignore_interrupts,
        )
    except OSError as error:
        raise NotInstalledError(
            f"{_script(home)}: Spark does not start ({error.strerror}); install pyspark, or set SPARK_HOME to where Spark is"
        ) from error


def _import_converters() -> None:
    """Import what Spark imports when it first hands over a list: with it pandas, if that is there, which takes a while."""
    with contextlib.suppress(Exception):
        import pyspark.testing.utils  # noqa: F401


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _await_connection(process: Popen[bytes], connection: Path) -> tuple[int, str]:
    """Return the port of Java, and the secret that it asks for. Raises: NotInstalledError."""
    while not connection.exists():
        if process.poll() is not None:
            raise NotInstalledError(
                "Java ended before Spark could start; see what it says above, and what `siltstone doctor --spark` finds"
            )
        time.sleep(_POLL_SECONDS)
    data = connection.read_bytes()
    connection.unlink()
    return int.from_bytes(data[:4], "big"), data[8:].decode()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment meanwhile, which tell pyspark of a Java that runs."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def is_running() -> bool:
    """Return whether this process has a Java for its sessions."""
    return getattr(_context(), "_gateway", None) is not None


def _context() -> object:
    """Return the class of Spark's contexts, None where pyspark is not imported."""
    return getattr(sys.modules.get("pyspark"), "SparkContext", None)


def end() -> None:
    """End Java at once, without a word; nothing that it runs is of use any more. Can be called by a signal handler."""
    if _output is not None:
        _output.is_muted = True
    # It prints a trace when Java hangs up on it.
    server = getattr(getattr(_context(), "_active_spark_context", None), "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None
    if _process is not None:
        _process.kill()
