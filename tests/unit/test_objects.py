"""The store behind everything: whole objects, created once, with errors of ours."""

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

import pytest

from siltstone import errors
from siltstone.objects import LocalObjects, Objects, canonical_root, close_together, open_objects, replaced
from siltstone.objects.interface import NewObject
from siltstone.testing.faults import FaultyObjects


def test_an_object_is_created_once_and_whole(root: str) -> None:
    objects = open_objects(root)
    objects.create("a/b/1", b"one")
    objects.create("a/b/2", iter([b"t", b"w", b"o"]))
    with pytest.raises(errors.AlreadyExistsError, match="a/b/1"):
        objects.create("a/b/1", b"other")
    with pytest.raises(errors.AlreadyExistsError):
        objects.create("a/b/2", iter([b"other"]))
    assert (objects.read("a/b/1"), b"".join(objects.stream("a/b/2"))) == (b"one", b"two")


def test_the_start_of_an_object_is_all_of_a_shorter_one(root: str) -> None:
    objects = open_objects(root)
    for path, data in (("none", b""), ("short", b"ab"), ("long", b"abcdef")):
        objects.create(path, data)
    assert [objects.read_start(path, 3) for path in ("none", "short", "long")] == [b"", b"ab", b"abc"]
    with pytest.raises(errors.NotFoundError, match="missing"):
        objects.read_start("missing", 3)


