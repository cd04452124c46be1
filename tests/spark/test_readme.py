"""What the README shows of Spark works on Spark."""

from pathlib import Path

from pyspark.sql import SparkSession
from tests.unit.cli.page_steps import PageRun, blocks_of

PROJECT = Path(__file__).parents[2]


def test_the_readme_s_table_is_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    blocks = blocks_of(PROJECT / "README.md")
    reader = PageRun(tmp_path)
    # Compacted in this process, which is quicker.
    commands = next(block for language, block in blocks if language == "console")
    reader.console(commands.replace("siltstone compact", "siltstone compact --engine local"))
    (block,) = (block for language, block in blocks if language == "python" and "spark.read" in block)
    # Relative roots are those of the folder that Spark was started in, which is not this one.
    reader.python(block.replace('"lake"', repr(str(tmp_path / "lake"))), spark=spark)
