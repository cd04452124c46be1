"""One SparkSession for all tests that need one."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from siltstone.spark import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("siltstone-tests", cores=2, is_short=True)
    yield session
    session.stop()
