"""Soak: `python -m tests.faults.soak --minutes 30`, faults at random under load, then verification.

Three brokers live through all rounds. Each round has an application of its own, three workers and a
steady feed; it is verified at its end, so an error is found near its cause.
"""

import argparse
import json
import logging
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from checks import generated_parts
from checks.run_tests import speed_up_starts
from tests.faults.broker_cluster import NODES, BrokerCluster
from tests.faults.fault_run import FaultRun
from tests.faults.soak.hosts import Host, hosts, missing
from tests.faults.soak.nemesis import Nemesis
from tests.faults.soak.schedule import draw_round
from tests.faults.verification.verdict import Verdict
from tests.integration.cluster import Cluster

_RECORDS_PER_S: Final = 400
_PROGRESS_S: Final = 30.0
_CONFIG: Final = {
    # Pauses of up to 15 s: shorter ones are waited for, longer ones end in a fence.
    "worker_hang_timeout_ms": 5_000,
    # Brokers may be away for minutes on a busy machine.
    "drain_timeout_ms": 600_000,
}
#: A loss of a worker's disk is restored by a helper.
_RUNS_FROM: Final = 2_000


class Soak:
    """Rounds of faults on one cluster of brokers.

    Attributes:
        faults: Number of faults by kind.
        restarts: Number of restarts by cause: crashes of the Kafka client, starts without brokers.
    """

    def __init__(self, seed: int, folder: Path, brokers: BrokerCluster) -> None:
        self.faults: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.worst_stall_s = 0.0
        self.verdicts: list[Verdict] = []
        self.rounds = 0
        self._seed, self._folder, self._brokers = seed, folder, brokers
        self._begun_s = time.monotonic()

    def round(self, number: int, seconds: float) -> None:
        """Run one round; raise AssertionError for a violation."""
        folder = self._folder / f"round-{number}"
        folder.mkdir()
        with ExitStack() as stack:
            cluster = Cluster(self._brokers.bootstrap_servers)
            stack.callback(cluster.close)
            machines: dict[str, Host] = {}
            if not missing():
                machines = stack.enter_context(hosts(folder, self._brokers.bootstrap_servers))
            run = FaultRun(
                cluster=cluster,
                folder=folder,
                application_id=f"soak-{self._seed}-{number}",
                config=_CONFIG,
                rate=_RECORDS_PER_S,
                runs_from=_RUNS_FROM,
                supervised=True,
                within={name: host.within for name, host in machines.items()},
            )
            nemesis = Nemesis(run, self._brokers, machines)
            stack.callback(self._add, run, nemesis)
            schedule = draw_round(self._seed, number, seconds, brokers=NODES, hosts=bool(machines))
            run.begin()
            nemesis.inflict(schedule, self._progress(nemesis))
            run.resumes = True
            run.verify()
            self.rounds += 1
        shutil.rmtree(folder)

    def _add(self, run: FaultRun, nemesis: Nemesis) -> None:
        """Add the results of a round, and end its processes."""
        if run.verdict is not None:
            self.verdicts.append(run.verdict)
        run.close()
        self.worst_stall_s = max(self.worst_stall_s, nemesis.stalls.worst_s)
        self.faults += nemesis.counts
        self.faults["kill at failpoint"] += run.crashes["kill"]
        self.restarts += Counter(
            client=run.crashes["client"], unreachable=run.crashes["unreachable"]
        )

    def _progress(self, nemesis: Nemesis) -> "_Progress":
        return _Progress(self._begun_s, nemesis)

    def result(self, minutes: float, started: datetime, *, passed: bool) -> dict[str, object]:
        """Return the result, as the reliability page reads it."""
        verdicts = self.verdicts
        return {
            "seed": self._seed,
            "minutes": minutes,
            "date": started.date().isoformat(),
            "started": started.isoformat(timespec="seconds"),
            "passed": passed,
            "faults": dict(sorted(self.faults.items())),
            "rounds": self.rounds,
            "records": sum(each.records for each in verdicts),
            "keys": sum(each.keys for each in verdicts),
            "lost": sum(each.lost + each.missing_input for each in verdicts),
            "repeated": sum(each.repeated for each in verdicts),
            "wrong": sum(
                len(each.wrong) + len(each.wrong_state) + len(each.wrong_copies)
                for each in verdicts
            ),
            "worst_stall_s": round(self.worst_stall_s, 1),
            "restarts": dict(self.restarts),
        }


class _Progress:
    def __init__(self, begun_s: float, nemesis: Nemesis) -> None:
        self._begun_s, self._nemesis = begun_s, nemesis
        self._next_s = time.monotonic() + _PROGRESS_S

    def __call__(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PROGRESS_S
            _print(
                f"{(now_s - self._begun_s) / 60:5.1f} min: {self._nemesis.counts.total()} faults in "
                f"this round, worst stall {self._nemesis.stalls.worst_s:.1f} s"
            )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of faults")
    parser.add_argument("--seed", type=int, help="repeat the schedule of an earlier soak")
    parser.add_argument("--round-minutes", type=float, default=5.0, help="minutes of one round")
    parser.add_argument("--first", type=int, default=1, help="number of the first round")
    parser.add_argument("--results", type=Path, help="append the result to this file, as a line")
    chosen = parser.parse_args()
    speed_up_starts()
    seed: int = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    started = datetime.fromtimestamp(time.time_ns() // 1_000_000_000, UTC)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    _print(f"seed {seed}, {chosen.minutes:g} minutes, logs in {folder}")
    logging.basicConfig(
        filename=folder / "nemesis.log", level=logging.INFO, format="%(asctime)s %(message)s"
    )
    with BrokerCluster(folder) as brokers:
        soak = Soak(seed, folder, brokers)
        passed = _run(soak, chosen.first, chosen.minutes, chosen.round_minutes, seed)
    result = soak.result(chosen.minutes, started, passed=passed)
    _print(json.dumps(result, indent=2))
    if chosen.results is not None:
        with chosen.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        generated_parts.main(["--write"])
    if passed:
        shutil.rmtree(folder)
    _print("passed: nothing lost, nothing repeated, state equal" if passed else "FAILED")
    return not passed


def _run(soak: Soak, first: int, minutes: float, round_minutes: float, seed: int) -> bool:
    number, left = first, minutes
    while left > 0:
        length = min(round_minutes, left)
        _print(f"round {number}: {length:g} minutes")
        try:
            soak.round(number, length * 60)
        except Exception as error:
            logging.getLogger(__name__).exception("round %d", number)
            _print(f"round {number} failed: {type(error).__name__}: {error}")
            _print(
                f"repeat it: python -m tests.faults.soak --seed {seed} --first {number} "
                f"--minutes {length:g} --round-minutes {round_minutes:g}"
            )
            return False
        _print(f"round {number} verified: {soak.verdicts[-1].records:,} records")
        number, left = number + 1, left - length
    return True


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
