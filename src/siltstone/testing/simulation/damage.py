"""Damage to what is stored: bytes cut off or flipped, lines dropped, files swapped or deleted, as disks and people do it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from siltstone.testing.simulation.store import SimulatedObjects

_LOG_SHARE = 0.75


@dataclass(frozen=True)
class Damage:
    """What was done to which objects."""

    kind: str
    paths: tuple[str, ...]

    def is_named_in(self, message: str) -> bool:
        """Tell whether a message names one of the objects, or the folder of a log that has a gap."""
        folders = [path.rpartition("/")[0] for path in self.paths if _is_log(path)]
        return any(path in message for path in (*self.paths, *folders))


def damage_store(objects: SimulatedObjects, chance: random.Random) -> Damage | None:
    """Damage an object, mostly one of a log; None where there is none yet.

    The end of a log is never deleted: what is missing there could not be told from what was never written.
    """
    paths = sorted(objects.contents)
    logs = [path for path in paths if _is_log(path)]
    others = [path for path in paths if not _is_log(path)]
    chosen = logs if not others or chance.random() < _LOG_SHARE else others
    if not chosen:
        return None
    path = chance.choice(chosen)
    kinds: list[Callable[[SimulatedObjects, str, Sequence[str], random.Random], Damage | None]] = [_cut, _flip]
    kinds += [_drop_line, _swap, _delete] if _is_log(path) else [_delete]
    return chance.choice(kinds)(objects, path, chosen, chance)


def _is_log(path: str) -> bool:
    return path.startswith("catalog/") or path.split("/")[-2:-1] == ["log"]


def _number(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".compact"))


def _cut(objects: SimulatedObjects, path: str, others: Sequence[str], chance: random.Random) -> Damage:
    data = objects.contents[path]
    lines = data.split(b"\n")
    at_a_line = b"\n".join(lines[: chance.randrange(len(lines))])
    objects.damage(path, at_a_line if chance.random() < 0.5 else data[: chance.randrange(len(data))])
    return Damage("cut", (path,))


def _flip(objects: SimulatedObjects, path: str, others: Sequence[str], chance: random.Random) -> Damage:
    data = bytearray(objects.contents[path])
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    objects.damage(path, bytes(data))
    return Damage("flip", (path,))


def _drop_line(objects: SimulatedObjects, path: str, others: Sequence[str], chance: random.Random) -> Damage:
    lines = objects.contents[path].split(b"\n")
    del lines[chance.randrange(len(lines))]
    objects.damage(path, b"\n".join(lines))
    return Damage("drop a line", (path,))


def _swap(objects: SimulatedObjects, path: str, others: Sequence[str], chance: random.Random) -> Damage | None:
    other = chance.choice(others)
    one, two = objects.contents[path], objects.contents[other]
    if one == two:
        return None
    objects.damage(path, two)
    objects.damage(other, one)
    return Damage("swap", (path, other))


def _delete(objects: SimulatedObjects, path: str, others: Sequence[str], chance: random.Random) -> Damage | None:
    if _is_log(path):
        folder = path.rpartition("/")[0]
        batches = [_number(other) for other in others if other.rpartition("/")[0] == folder and other[-1].isdigit()]
        if _number(path) >= max(batches, default=-1):
            return None
    objects.damage(path, None)
    return Damage("delete", (path,))
