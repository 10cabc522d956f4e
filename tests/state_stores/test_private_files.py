"""Small files of a state directory: read without following links, without waiting, in part."""

import os
from pathlib import Path

from tidewheel.state_stores.private_files import create_private, read_private


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    file, pipe, link = tmp_path / "file", tmp_path / "pipe", tmp_path / "link"
    with create_private(file) as opened:
        opened.write(b"12345")
    os.mkfifo(pipe)
    link.symlink_to(file)
    assert read_private(file, 3) == b"123"
    assert [read_private(path, 9) for path in (pipe, link, tmp_path, tmp_path / "no")] == [None] * 4


def test_a_device_without_an_end_is_not_read(tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    endless.symlink_to("/dev/zero")
    assert read_private(endless, 9) is read_private(Path("/dev/zero"), 9) is None
