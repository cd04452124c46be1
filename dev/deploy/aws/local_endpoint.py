"""An S3 and Glue endpoint on this machine, to try deployments without an account: `python -m dev.deploy.aws.local_endpoint`.

It is moto's server, which defines and starts jobs but runs nothing, with the one call that the runner needs added.
"""

import argparse
import json
import logging
import threading
from collections.abc import Sequence
from typing import Any

from moto.core.responses import ActionResult
from moto.glue.responses import GlueResponse
from moto.server import ThreadedMotoServer

PORT = 5555


def _update_job(response: Any) -> ActionResult:
    """Answer UpdateJob: the definition is replaced, the runs stay."""
    asked = json.loads(response.body)
    name = asked["JobName"]
    runs = response.glue_backend.get_job(name).job_runs
    response.glue_backend.delete_job(name)
    response.body = json.dumps({"Name": name, **asked["JobUpdate"]})
    response.create_job()
    response.glue_backend.get_job(name).job_runs = runs
    return ActionResult({"JobName": name})


def start_endpoint(port: int = 0) -> ThreadedMotoServer:
    """Start the endpoint on a port of the loopback address, 0 for any that is free."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    GlueResponse.update_job = _update_job  # type: ignore[attr-defined]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    return server


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="local_endpoint", description=__doc__)
    parser.add_argument("--port", type=int, default=PORT)
    server = start_endpoint(parser.parse_args(arguments).port)
    _, port = server.get_host_and_port()
    print(f"serving S3 and Glue; in another terminal:\nexport AWS_ENDPOINT_URL=http://127.0.0.1:{port}")
    print("export AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local AWS_REGION=us-east-1", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    main()
