"""What else is not the same in two runs: random names, random bytes, pauses, stop-watches. Inside a simulation they are."""

import contextlib
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch


@contextlib.contextmanager
def determined(source: Callable[[], random.Random], seconds: Callable[[], float]) -> Iterator[None]:
    """Let everything random come from `source`, which may be another one each time, and stop-watches show `seconds`."""

    def replacing(module: object, name: str, value: Any) -> Any:
        return patch.object(module, name, value)

    with (
        replacing(uuid, "uuid4", lambda: uuid.UUID(int=source().getrandbits(128), version=4)),
        replacing(os, "urandom", lambda size: source().randbytes(size)),
        replacing(random, "uniform", lambda low, high: source().uniform(low, high)),
        replacing(time, "perf_counter", seconds),
    ):
        yield
