"""Every example runs as it stands: by the runner here, by spark-submit, and all the others in one process."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).parents[2]
RUNNER = "dev/deploy/aws/runner.py"
ONE_AFTER_ANOTHER = """
import runpy, sys
for script in sys.argv[1:]:
    print("---", script)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
"""


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_change_data_capture_and_the_migration_end_with_the_rows_they_should() -> None:
    scripts = [f"examples/{name}.py" for name in ("compact_cdc", "migrate_from_copy_on_write")]
    output = run("-c", ONE_AFTER_ANOTHER, *scripts)
    _, captured, migrated = output.split("---")
    assert captured.endswith("after batch 2, compacted up to position 3:\n  1 Ada 15.50\n  2 Ben 20.00\n  4 Eve 0.00\n")
    assert migrated.splitlines()[1:] == [
        "rebased on the copy: 1 Nice, 2 Bern, 4 Cork, 5 Kyiv",
        "went on to position 5: 1 Nice, 2 Bern, 5 Kyiv",
        "compacted again from the deltas alone: 1 Nice, 2 Bern, 5 Kyiv",
    ]


def test_arguments_reach_a_script_that_the_runner_runs_here() -> None:
    arguments = """{"--var1": "Try that", "--var2": "Siltstone"}"""
    output = run(RUNNER, "local", "examples/basic_logging.py", "--script-args", arguments)
    assert "var1 is 'Try that', var2 is 'Siltstone'" in output


def test_a_submitted_script_uses_the_master_it_was_submitted_to() -> None:
    output = run(
        RUNNER, "submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false", "examples/hello_world.py"
    )
    assert "counted 1000 rows on local[1]" in output
