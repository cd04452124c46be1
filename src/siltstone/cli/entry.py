"""Where the `siltstone` process begins: importing the commands takes a moment, during which Ctrl-C is as quiet as later."""

import sys


def main() -> None:
    """Run the command line of this process."""
    try:
        from siltstone.cli.main import INTERRUPTED
        from siltstone.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    try:
        run()
    except KeyboardInterrupt:
        # Where no command was running yet, or any more.
        sys.stderr.write("Interrupted.\n")
        sys.exit(INTERRUPTED)
