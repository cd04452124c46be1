"""A Spark Connect server on a free port of the loopback address, until the standard input is closed; prints its address."""

import sys
from typing import Any

from siltstone.spark import local_session

_SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def main() -> None:
    session = local_session("siltstone-connect", cores=2, conf=_SETTINGS, is_short=True)
    service: Any = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    print(f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}", flush=True)
    sys.stdin.read()
    session.stop()


if __name__ == "__main__":
    main()
