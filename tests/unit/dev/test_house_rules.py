"""The rules of the house that no linter knows: names, sizes, and what must not come back."""

import ast
import re
from collections import Counter
from pathlib import Path

from dev.rooms import SOURCE

MODULES = sorted(path for path in SOURCE.rglob("*.py") if "testing" not in path.relative_to(SOURCE).parts)
# Modules are nouns; these two are nouns of the trade.
GERUNDS = {"hashing", "staging"}
# One name, one role: what each package has in its own form.
ROLES = {"__init__", "commit", "errors", "interface", "merge", "parquet", "read", "schema", "session", "write"}
# Left from before; nothing is added here.
OTHER_GERUNDS: set[str] = set()
OTHER_NAMES = {"deltas"}
# What there is. Lower these when there is less; think twice before you raise them.
MAX_MODULES = 270
MAX_LINES = 60_650
MAX_CLI_LINES = 5_400
MAX_TELLING = 2


def lines_of(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_modules_are_nouns() -> None:
    gerunds = {path.stem for path in MODULES if path.stem.endswith("ing")}
    assert gerunds <= GERUNDS | OTHER_GERUNDS


def test_a_file_name_recurs_only_for_the_same_role() -> None:
    # Commands, and the text of their results, are named after what they are about.
    counts = Counter(path.stem for path in MODULES if not path.is_relative_to(SOURCE / "cli"))
    recurring = {name for name, count in counts.items() if count > 1}
    assert recurring <= ROLES | OTHER_NAMES


def test_rounds_pass_typed_values() -> None:
    untyped = [path.name for path in (SOURCE / "rounds").rglob("*.py") if "dict[str, Any]" in path.read_text()]
    assert untyped == []


def test_the_house_does_not_grow_unseen() -> None:
    assert len(MODULES) <= MAX_MODULES
    assert lines_of(MODULES) <= MAX_LINES


def test_the_command_line_stays_thin() -> None:
    assert lines_of([path for path in MODULES if path.is_relative_to(SOURCE / "cli")]) <= MAX_CLI_LINES


def test_a_docstring_says_what_is_returned_and_not_that_it_tells() -> None:
    telling = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if re.match(r"(Tell|Say)\b", text):
                    telling.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert len(telling) <= MAX_TELLING, telling
