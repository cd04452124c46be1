#!/bin/sh
# Print the Python to make the virtual environment with: the first of 3.11 to 3.14 that is there, runs, and has venv.
for name in python3.11 python3.12 python3.13 python3.14 python3; do
    if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
        echo "$name"
        exit
    fi
done
echo "Siltstone needs Python 3.11, 3.12, 3.13 or 3.14 with its venv module: install it (on Debian: apt install python3 python3-venv), or name one by make PYTHON=…" >&2
exit 1
