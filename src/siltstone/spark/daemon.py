"""The process from which Spark forks its Python workers: what each of them would import is imported here, once.

Spark starts it as `python -m siltstone.spark.daemon` where a session says so in `spark.python.daemon.module`. Nothing that is
imported here starts a thread that holds a lock while a worker is forked: Arrow's allocator unlocks its own after a fork, and Spark
lets numpy's library of matrices have one thread.

Spark puts an archive of its own Python files first on the path, of which Python would compile each file anew. So those that are
installed with it are imported instead.

pandas is left out. Arrow imports it for any list that becomes an array, to see whether that is a series, which takes each worker
longer than a small task. So Arrow is told that there is none, until somebody else imports it.
"""

import contextlib
import gc
import socket
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from siltstone.spark.search_path import prefer_installed

prefer_installed()

import pyarrow as pa  # noqa: E402
import pyspark.worker  # noqa: E402, F401
from pyspark import daemon  # noqa: E402

import siltstone.spark.tasks  # noqa: E402, F401

_PANDAS = "pandas"
_worker = daemon.worker


class _Hidden(MetaPathFinder):
    """Lets imports of pandas fail."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Find everything but pandas."""
        if name == _PANDAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class _Told(MetaPathFinder):
    """Tells Arrow of pandas once it is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find pandas as Python does, once."""
        if name != _PANDAS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _TellingLoader(spec.loader)
        return spec


class _TellingLoader(Loader):
    """Loads a module as another loader does, and then tells Arrow."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        # Asked for the module itself, Arrow looks again; one that is too old for it is as good as none.
        with contextlib.suppress(ImportError):
            _ = pa.lib._pandas_api.pd


def hide_pandas() -> None:
    """Keep Arrow from importing pandas by itself, in this process and those that are forked from it."""
    if _PANDAS in sys.modules or not hasattr(pa.lib, "_pandas_api"):
        return
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
    sys.meta_path.insert(0, _Told())


def _prompt_worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a task, and acknowledge what Java sends for it at once: it sends small pieces, and each awaits that of the last.

    Linux would put it off by 40 ms. It does so again after this worker has sent something, so that each task asks anew.
    """
    with contextlib.suppress(AttributeError, OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _worker(sock, authenticated)


def main() -> None:
    """Fork workers until Spark closes the standard input."""
    hide_pandas()
    daemon.worker = _prompt_worker
    # What is shared with workers is not written to by their garbage collection, nor scanned.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
