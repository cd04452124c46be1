"""`siltstone doctor`: whether this machine, the lake and the service's database are fit for work, and what to do if not."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone import clock
from siltstone.cli.cycles import DATABASE_VARIABLE, DatabaseAddress
from siltstone.cli.options import DryRun, Shell, command, option
from siltstone.cli.parts import Shown, styled
from siltstone.cli.spark import ending_java
from siltstone.errors import InvalidInputError, NotFoundError, NotInstalledError, SiltstoneError

if TYPE_CHECKING:
    from siltstone.maintenance.machine import Check

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "fixed": "cyan"}

app = typer.Typer()


@command(
    app,
    "doctor",
    "siltstone doctor",
    "siltstone doctor --root s3://bucket/lake --spark",
    "siltstone doctor --fix --dry-run",
)
def doctor(
    shell: Shell,
    spark: Annotated[bool, option("--spark", "Also start a local Spark and run a small job.")] = False,
    fix: Annotated[
        bool, option("--fix", "Remove what is safe to remove: leftovers of processes that died, unfit archives.")
    ] = False,
    database: DatabaseAddress = None,
    dry_run: DryRun = False,
) -> None:
    """Check this machine, the lake and the service's database.

    Each problem comes with a cure. Exit code 1 if something will not work. A few small objects are created under .doctor/ in
    the root, and deleted again.
    """
    if dry_run and not fix:
        raise typer.BadParameter("only --fix changes anything; use it with --fix", param_hint="--dry-run")
    from siltstone.maintenance import machine

    has_failed = False

    def run_checks() -> "Iterator[Check]":
        nonlocal has_failed
        for check in _all_checks(shell, database, spark=spark):
            done = machine.fix(check, dry_run=dry_run) if fix else check
            has_failed = has_failed or done.state == "failed"
            yield done

    checks = run_checks()
    shell.emit(checks, _checks_text(checks))
    if has_failed:
        raise typer.Exit(1)


def _all_checks(shell: Shell, database: str | None, *, spark: bool) -> "Iterator[Check]":
    from siltstone.maintenance.machine import check_machine, check_root
    from siltstone.spark.checks import check_cache, check_folders, check_spark

    def try_spark() -> "Check":
        with shell.progress("Starting Spark"), ending_java():
            return check_spark()

    yield from check_machine(try_spark if spark else None)
    yield check_folders()
    yield from check_cache()
    yield from check_root(shell.root)
    yield _check_database(shell.root, database)


def _check_database(root: str, address: str | None) -> "Check":
    """Return whether the service's database answers, is of this version, and agrees about the time."""
    from siltstone.maintenance.machine import CLOCK_FIX, SKEW_WARNING_MS, Check

    name = "service database"
    if address is None and "://" in root:
        detail = f"none; `siltstone serve` on this root needs one, by --database or {DATABASE_VARIABLE}"
        return Check(name, "ok", detail)
    try:
        from siltstone.service import default_address, open_database

        opened = open_database(address or default_address(root), create=False)
    except NotInstalledError:
        return Check(name, "ok", "not checked; `siltstone serve` needs pip install 'siltstone[service]'")
    except NotFoundError:
        return Check(name, "ok", "none yet; `siltstone serve` creates it")
    except InvalidInputError as error:
        return Check(name, "failed", str(error), f"correct --database or {DATABASE_VARIABLE}, or upgrade siltstone")
    except SiltstoneError as error:
        return Check(name, "failed", str(error), f"start the database, or correct --database or {DATABASE_VARIABLE}")
    try:
        _, skew_ms = clock.measure(lambda: opened.read("ask for the time", lambda transaction: transaction.now_ms()))
    except SiltstoneError as error:
        return Check(name, "failed", str(error), "repair the database, or restore it")
    finally:
        opened.close()
    if abs(skew_ms) > SKEW_WARNING_MS:
        apart = f"its clock is {abs(skew_ms) / 1000:.0f} s {'behind' if skew_ms > 0 else 'ahead of'} this machine's"
        return Check(name, "warning", f"{opened.address}; {apart}", f"{CLOCK_FIX}, on both machines")
    return Check(name, "ok", opened.address)


def _checks_text(checks: "Iterable[Check]") -> Iterator[Shown]:
    states = []
    for check in checks:
        states.append(check.state)
        yield styled((f"{check.state:<7}", _STYLES[check.state]), f"  {check.name:<16}  {check.detail}")
        if check.fix:
            yield styled((f"{'':<27}→ {check.fix}", "bold"))
    failed, warnings, fixed = (states.count(state) for state in ("failed", "warning", "fixed"))
    counts = [f"{failed} failed", f"{warnings} with a warning", *([f"{fixed} fixed"] if fixed else [])]
    yield ""
    yield f"{', '.join(counts)}." if failed or warnings or fixed else "All is well."
