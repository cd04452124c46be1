"""Everything that needs a SparkSession."""

from siltstone.spark.session import local_session

__all__ = ["local_session"]
