"""All benchmarks one after another, each in a process of its own, then the cost model and what was aimed at: `make benchmark`.

`python -m benchmarks [--only growth constants]` goes on where one fails, says so at the end, and ends with 1. Results of one that failed stay
what they were before.
"""

import argparse
import subprocess
import sys
import time

ALL = {
    "log": [],
    "commits": [],
    "scale": [],
    "wide": ["--buckets", "128", "131072", "--changes", "10000000", "--runs", "2"],
    "small_rounds": [],
    "compaction": [],
    "growth": [],
    "constants": [],
    "documents": [],
    "document_tables": [],
    "serving": ["--serving", "--documents", "1000000", "--updates", "10000"],
    "spark_reads": [],
    "streams": [],
    "publish": [],
    "cdc": [],
    "parquet_reads": [],
}
MODULES = {"serving": "document_tables"}
LAST = ("cost_model", "summary")


def run(module: str, *options: str) -> bool:
    return subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *options]).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ALL, metavar="NAME", help=f"some of {', '.join(ALL)}")
    names = parser.parse_args().only or list(ALL)
    started, failed = time.monotonic(), []
    for number, name in enumerate(names, 1):
        print(f"\n{name}, {number} of {len(names)}, after {(time.monotonic() - started) / 60:.0f} minutes", flush=True)
        if not run(MODULES.get(name, name), *ALL[name]):
            failed.append(name)
    failed += [name for name in LAST if not run(name)]
    if failed:
        print(f"failed, and not among these results: {', '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
