"""A commit log proves itself: whatever happens to a file, its reader notices, and names it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siltstone.errors import CorruptionError
from siltstone.log import state, wire
from siltstone.log.commit import CommitLog
from siltstone.log.inspect import verify
from siltstone.log.proof import find_problems, refuse_unproven
from siltstone.log.repair import compact
from siltstone.objects import open_objects
from siltstone.testing import FaultyObjects, Killed

Damage = Callable[[Path], None]
BATCHES = 13


def fill(root: str, folder: str = "log", batches: int = BATCHES) -> Path:
    log = CommitLog(root, folder)
    for number in range(batches):
        log.commit("test", lambda _, n=number: {f"k{n % 4}": {"value": n}, f"of-{folder}": {"value": n}})  # type: ignore[misc]
    return Path(root, folder)


def values(root: str) -> dict[str, int]:
    return CommitLog(root, "log").read(
        lambda state: {entry["key"]: entry["value"] for entry in state.scan("") if "value" in entry}
    )


def drop_last_line(file: Path) -> None:
    file.write_bytes(file.read_bytes().rpartition(b"\n")[0])


def drop_second_line(file: Path) -> None:
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([*lines[:2], *lines[3:]]))


def change_a_value(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"value":', b'"value":1', 1))


def say_another_version(file: Path) -> None:
    file.write_bytes(b"v2" + file.read_bytes()[2:])


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def repeat_a_line(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data + b"\n" + data.rpartition(b"\n")[2])


DAMAGES = [drop_last_line, drop_second_line, change_a_value, say_another_version, cut_in_half, repeat_a_line]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["12", "11", "9.compact"])
def test_a_file_that_was_changed_is_named_by_who_reads_it(local_root: str, name: str, damage: Damage) -> None:
    folder = fill(local_root)
    damage(folder / name)
    with pytest.raises(CorruptionError, match=rf"log/{name}"):
        values(local_root)
    assert name in {Path(finding.file).name for finding in verify(folder).findings}
    with pytest.raises(CorruptionError, match="nothing is deleted"):
        refuse_unproven(CommitLog(local_root, "log"))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_batch_that_is_summed_up_is_checked_too(local_root: str, damage: Damage) -> None:
    folder = fill(local_root)
    expected = values(local_root)
    damage(folder / "4")
    assert values(local_root) == expected, "nobody needs it to read the newest state"
    assert {Path(finding.file).name for finding in verify(folder).findings} & {"4", "5"}


def test_every_byte_of_a_batch_and_of_a_checkpoint_is_guarded(local_root: str) -> None:
    folder = fill(local_root)
    for name in ("12", "9.compact"):
        whole = (folder / name).read_bytes()
        for position in range(len(whole)):
            (folder / name).write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            with pytest.raises(CorruptionError, match=rf"log/{name}"):
                values(local_root)
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize(("one", "other"), [("11", "12"), ("10", "12")])
def test_batches_that_changed_places_are_noticed(local_root: str, one: str, other: str) -> None:
    folder = fill(local_root)
    content = (folder / one).read_bytes()
    shutil.copy(folder / other, folder / one)
    (folder / other).write_bytes(content)
    with pytest.raises(CorruptionError, match="not written after the batch before it"):
        values(local_root)
    assert {finding.code for finding in verify(folder).findings} == {"chain"}


@pytest.mark.parametrize("name", ["10", "12"])
def test_a_batch_of_another_log_is_noticed(local_root: str, name: str) -> None:
    folder = fill(local_root)
    shutil.copy(fill(local_root, "elsewhere") / name, folder / name)
    with pytest.raises(CorruptionError, match=r"log/1[0-2].*not written after"):
        values(local_root)


def test_a_first_batch_of_another_log_is_noticed(local_root: str) -> None:
    folder = fill(local_root, batches=1)
    shutil.copy(fill(local_root, "elsewhere", batches=1) / "0", folder / "0")
    with pytest.raises(CorruptionError, match=r"log/0: it is the first batch of elsewhere"):
        values(local_root)


def test_a_checkpoint_of_another_log_is_noticed(local_root: str) -> None:
    folder = fill(local_root, batches=10)
    shutil.copy(fill(local_root, "elsewhere", batches=10) / "9.compact", folder / "9.compact")
    with pytest.raises(CorruptionError, match=r"log/9.compact: it is a checkpoint of elsewhere"):
        values(local_root)


def test_a_log_is_compacted_by_its_path_alone_and_keeps_its_name(local_root: str) -> None:
    folder = fill(local_root, "tables/a/log", batches=5)
    for batches in (5, 3):
        assert compact(folder).compact_file is not None
        assert find_problems(CommitLog(local_root, "tables/a/log")) == []
        fill(local_root, "tables/a/log", batches)
    shutil.copy(folder / "9.compact", fill(local_root, "log", batches=10) / "9.compact")
    with pytest.raises(CorruptionError, match=r"log/9.compact: it is a checkpoint of tables/a/log"):
        values(local_root)


@pytest.mark.parametrize("batches", [10, 13])
def test_a_checkpoint_of_an_earlier_format_is_not_taken_for_that_of_a_batch_of_this_one(
    local_root: str, batches: int
) -> None:
    folder = fill(local_root, batches=batches)
    (folder / "9.compact").write_bytes(b'v2\n{"key":"k0","value":-1}')
    with pytest.raises(
        CorruptionError, match=r"log/(9.compact: it is older than the batch|10: it was not written after)"
    ):
        values(local_root)
    assert "9.compact" in {Path(finding.file).name for finding in verify(folder).findings}


def test_a_process_notices_that_batches_that_it_knows_are_gone(local_root: str) -> None:
    folder = fill(local_root, batches=1)
    log = CommitLog(local_root, "log")
    fill(local_root, batches=19)
    assert log.read(lambda state: state.batch_id) == 19
    for file in folder.iterdir():
        if file.name != "0":
            file.unlink()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"log/19: this batch was there and is gone"):
            log.read(len)
        with pytest.raises(CorruptionError, match=r"log/19: this batch was there and is gone"):
            log.commit("test", lambda _: {"a": {"value": 1}})


def test_a_checkpoint_in_place_of_a_batch_is_noticed(local_root: str) -> None:
    folder = fill(local_root, batches=1)
    shutil.copy(fill(local_root, "elsewhere") / "9.compact", folder / "0")
    with pytest.raises(CorruptionError, match=r"log/0: it is a checkpoint"):
        values(local_root)
    assert verify(folder).findings


def test_a_checkpoint_under_a_wrong_name_is_noticed(local_root: str) -> None:
    folder = fill(local_root)
    shutil.copy(folder / "9.compact", folder / "12.compact")
    with pytest.raises(CorruptionError, match="not the checkpoint of batch 12"):
        values(local_root)


def test_a_checkpoint_of_another_log_is_found_by_the_batches_beside_it(local_root: str) -> None:
    folder = fill(local_root, batches=10)
    other = fill(local_root, "elsewhere", batches=10)
    shutil.copy(other / "9.compact", folder / "9.compact")
    problems = find_problems(CommitLog(local_root, "log"))
    assert {(problem.code, problem.file.rpartition("/")[2]) for problem in problems} == {("checkpoint", "9.compact")}
    with pytest.raises(CorruptionError, match="nothing is deleted"):
        refuse_unproven(CommitLog(local_root, "log"))


def test_a_damaged_checkpoint_can_be_deleted_where_its_batches_are_there(local_root: str) -> None:
    folder = fill(local_root)
    expected = values(local_root)
    cut_in_half(folder / "9.compact")
    (finding,) = verify(folder).findings
    assert finding.action == "delete it: all that it sums up is still there"
    (folder / "9.compact").unlink()
    assert values(local_root) == expected


def test_a_sound_log_gives_no_doubt_whoever_wrote_it_and_however_long_it_is(local_root: str) -> None:
    for batches in (0, 1, 9, 10, 11, 50):
        folder = f"log-{batches}"
        fill(local_root, folder, batches)
        assert find_problems(CommitLog(local_root, folder)) == []


def test_a_batch_that_a_writer_left_under_a_freed_number_gives_no_doubt(
    local_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "CLEANUP_DELAY_MS", -1000)
    sleepers = []
    for _ in range(70):
        fill(local_root, batches=1)
        sleepers.append(CommitLog(local_root, "log"))
        sleepers[-1].read(len)
    CommitLog(local_root, "log").checkpoint()
    first = min(int(file.name) for file in Path(local_root, "log").iterdir() if file.name.isdecimal())

    class Dying(FaultyObjects):
        def create(self, path: str, data: Any) -> None:
            super().create(path, data)
            raise Killed

    sleeper = sleepers[first - 2]
    sleeper.objects = Dying(open_objects(local_root))
    with pytest.raises(Killed):
        sleeper.commit("test", lambda _: {"never": {"value": 1}})
    assert Path(local_root, "log", str(first - 1)).exists()
    assert find_problems(CommitLog(local_root, "log")) == []
    assert verify(Path(local_root, "log")).findings == []


def test_the_first_bytes_of_a_batch_say_whose_it_is() -> None:
    batch, _ = wire.encode_batch({"write_id": "ab" * 16, "time": 1, "operation": "x" * 1000}, [b"{}"], 3)
    assert wire.write_id_in(batch[: wire.START_BYTES]) == "ab" * 16
    assert wire.write_id_in(b'v2\n{"key":"x"}') is None


def test_a_process_notices_that_a_log_goes_on_after_a_batch_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LISTING_SECONDS", 0.0)
    known, other = CommitLog(str(tmp_path), "log"), CommitLog(str(tmp_path), "log")
    known.commit("add", lambda _: {"a": {"n": 0}})
    for change in ({"a": {"n": number}} for number in range(1, 4)):
        other.commit("add", lambda _, change=change: change)  # type: ignore[misc]
    (tmp_path / "log/2").unlink()
    with pytest.raises(CorruptionError, match="log/2: missing, although batch 3 is there"):
        known.read(lambda state: state.get("a"))
    # Once a checkpoint has summed it up, it is not needed any more.
    other.checkpoint()
    assert known.read(lambda state: state.get("a")) == {"key": "a", "n": 3}