def test_one_of_many_racing_creators_wins(root: str) -> None:
    objects = open_objects(root)
    winners: list[int] = []

    def race(racer: int) -> None:
        try:
            objects.create("prize", str(racer).encode())
        except errors.AlreadyExistsError:
            return
        winners.append(racer)

    threads = [threading.Thread(target=race, args=(racer,)) for racer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [objects.read("prize")] == [str(winner).encode() for winner in winners]


def test_listing_shows_a_folder_and_below_it_only_when_asked(root: str) -> None:
    objects = open_objects(root)
    for path in ("x/1", "x/2", "x/y/3", "xx/4"):
        objects.create(path, b"abc")
    assert sorted(object_.path for object_ in objects.list_objects("x")) == ["x/1", "x/2"]
    assert sorted(object_.path for object_ in objects.list_objects("x", recursive=True)) == ["x/1", "x/2", "x/y/3"]
    assert sorted(objects.list_folders("")) == ["x", "xx"]
    assert objects.list_folders("x") == ["y"]
    assert objects.list_objects("nowhere") == []
    assert {object_.size for object_ in objects.list_objects("x")} == {3}
    assert all(object_.modified_ms > 1_600_000_000_000 for object_ in objects.list_objects("x"))


def test_missing_objects_are_not_found_and_deleting_them_is_no_error(root: str) -> None:
    objects = open_objects(root)
    for call in (objects.read, objects.open_reader, lambda path: list(objects.stream(path))):
        with pytest.raises(errors.NotFoundError, match="nope"):
            call("nope")
    assert objects.info("nope") is None
    objects.create("there", b"x")
    objects.delete(["nope", "there"])
    assert objects.info("there") is None
    objects.delete([])


def test_replacing_is_whole(root: str) -> None:
    objects = open_objects(root)
    objects.replace("r", b"one")
    objects.replace("r", iter([b"tw", b"o"]))
    assert objects.read("r") == b"two"


def test_writers_and_readers_move_large_objects_in_pieces(root: str) -> None:
    objects = open_objects(root)
    piece = os.urandom(1 << 20)
    with objects.open_writer("big") as writer:
        for _ in range(12):
            writer.write(piece)
        assert writer.tell() == 12 << 20
    info = objects.info("big")
    assert info is not None
    assert info.size == 12 << 20
    with objects.open_reader("big") as reader:
        reader.seek(-10, os.SEEK_END)
        assert reader.read() == piece[-10:]
        reader.seek(1 << 20)
        assert reader.read(5) == piece[:5]
    assert sum(map(len, objects.stream("big"))) == 12 << 20


def test_writers_that_are_closed_together_are_all_there(root: str) -> None:
    address, objects = canonical_root(root), open_objects(root)
    for count in (0, 1, 3):
        writers = [objects.open_writer(f"{count}/{number}") for number in range(count)]
        for number, writer in enumerate(writers):
            writer.write(b"%d" % number)
        close_together(address, writers)
        assert [objects.read(f"{count}/{number}") for number in range(count)] == [b"0", b"1", b"2"][:count]


def test_a_writer_that_cannot_be_closed_fails_those_closed_with_it(root: str) -> None:
    address, objects = canonical_root(root), open_objects(root)

    def fail() -> None:
        raise errors.StorageError("the disk is full")

    first, last = objects.open_writer("first"), objects.open_writer("last")
    with pytest.raises(errors.StorageError, match="the disk is full"):
        close_together(address, [first, cast("IO[bytes]", NewObject(lambda _: None, fail)), last])
    assert (objects.read("first"), objects.read("last")) == (b"", b"")


def test_a_store_in_place_of_another_is_not_called_from_several_threads(root: str) -> None:
    threads = []
    with replaced(root, FaultyObjects(open_objects(root))):
        writers = [
            cast("IO[bytes]", NewObject(lambda _: None, lambda: threads.append(threading.get_ident())))
            for _ in range(3)
        ]
        close_together(canonical_root(root), writers)
    assert threads == [threading.get_ident()] * 3


def calls_on(objects: Objects) -> dict[str, Callable[[str], object]]:
    """Return every call that takes a path."""
    return {
        "read": objects.read,
        "stream": lambda path: list(objects.stream(path)),
        "info": objects.info,
        "create": lambda path: objects.create(path, b"x"),
        "replace": lambda path: objects.replace(path, b"x"),
        "delete": lambda path: objects.delete([path]),
        "open_reader": objects.open_reader,
        "open_writer": objects.open_writer,
        "list_objects": objects.list_objects,
        "list_folders": objects.list_folders,
    }


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\0b"])
def test_no_path_leaves_the_root(root: str, path: str) -> None:
    for name, call in calls_on(open_objects(root)).items():
        if name.startswith("list") and path in ("", "/etc/passwd"):
            # The root itself, and slashes around a folder, are meant well.
            continue
        with pytest.raises(errors.InvalidInputError):
            call(path)


@pytest.fixture
def linked(local_root: str, tmp_path: Path) -> Path:
    """A folder outside of a root that has links to it and to its file."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    Path(local_root, "d").mkdir(parents=True)
    Path(local_root, "d", "folder").symlink_to(outside)
    Path(local_root, "d", "file").symlink_to("../../outside/file")
    Path(local_root, "d", "again").symlink_to("folder")
    return outside


@pytest.mark.parametrize("folder", ["d/folder", "d/again"])
def test_no_link_leads_out_of_the_root(local_root: str, linked: Path, folder: str) -> None:
    objects = open_objects(local_root)
    for name, call in calls_on(objects).items():
        with pytest.raises(errors.CorruptionError, match=f"{folder}.*symbolic link"):
            call(folder if name.startswith("list") else f"{folder}/file")
    for call in (objects.read, objects.info, objects.open_reader, lambda path: list(objects.stream(path))):
        with pytest.raises(errors.CorruptionError, match=r"d/file.*symbolic link"):
            call("d/file")
    assert objects.list_folders("d") == []
    assert [object_.path for object_ in objects.list_objects("", recursive=True)] == ["d/file"]
    assert [path.read_bytes() for path in linked.iterdir()] == [b"secret"]


def test_a_link_itself_is_replaced_and_deleted_and_what_it_leads_to_stays(local_root: str, linked: Path) -> None:
    objects = open_objects(local_root)
    with pytest.raises(errors.AlreadyExistsError):
        objects.create("d/file", b"mine")
    objects.replace("d/file", b"mine")
    assert objects.read("d/file") == b"mine"
    objects.delete(["d/again"])
    assert (linked / "file").read_bytes() == b"secret"


def test_links_within_the_root_are_followed(local_root: str) -> None:
    objects = open_objects(local_root)
    objects.create("real/a", b"x")
    Path(local_root, "link").symlink_to("real")
    assert objects.read("link/a") == b"x"
    assert sorted(objects.list_folders("")) == ["link", "real"]
    objects.create("link/b", b"y")
    assert objects.read("real/b") == b"y"


def test_a_root_behind_a_link_is_a_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for objects in (open_objects(tmp_path / "link"), LocalObjects(tmp_path / "link")):
        objects.replace("d/a", b"x")
        assert objects.read("d/a") == b"x"
        assert objects.list_folders("") == ["d"]


def test_awkward_names_are_kept_as_they_are(root: str) -> None:
    objects = open_objects(root)
    names = ["a b", "a+b", "é", "100%", "a%20b", "k=v", "!null,x"]
    for name in names:
        objects.create(f"d/{name}", name.encode())
    assert sorted(object_.path for object_ in objects.list_objects("d")) == sorted(f"d/{name}" for name in names)
    assert all(objects.read(f"d/{name}") == name.encode() for name in names)


def test_files_being_written_are_not_listed(local_root: str) -> None:
    objects = open_objects(local_root)
    objects.create("d/1", b"x")
    (Path(local_root) / "d" / ".2.0123.tmp").write_bytes(b"half")
    assert [object_.path for object_ in objects.list_objects("d")] == ["d/1"]


def test_a_failed_creation_leaves_nothing(local_root: str) -> None:
    def broken() -> object:
        yield b"half"
        raise errors.StorageError("source broke")

    with pytest.raises(errors.StorageError, match="source broke"):
        open_objects(local_root).create("d/1", broken())  # type: ignore[arg-type]
    assert list((Path(local_root) / "d").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_clear_error() -> None:
    objects = LocalObjects(Path("/proc/siltstone"))
    with pytest.raises(errors.SiltstoneError, match="/proc/siltstone"):
        objects.create("x", b"y")


def test_a_root_below_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    objects = open_objects(tmp_path / "file" / "lake")
    with pytest.raises(errors.InvalidInputError, match="not a folder"):
        objects.create("x", b"y")
    with pytest.raises(errors.InvalidInputError, match="not a folder"):
        objects.list_objects("x")


def test_a_missing_bucket_is_a_clear_error(s3_endpoint: str) -> None:
    objects = open_objects("s3://no-such-bucket-here/lake")
    for call in (lambda: objects.read("x"), lambda: objects.create("x", b"y"), lambda: objects.list_objects("x")):
        with pytest.raises(errors.StorageError, match="no-such-bucket-here"):
            call()


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("S3://bucket", "s3://bucket"),
        ("file:///tmp/a%20b", "/tmp/a b"),
        ("memory://x/", "memory://x"),
        ("gs://bucket/x", "gs://bucket/x"),
    ],
)
def test_each_root_has_one_spelling(given: str, canonical: str) -> None:
    assert canonical_root(given) == canonical


def test_relative_and_home_roots_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert canonical_root("lake") == canonical_root(Path("./lake")) == str(tmp_path / "lake")
    assert canonical_root("~/lake") == str(tmp_path / "home" / "lake")


@pytest.mark.parametrize("given", ["", "ftp://x/y", "s3:/bucket", "s3://", "http://x", "file://host/x", "a\0b"])
def test_what_is_no_root_is_refused(given: str) -> None:
    with pytest.raises(errors.InvalidInputError):
        canonical_root(given)


def test_errors_survive_pickling() -> None:
    kinds: list[Callable[[str], Exception]] = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.SiltstoneError)
    ]
    assert len(kinds) >= 10
    for kind in kinds:
        copy = pickle.loads(pickle.dumps(kind("what, where, why")))
        assert type(copy) is kind
        assert str(copy) == "what, where, why"
