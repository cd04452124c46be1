"""What the doctor checks: this machine, and the root of the lake."""

import contextlib
import importlib
import importlib.metadata
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from siltstone.errors import AlreadyExistsError, InvalidInputError, SiltstoneError, StorageError
from siltstone.java import MIN_JAVA, find_java
from siltstone.text import format_bytes, format_count, mask_secrets

if TYPE_CHECKING:
    from siltstone.objects import Objects

PROBE_FOLDER = ".doctor"
MIN_PYTHON = (3, 11)
MAX_TESTED_JAVA = 21
RACERS = 8
_LOW_DISK_BYTES = 10 << 30
_NO_DISK_BYTES = 1 << 30
SKEW_WARNING_MS = 5_000
_PROBE_LIFE_MS = 3_600_000
_EARLIEST_YEAR = 2025
CLOCK_FIX = "set the clock, e.g. by NTP"
_NO_CONDITIONS_FIX = "use a local disk, or a store with conditional writes; commits are not safe on this one"


@dataclass(frozen=True)
class Check:
    """One finding of the doctor; `fix` is empty if all is well.

    Where something is left over that nobody needs, `remove` removes it.
    """

    name: str
    state: Literal["ok", "warning", "failed", "fixed"]
    detail: str
    fix: str = ""
    remove: Callable[[], None] | None = field(default=None, repr=False, compare=False, metadata={"json": False})


def leftover(name: str, detail: str, remove: Callable[[], None]) -> Check:
    """Return a finding about something that is safe to remove."""
    return Check(name, "warning", detail, "`siltstone doctor --fix` removes this", remove)


def fix(check: Check, *, dry_run: bool) -> Check:
    """Remove what a check found left over, if anything, and return the check as it is then."""
    if check.remove is None:
        return check
    if dry_run:
        return replace(check, fix="--fix would remove this")
    try:
        check.remove()
    except (OSError, SiltstoneError) as error:
        return replace(check, fix=f"could not be removed ({error}); remove it by hand")
    return Check(check.name, "fixed", f"{check.detail}: removed")


def check_machine(check_spark: Callable[[], Check] | None = None) -> Iterator[Check]:
    """Yield the findings about this machine one by one, as they are made; Spark is tried where a check of it is given."""
    yield _python()
    java = _java()
    yield java
    yield _package("pyspark", at_least=(4, 1), below=(5,))
    yield _package("pyarrow", at_least=(18,), loads=True)
    yield _package("obstore", at_least=(0, 8), loads=True)
    if check_spark is not None:
        yield check_spark() if java.state != "failed" else Check("spark", "failed", "not tried", "install Java first")
    yield _temporary_folder()


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    detail = f"{version} at {sys.executable}"
    if sys.version_info[:2] < MIN_PYTHON:
        return Check("python", "failed", detail, "install Python 3.11 or newer")
    return Check("python", "ok", detail)


def _java() -> Check:
    java = find_java()
    if java.major < MIN_JAVA:
        return Check("java", "failed", java.detail, java.fix)
    if java.major > MAX_TESTED_JAVA:
        fix = f"if Spark fails to start, use Java {MIN_JAVA} or {MAX_TESTED_JAVA}"
        return Check("java", "warning", java.detail, fix)
    return Check("java", "ok", java.detail)


def _package(
    name: str, *, at_least: tuple[int, ...], below: tuple[int, ...] | None = None, loads: bool = False
) -> Check:
    requirement = f"{name}>={'.'.join(map(str, at_least))}{'' if below is None else ',<' + '.'.join(map(str, below))}"
    fix = f'pip install "{requirement}"'
    try:
        version = importlib.metadata.version(name)
        if loads:
            importlib.import_module(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "failed", "not installed", fix)
    except ImportError as error:
        return Check(name, "failed", f"{version} does not load: {error}", fix)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < at_least or (below is not None and numbers >= below):
        return Check(name, "failed", version, fix)
    return Check(name, "ok", version)


def _temporary_folder() -> Check:
    """Return whether Spark has a place for what it shuffles and spills."""
    name = "temporary folder"
    folder = Path(tempfile.gettempdir())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"probe")
            file.flush()
    except OSError as error:
        return Check(name, "failed", f"{folder}: {error.strerror}", "make it writable, or set TMPDIR to another folder")
    usage = shutil.disk_usage(folder)
    detail = f"{folder}, {format_bytes(usage.free)} of {format_bytes(usage.total)} free"
    if usage.free < _NO_DISK_BYTES:
        return Check(name, "failed", detail, "free some space, or set TMPDIR to a folder on a larger disk")
    if usage.free < _LOW_DISK_BYTES:
        return Check(name, "warning", detail, "Spark shuffles there; set TMPDIR to a folder on a larger disk")
    return Check(name, "ok", detail)


