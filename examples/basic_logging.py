"""How a job gets arguments and where its log goes.

`runner.py … examples/basic_logging.py --script-args '{"--var1": "Try that", "--var2": "Siltstone"}'`

Arguments come on the command line, as Glue gives them, or as environment variables of the same name. What is printed
and logged goes to the terminal, or to the logs of the Glue run.
"""

import argparse
import logging
import os
import sys

import siltstone

log = logging.getLogger("basic_logging")


def main() -> None:
    """Log what was asked for."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("var1", "var2"):
        parser.add_argument(f"--{name}", default=os.environ.get(name, "not given"))
    options, others = parser.parse_known_args()
    log.info("Siltstone %s", siltstone.__version__)
    log.info("var1 is %r, var2 is %r", options.var1, options.var2)
    log.info("arguments that are not mine, such as those of Glue: %s", others)
    if options.var1 == "not given":
        log.warning("""try --script-args '{"--var1": "Try that"}'""")


if __name__ == "__main__":
    main()
