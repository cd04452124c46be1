import json
import subprocess
import sys
from pathlib import Path

import pytest

import siltstone

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


def test_opening_and_listing_do_not_load_pandas_though_it_is_installed(tmp_path: Path) -> None:
    lake = siltstone.open(tmp_path)
    lake.create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"]).write([{"id": 1}])
    opened = heavy_modules_after(f"import siltstone; siltstone.open({str(tmp_path)!r}).table('shop.orders').deltas()")
    assert "pandas" not in opened
    line = ["siltstone", "--root", str(tmp_path), "deltas", "shop.orders"]
    listed = heavy_modules_after(f"from siltstone.cli.main import main; sys.argv = {line!r}; main()")
    assert "pandas" not in listed


@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        ("sqlalchemy", "import siltstone.service", "service"),
        ("fastapi", "import siltstone.web", "service"),
        ("hypothesis", "import siltstone.testing.strategies", "testing"),
    ],
)
def test_a_missing_extra_is_one_sentence_with_the_line_that_installs_it(package: str, code: str, extra: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    (last,) = done.stderr.splitlines()[-1:]
    assert last.startswith("siltstone.errors.NotInstalledError: ")
    assert f"needs {package}: run pip install 'siltstone[{extra}]'" in last


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


def test_a_table_is_compacted_in_this_process_without_loading_spark() -> None:
    code = "; ".join(
        [
            "import siltstone",
            "lake = siltstone.open('memory://import-cost')",
            "table = lake.create_table('shop.orders', schema={'id': 'int64'}, primary_keys=['id'])",
            "table.write([{'id': 1}, {'id': 2}])",
            "assert table.compact(engine='local').live_rows == 2",
            "documents = lake.create_document_table('shop.reviews')",
            "documents.update('r1', {'stars': 5})",
            "assert len(documents.compact(engine='local').rounds) == 1",
        ]
    )
    assert "pyspark" not in heavy_modules_after(code)