def check_root(root: str) -> Iterator[Check]:
    """Yield the findings about the root of a lake one by one, as they are made."""
    from siltstone.objects import canonical_root, local_folder, open_objects

    try:
        address = canonical_root(root)
        if address.startswith("s3://"):
            yield _s3()
        objects = open_objects(address)
        folder = local_folder(address)
        is_new = folder is not None and not folder.exists()
        objects.list_folders("")
    except SiltstoneError as error:
        yield Check("root", "failed", str(error), "correct --root, SILTSTONE_ROOT, or the credentials")
        return
    if folder is not None and not is_new and not folder.is_dir():
        yield Check("root", "failed", f"{address} is not a folder", "choose another root")
        return
    yield Check("root", "ok", f"{mask_secrets(address)}{' (does not exist yet)' if is_new else ''}")
    yield from _old_probes(objects)
    probe = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
    inner = [] if folder is None else [folder / probe, *(folder / probe).parents]
    made = [parent for parent in inner if not parent.exists()]
    try:
        yield _writable(objects, probe)
        yield _create_if_absent(objects, probe)
        yield _clock(objects, probe)
    except InvalidInputError as error:
        yield Check("create-if-absent", "failed", str(error), _NO_CONDITIONS_FIX)
    except SiltstoneError as error:
        yield Check("root writable", "failed", str(error), "make the root writable, or choose another one")
    finally:
        with contextlib.suppress(SiltstoneError):
            objects.delete([info.path for info in objects.list_objects(probe, recursive=True)])
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
    if folder is not None:
        yield _disk(folder)


def _old_probes(objects: "Objects") -> Iterator[Check]:
    """Yield that objects of a doctor are left which was interrupted; one that is running now keeps its own."""
    from siltstone import clock

    oldest_ms = clock.now_ms() - _PROBE_LIFE_MS
    old = [info.path for info in objects.list_objects(PROBE_FOLDER, recursive=True) if info.modified_ms < oldest_ms]
    if old:
        detail = f"{format_count(len(old), 'object')} in {PROBE_FOLDER}/, left by a doctor that was interrupted"
        yield leftover("probes", detail, lambda: objects.delete(old))


def _s3() -> Check:
    """Return how S3 is reached, as the environment and its profiles say; no key is shown."""
    from siltstone.objects.s3 import find_settings

    settings = find_settings()
    who = "the role of this machine"
    if settings.keys is not None:
        who = f"access key {settings.keys.access_key_id[:4]}…"
    elif settings.profile is not None:
        who = f"profile {settings.profile}"
    elif settings.is_anonymous:
        who = "anonymous (AWS_SKIP_SIGNATURE)"
    region = settings.region or "us-east-1, since neither AWS_REGION nor a profile says another"
    return Check("s3", "ok", f"{settings.endpoint or 'AWS'}, region {region}, as {who}")


def _writable(objects: "Objects", probe: str) -> Check:
    started = time.monotonic()
    objects.create(f"{probe}/written", b"probe")
    seconds = time.monotonic() - started
    if objects.read(f"{probe}/written") != b"probe":
        return Check("root writable", "failed", "what was written is not what is read", "choose another root")
    return Check("root writable", "ok", f"a durable write takes {seconds * 1000:.0f} ms")


def _create_if_absent(objects: "Objects", probe: str) -> Check:
    """Try what every commit relies on: of all who create an object, one does."""
    name, fix = "create-if-absent", _NO_CONDITIONS_FIX
    with contextlib.suppress(AlreadyExistsError):
        objects.create(f"{probe}/written", b"again")
        return Check(name, "failed", "an object was created a second time", fix)

    def create(number: int) -> bool:
        try:
            objects.create(f"{probe}/raced", b"%d" % number)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        winners = [number for number, won in enumerate(pool.map(create, range(RACERS))) if won]
    if len(winners) != 1 or objects.read(f"{probe}/raced") != b"%d" % winners[0]:
        return Check(name, "failed", f"of {RACERS} racing creations, {len(winners)} succeeded instead of 1", fix)
    return Check(name, "ok", f"a second creation is refused; of {RACERS} racing ones, one succeeded")


def _clock(objects: "Objects", probe: str) -> Check:
    from siltstone.clock import is_skewed, measure

    if time.gmtime().tm_year < _EARLIEST_YEAR:
        return Check("clock", "failed", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), CLOCK_FIX)

    def ask() -> int:
        objects.create(f"{probe}/clock", b"")
        created = objects.info(f"{probe}/clock")
        if created is None:
            raise StorageError(f"{probe}/clock: it was just created, but does not exist; try again")
        return created.modified_ms

    _, skew_ms = measure(ask)
    detail = f"{abs(skew_ms) / 1000:.0f} s {'ahead of' if skew_ms > 0 else 'behind'} the store's"
    if is_skewed(skew_ms):
        fix = f"{CLOCK_FIX}; until then, nothing expires and vacuums delete nothing"
        return Check("clock", "failed", detail, fix)
    if abs(skew_ms) > SKEW_WARNING_MS:
        return Check("clock", "warning", detail, "let NTP keep the clock")
    return Check("clock", "ok", "agrees with the store's")


def _disk(folder: Path) -> Check:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    usage = shutil.disk_usage(existing)
    detail = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free"
    if usage.free < _NO_DISK_BYTES:
        return Check("disk space", "failed", detail, "free some space, or choose another root")
    if usage.free < _LOW_DISK_BYTES:
        return Check("disk space", "warning", detail, "compaction needs room for the files it rewrites")
    return Check("disk space", "ok", detail)
