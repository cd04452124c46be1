"""Where Python looks for Spark's own modules."""

import os
import sys


def prefer_installed() -> None:
    """Look into the archives of its Python files that Spark has only after the installed package that they belong to."""
    for entry in [entry for entry in sys.path if os.path.basename(entry).startswith(("pyspark", "py4j"))]:
        # As in lib/python/site-packages/pyspark/python/lib/pyspark.zip.
        package = os.path.dirname(os.path.dirname(os.path.dirname(entry)))
        if os.path.dirname(package) in sys.path and os.path.isfile(os.path.join(package, "__init__.py")):
            sys.path.remove(entry)
            sys.path.append(entry)
