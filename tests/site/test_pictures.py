"""Pictures that are drawn from the code's tables show the code."""

import sys
import threading
from types import FrameType

import pytest

from checks.parts.pictures import RECORD_PATH, packages
from checks.repository_files import ROOT
from tests.tasks.loop.bench import Bench
from tests.tasks.loop.test_stream_worker import counting, fill


def test_a_record_takes_the_steps_of_its_picture_in_order() -> None:
    bench = Bench(counting(caching=False), {"in": 1, "out": 1})
    assert bench.live()
    fill(bench, "a")
    steps = [(file, function) for _, file, function in RECORD_PATH]
    left = iter(steps)
    wanted = next(left)
    taken: list[tuple[str, str]] = []

    def follow(frame: FrameType, event: str, _: object) -> None:
        nonlocal wanted
        file, function = wanted
        code = frame.f_code
        if event == "call" and code.co_qualname == function and code.co_filename.endswith(file):
            taken.append(wanted)
            wanted = next(left, ("", ""))

    before = sys.getprofile()
    threading.setprofile(follow)
    sys.setprofile(follow)
    try:
        assert bench.live()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert taken == steps


@pytest.mark.parametrize("package", ["streams", "tasks", "rebalance", "state_stores"])
def test_every_folder_of_a_package_is_in_the_picture(package: str) -> None:
    (box,) = (line for line in packages().splitlines() if line.strip().startswith(f'{package}["'))
    drawn = {
        name
        for line in box.partition('"')[2].rstrip('"]').split("<br>")
        for name in line.split(" | ")
    }
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert drawn == folders | {package}
