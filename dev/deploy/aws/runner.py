"""`python dev/deploy/aws/runner.py -h`: runs a script on AWS Glue, on this machine, or on any Spark."""

import sys
from pathlib import Path

# A script of the workspace finds the workspace, wherever it is started.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from dev.deploy.aws.commands import main

if __name__ == "__main__":
    sys.exit(main())
