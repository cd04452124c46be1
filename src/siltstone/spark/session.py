"""The one place that builds a SparkSession."""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from siltstone.java import SUBMITTED, require_java
from siltstone.spark.class_archive import archive_options
from siltstone.spark.folders import make_folder

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def local_session(
    name: str = "siltstone",
    *,
    cores: int | str = "*",
    conf: Mapping[str, str] | None = None,
    is_short: bool = False,
) -> SparkSession:
    """Return a session inside this process, lean and quiet: no web page, no Hive, nothing left behind on disk.

    `conf` adds settings or overrides the ones here. A short session, of a command that ends soon, compiles in a hurry:
    it starts sooner, but long work inside the JVM is slower. Where a session runs already, or this process was started by
    spark-submit (as Glue does, too), that session is returned, wherever its executors are.

    Raises: NotInstalledError.
    """
    existing = SparkSession.getActiveSession()
    if existing is not None:
        return existing
    if SUBMITTED in os.environ:
        return SparkSession.builder.appName(name).getOrCreate()
    require_java()
    folder = make_folder()
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    options = archive_options()
    if is_short:
        options.append("-XX:TieredStopAtLevel=1")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join([f"-Dlog4j2.configurationFile={logging.as_uri()}", *options]),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(conf or {}),
    }
    # The workers need what this process has installed, whichever Python comes first on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
