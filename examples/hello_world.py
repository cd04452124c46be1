"""The smallest job: it says hello from Spark, and which Siltstone it runs with."""

import siltstone
from siltstone.spark import local_session


def main() -> None:
    """Count on Spark, and say so."""
    spark = local_session("hello-world")
    rows = spark.range(1000).count()
    where = spark.conf.get("spark.master")
    print(f"Hello from Spark {spark.version} and Siltstone {siltstone.__version__}: counted {rows} rows on {where}")


if __name__ == "__main__":
    main()
