"""Everything that needs a SparkSession; what imports this does not load Spark yet."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from siltstone.spark.session import local_session

__all__ = ["local_session"]


def __getattr__(name: str) -> object:
    if name == "local_session":
        from siltstone.spark.session import local_session

        return local_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
