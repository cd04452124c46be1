"""Where Python looks for Spark's own modules."""

import os
import sys


def prefer_installed() -> None:
    """Look into archives of Python files that belong to an installed package only after the package itself."""
    for entry in [entry for entry in sys.path if entry.endswith(".zip")]:
        # As in lib/python/site-packages/pyspark/python/lib/pyspark.zip.
        package = os.path.dirname(os.path.dirname(os.path.dirname(entry)))
        if os.path.dirname(package) in sys.path and os.path.isfile(os.path.join(package, "__init__.py")):
            sys.path.remove(entry)
            sys.path.append(entry)
