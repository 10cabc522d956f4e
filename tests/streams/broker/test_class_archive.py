"""Class archives kept for the next broker."""

import os
from pathlib import Path

import pytest

from tidewheel.streams.broker.class_archive import ClassArchive
from tidewheel.streams.broker.java import Java


def _archive(
    folder: Path, *, version: str = "17.0.1", jars: tuple[str, ...] = ("a.jar",)
) -> ClassArchive:
    java = Java(executable=Path("java"), major=17, version=version, origin="PATH")
    return ClassArchive(folder / "archives", java, [Path(jar) for jar in jars])


def _made_by(archive: ClassArchive) -> Path:
    """Do Java's work for the option."""
    (told,) = [each for each in archive.making_options() if "AtExit" in each]
    part = Path(told.partition("=")[2])
    part.write_text("classes")
    return part


def test_the_first_broker_that_ends_cleanly_makes_the_archive_for_all(tmp_path: Path) -> None:
    first, second = _archive(tmp_path), _archive(tmp_path)
    assert first.options() == ()
    parts = {_made_by(first), _made_by(second)}
    assert len(parts) == 2
    first.keep(143)
    second.keep(0)
    third = _archive(tmp_path)
    assert third.options() == third.making_options()
    assert third.options()[0] == f"-XX:SharedArchiveFile={third.file}"
    assert list(third.file.parent.iterdir()) == [third.file]
    third.keep(137)  # without an archive
    assert third.file.exists()


@pytest.mark.parametrize("exit_code", [137, 1, None])
def test_the_partial_archive_of_a_killed_broker_is_deleted(
    tmp_path: Path, exit_code: int | None
) -> None:
    archive = _archive(tmp_path)
    part = _made_by(archive)
    archive.keep(exit_code)
    assert not part.exists()
    assert archive.options() == ()


def test_another_java_and_other_jars_have_separate_archives(tmp_path: Path) -> None:
    files = {
        _archive(tmp_path).file,
        _archive(tmp_path, version="21.0.2").file,
        _archive(tmp_path, jars=("a.jar", "b.jar")).file,
    }
    assert len(files) == 3
    assert _archive(tmp_path).file in files


def test_abandoned_partial_archives_are_deleted(tmp_path: Path) -> None:
    """A machine crash while Java wrote leaves 50 MB behind."""
    archive = _archive(tmp_path)
    old, young = _made_by(archive), _made_by(_archive(tmp_path))
    os.utime(old, (0, 0))
    _archive(tmp_path).making_options()
    assert (old.exists(), young.exists()) == (False, True)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "archives").write_text("a file")
    archive = _archive(tmp_path)
    assert archive.making_options() == ()
    archive.keep(143)
