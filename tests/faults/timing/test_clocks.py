"""Wall clocks of members jump or differ by years; monotonic clocks have different origins."""

import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PATIENT, FaultRun, incarnations
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    LeaderClaim,
    MemberRecord,
    StepRecord,
    TargetRecord,
    TaskRecord,
)

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

_HOUR_S: Final = 3_600
_YEARS_S: Final = 10 * 365 * 24 * _HOUR_S
_JUMPS: Final = (-_HOUR_S, _HOUR_S, -_YEARS_S, _YEARS_S, 0)
_SOURCE: Final = Path(__file__).with_name("wall_clock.c")
#: Origin of another monotonic clock, in seconds.
_ORIGIN_S: Final = 1_000_000


class WallClock:
    """The wall clock of processes that start `within` it, as an offset from the machine's."""

    def __init__(self, library: Path, path: Path, offset_s: int) -> None:
        self._path = path
        path.write_bytes(bytes(8))
        self.jump(offset_s)
        self.within = ("env", f"LD_PRELOAD={library}", f"WALL_CLOCK={path}")

    def jump(self, offset_s: int) -> None:
        with self._path.open("r+b") as file:  # processes have mapped it
            file.write(struct.pack("=q", offset_s * 10**9))


MakeClock = Callable[[str, int], WallClock]


@pytest.fixture
def make_clock(tmp_path: Path) -> MakeClock:
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("wall clocks of processes need Linux and a C compiler")
    library = tmp_path / "wall_clock.so"
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"], check=True
    )
    return lambda name, offset_s: WallClock(library, tmp_path / f"{name}.clock", offset_s)


@pytest.fixture
def other_origin() -> tuple[str, ...]:
    """Return a command's prefix that moves the origin of its monotonic clock."""
    prefix = ("unshare", "--time", "--monotonic", str(_ORIGIN_S))
    asked = [*prefix, sys.executable, "-c", "import time; print(time.monotonic())"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        answer = process.communicate()[0]
    if process.returncode or float(answer) < _ORIGIN_S:
        pytest.skip(f"this kernel, or this user, can't start a time namespace: {answer!r}")
    return prefix


@pytest.mark.fault("31")
def test_jumps_of_wall_clocks_move_no_task(
    make_run: MakeRun,
    make_clock: MakeClock,
    other_origin: tuple[str, ...],
    record_property: Callable[..., None],
) -> None:
    run = make_run(config={**PATIENT, "session_timeout_ms": 15_000})
    clocks = {"a": make_clock("a", _HOUR_S), "b": make_clock("b", -_YEARS_S)}
    run.begin("a", within=clocks["a"].within)
    run.start("b", within=(*other_origin, *clocks["b"].within))
    run.start("c")
    run.until_shared()
    run.until_progress()
    before = _decisions(run)
    slowest_s = 0.0
    for offset_s in _JUMPS:
        for name, seconds in zip(clocks, (offset_s, -offset_s), strict=True):
            clocks[name].jump(seconds)
            run.until_clock(name, seconds)
        run.until_clock("c", 0)
        slowest_s = max(slowest_s, run.until_progress())
    record_property("recovery_s", slowest_s)
    record_property("times", len(_JUMPS) * len(clocks))
    assert _decisions(run) == before, "no claim, no death, no grant"
    _verify_times(run)


@pytest.mark.fault("55")
@pytest.mark.parametrize("offset_s", [2 * _HOUR_S, _YEARS_S, -_YEARS_S])
def test_leader_with_a_wrong_clock_leads(
    make_run: MakeRun,
    make_clock: MakeClock,
    offset_s: int,
    record_property: Callable[..., None],
) -> None:
    run = make_run(config={**PATIENT, "session_timeout_ms": 15_000})
    run.begin("a", within=make_clock("a", offset_s).within)  # it leads
    claim = run.trace().claim()
    for name in ("b", "c"):
        run.start(name)
    run.until_shared()
    for name, seconds in (("a", offset_s), ("b", 0)):
        run.until_clock(name, seconds)
    lost = incarnations(run.workers["c"])
    run.kill("c")
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    run.start("c")
    run.until_shared()
    run.until_clock("a", offset_s)
    assert run.trace().claim() == claim
    assert run.trace().fenced() == {*lost}, "only the lost worker is declared dead"
    _verify_times(run)


def _decisions(run: FaultRun) -> list[AnyRecord]:
    kinds = (LeaderClaim, MemberRecord, TargetRecord, StepRecord, TaskRecord)
    return [each for each in run.trace().records if isinstance(each, kinds)]


def _verify_times(run: FaultRun) -> None:
    """Verify the output, and that it has the event times of the input."""
    run.verify()
    times, expected = (
        Counter(record.timestamp for record in run.cluster.read(topic))
        for topic in (run.sink, run.source)
    )
    assert times == expected
