import json
import subprocess
import sys

import pytest

HEAVY = ("pyarrow", "obstore", "pyspark", "pandas", "numpy", "rich")


def heavy_modules_after(code: str) -> set[str]:
    """Return which of the heavy modules a fresh process has loaded after running `code`."""
    program = f"""
import json, sys
try:
    {code}
except SystemExit:
    pass
print()
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert heavy_modules_after("import siltstone") == set()


def test_opening_a_lake_does_not_load_spark() -> None:
    loaded = heavy_modules_after("import siltstone; siltstone.open('memory://import-cost').tables()")
    assert "pyarrow" in loaded
    assert "pyspark" not in loaded


@pytest.mark.parametrize("line", ["--version", "--help", "write --help", "table create --help", "log --help", "tabel"])
def test_the_command_line_answers_without_loading_anything_heavy(line: str) -> None:
    code = f"from siltstone.cli.main import main; sys.argv = {['siltstone', *line.split()]!r}; main()"
    assert heavy_modules_after(code) == set()


def test_public_names_are_there_without_having_been_loaded() -> None:
    code = "import siltstone; assert all(hasattr(siltstone, name) for name in siltstone.__all__)"
    assert "pyspark" not in heavy_modules_after(code)


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    import siltstone

    with pytest.raises(AttributeError, match="nosuch"):
        _ = siltstone.nosuch
