"""Suite `restore`: applications without local state restore the same changelog in turn.

The changelog is filled to its last hundredth, a snapshot is made, and the rest is filled. Each
system restores the same 8 M records to an empty disk. Its store is checked by the number of rows
and the sum of their checksums. Each system's restore events give the time, from the first start to
the last end; the parameters have the whole start-up. `growth` has smaller changelogs
(`benchmarks.restore.growth`).
"""

import dataclasses
import json
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException
from rich.console import Console

from benchmarks.environment.peer_process import RunFailedError, Usage, started, tail_of
from benchmarks.environment.systems import SYSTEMS
from benchmarks.peers.tidewheel import restore as tidewheel
from benchmarks.report.results import Row, make_rows
from benchmarks.restore import beside, growth
from benchmarks.restore.changelog import Changelog, expected_content
from benchmarks.run import (
    ADMIN_TIMEOUT_S,
    WrongResultError,
    delete_run_topics,
)
from benchmarks.topics import input_topic
from benchmarks.topics.generator import InputSpec

JOBS: Final = ("changelog", "snapshot_and_tail", "spark", beside.JOB, growth.JOB)
SYSTEM_NAMES: Final = ("tidewheel", "kafka-streams", "quix")
#: Systems of each job.
SYSTEMS_OF: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(JOBS, frozenset(SYSTEM_NAMES)),
    beside.JOB: frozenset({"tidewheel"}),
    growth.JOB: frozenset(way.system for way in growth.WAYS),
}
#: Two restore threads are Kafka Streams' best on two cores.
KAFKA_STREAMS_THREADS: Final = 2
RUN_TIMEOUT_S: Final = 1_800
LOOK_S: Final = 0.2
TAIL_SHARE: Final = 0.01
_SEED: Final = 20_260_102
#: Temporary reasons against a group's deletion: a member has not left, or the broker just started.
_PASSING: Final = frozenset(
    {
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSize:
    records: int = 8_000_000
    keys: int = 1_000_000
    load_records: int = 16_000_000
    pairs: int = 3
    growth_rounds: int = 1


FULL: Final = RestoreSize()
QUICK: Final = RestoreSize(pairs=1)


@dataclass(slots=True)
class RestoreSuite:
    """Runs jobs against a broker and collects the rows; `failures` has one line each."""

    bootstrap_servers: str
    size: RestoreSize
    jobs: tuple[str, ...]
    systems: tuple[str, ...]
    console: Console
    date: str
    failures: list[str] = field(default_factory=list[str])
    #: Results of slow peers: their replay is equal in all jobs and runs once.
    _single_runs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def rows(self) -> Iterator[list[Row]]:
        for system in self.systems:  # no download or compilation between two turns
            SYSTEMS[system].command("restore")
        jobs = [job for job in self.jobs if job != growth.JOB]
        if jobs:
            with self._changelog(self.size.records, self.size.keys) as (changelog, folder):
                self._prepare(changelog, folder)
                for job in jobs:
                    if job == beside.JOB:
                        yield self._beside(changelog, folder)
                    else:
                        yield self._restores(job, changelog, folder)
        if growth.JOB in self.jobs:
            for point in growth.points(self.size.records, self.size.keys):
                yield list(self._grown(point))

    @contextmanager
    def _changelog(self, records: int, keys: int) -> Generator[tuple[Changelog, Path]]:
        """Yield an empty changelog and a folder; delete both afterwards."""
        spec = InputSpec(records=records, keys=keys, seed=_SEED)
        changelog = Changelog(
            application_id=f"bench-restore-{secrets.token_hex(3)}",
            spec=spec,
            tail=int(spec.records * TAIL_SHARE),
        )
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix=f"{changelog.application_id}-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            admin = input_topic.quiet_admin(self.bootstrap_servers)
            stack.callback(delete_run_topics, admin, changelog.application_id)
            yield changelog, folder

    def _prepare(self, changelog: Changelog, folder: Path) -> None:
        """Fill the changelog, and make the snapshot before its tail."""
        records, middle = changelog.spec.records, changelog.spec.records - changelog.tail
        began_s = time.monotonic()
        changelog.create(self.bootstrap_servers)
        changelog.fill(self.bootstrap_servers, 0, middle)
        if "snapshot_and_tail" in self.jobs:
            self._snapshot(changelog, folder)
        changelog.fill(self.bootstrap_servers, middle, records)
        if "quix" in self.systems:
            changelog.fill_quix(self.bootstrap_servers)
        self._say(f"filled {changelog.topic} in {time.monotonic() - began_s:.0f} s")

    def _snapshot(self, changelog: Changelog, folder: Path) -> None:
        from tidewheel.bulk import snapshot  # noqa: PLC0415 - only where Spark is

        parameters = self._parameters(changelog, folder / "none")
        parameters["snapshot_location"] = str(_snapshots(folder))
        began_s = time.monotonic()
        snapshot(tidewheel.topology(changelog.input), tidewheel.settings(parameters))
        self._say(f"snapshot by Spark in {time.monotonic() - began_s:.1f} s, its start included")

    def _parameters(self, changelog: Changelog, state_dir: Path) -> dict[str, str]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "application_id": changelog.application_id,
            "input_topic": changelog.input,
            "state_dir": str(state_dir),
            "threads": str(KAFKA_STREAMS_THREADS),
            "partitions": str(changelog.spec.partitions),
        }

    def _restores(self, job: str, changelog: Changelog, folder: Path) -> list[Row]:
        found: dict[str, list[dict[str, Any]]] = {}
        for number in range(self.size.pairs):
            for system in self.systems:
                if system == "quix" and number:
                    continue  # it takes many times as long as the others
                outcome = self._single_runs.get(system) or self._guarded(
                    f"{job}, {system}, round {number + 1}",
                    partial(self._restore, job, system, changelog, folder),
                )
                if outcome is None:
                    continue
                found.setdefault(system, []).append(outcome)
                if system == "quix":
                    self._single_runs[system] = outcome
        return [
            row
            for system, runs in found.items()
            for row in self._rows(job, system, runs, changelog)
        ]

    def _restore(self, job: str, system: str, changelog: Changelog, folder: Path) -> dict[str, Any]:
        extra: dict[str, str] = {}
        if system == "tidewheel" and job == "snapshot_and_tail":
            extra["snapshot_location"] = str(_snapshots(folder))
        if system == "tidewheel" and job == "spark":
            extra["spark"] = "yes"
        return self._checked(system, changelog, folder, extra)

    def _checked(
        self, system: str, changelog: Changelog, folder: Path, extra: Mapping[str, str]
    ) -> dict[str, Any]:
        outcome = self._run(system, "restore", changelog, folder, extra)
        _check_content(outcome, changelog.spec)
        return outcome

    def _rows(
        self, job: str, system: str, runs: list[dict[str, Any]], changelog: Changelog
    ) -> list[Row]:
        parameters = self._restore_parameters(system, runs, changelog)
        parameters["how"] = job if system == "tidewheel" else "replay"
        seconds = [_seconds(run) for run in runs]
        metrics = {
            "seconds": seconds,
            "records_per_s": [changelog.spec.records / run_s for run_s in seconds],
            "rss_mib_max": [run["rss_mib_max"] for run in runs],
        }
        return make_rows(metrics, system=system, job=job, guarantee=None, parameters=parameters)

    def _restore_parameters(
        self, system: str, runs: list[dict[str, Any]], changelog: Changelog
    ) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "records": changelog.spec.records,
            "keys": changelog.spec.keys,
            "partitions": changelog.spec.partitions,
            "value_bytes": changelog.spec.value_bytes,
            "ready_s": [round(run["ready_s"], 2) for run in runs],
            "date": self.date,
        }
        if system == "kafka-streams":
            parameters["threads"] = KAFKA_STREAMS_THREADS
        if "spark_start_s" in runs[0]:
            parameters["spark_start_s"] = [round(run["spark_start_s"], 2) for run in runs]
        return parameters

    def _grown(self, point: growth.Point) -> Iterator[Row]:
        ways = [way for way in growth.WAYS if way.system in self.systems]
        found: dict[str, list[dict[str, Any]]] = {}
        with self._changelog(point.records, point.keys) as (changelog, folder):
            changelog.create(self.bootstrap_servers)
            changelog.fill(self.bootstrap_servers, 0, point.records)
            for number in range(self.size.growth_rounds):
                for way in ways:
                    extra = dict(way.extra)
                    if way.leaves_snapshot or way.uses_snapshot:
                        extra["snapshot_location"] = f"{_snapshots(folder)}-{number}"
                    outcome = self._guarded(
                        f"growth, {point.records} records, {point.keys} keys, {way.name}, round {number + 1}",
                        partial(self._checked, way.system, changelog, folder, extra),
                    )
                    if outcome is not None:
                        found.setdefault(way.name, []).append(outcome)
            for way in ways:
                runs = found.get(way.name)
                if runs:
                    parameters = self._restore_parameters(way.system, runs, changelog)
                    parameters |= {"how": way.how, "varied": list(point.varied)}
                    yield from make_rows(
                        {"seconds": [_seconds(run) for run in runs]},
                        system=way.name,
                        job=growth.JOB,
                        guarantee=None,
                        parameters=parameters,
                    )

    def _beside(self, changelog: Changelog, folder: Path) -> list[Row]:
        load = InputSpec(records=self.size.load_records, seed=_SEED)
        input_topic.ensure_input(self.bootstrap_servers, load)
        busy: dict[str, list[dict[str, Any]]] = {}
        steady: dict[str, list[dict[str, Any]]] = {}
        filled = {"load_topic": load.topic, "load_records": str(load.records)}
        growing = {"load_topic": f"{changelog.application_id}-steady"}
        for number in range(self.size.pairs):
            label = f"{beside.JOB}, round {number + 1}"
            outcome = self._beside_each(f"{label}, busy", changelog, folder, filled, nullcontext)
            for name, run in outcome.items():
                busy.setdefault(name, []).append(run)
            if "restore" in outcome:
                input_of = partial(
                    beside.steady_input,
                    self.bootstrap_servers,
                    growing["load_topic"],
                    load,
                    outcome["restore"]["records_per_s"] * beside.STEADY_SHARE,
                    group=changelog.application_id,
                )
                outcome = self._beside_each(
                    f"{label}, steady", changelog, folder, growing, input_of
                )
                for name, run in outcome.items():
                    steady.setdefault(name, []).append(run)
        return beside.beside_rows(busy, steady, records=changelog.spec.records, date=self.date)

    def _beside_each(
        self,
        label: str,
        changelog: Changelog,
        folder: Path,
        load: Mapping[str, str],
        input_of: Callable[[], AbstractContextManager[None]],
    ) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name in beside.SYSTEM_OF:
            self._forget_counts(changelog)
            with input_of():
                outcome = self._guarded(
                    f"{label}, beside {name}",
                    partial(
                        self._run_beside,
                        name,
                        changelog,
                        folder,
                        {**load, **beside.to_burn(found)},
                    ),
                )
            if outcome is None:
                break
            found[name] = outcome
        return found

    def _run_beside(
        self, name: str, changelog: Changelog, folder: Path, extra: Mapping[str, str]
    ) -> dict[str, Any]:
        """Run the task with a competing load; check the restored content."""
        outcome = self._run(
            "tidewheel", "restore_beside", changelog, folder, {**extra, "beside": name}
        )
        if name == "restore":
            _check_content(outcome, changelog.spec)
        return outcome

    def _forget_counts(self, changelog: Changelog) -> None:
        """Make the next run count the load from its start, into an empty store."""
        # Its futures have no types.
        admin = cast("Any", input_topic.quiet_admin(self.bootstrap_servers))
        topic = f"{changelog.application_id}-counts-changelog"
        if topic in admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics:
            input_topic.delete_topics(admin, [topic])
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        while True:
            groups = admin.delete_consumer_groups([changelog.application_id])
            try:
                groups[changelog.application_id].result(ADMIN_TIMEOUT_S)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.GROUP_ID_NOT_FOUND:
                    return
                if code not in _PASSING or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"group {changelog.application_id} could not be deleted: {error}"
                    ) from error
                time.sleep(LOOK_S)
            else:
                return

    def _guarded(self, label: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            outcome = run()
        except RunFailedError as failure:
            self.failures.append(f"{label}: {failure}")
            self.console.print(f"{label}: {failure}", style="red", markup=False, soft_wrap=True)
            return None
        shown = {name: round(value, 2) for name, value in outcome.items() if name != "digest"}
        self._say(f"{label}: {shown}")
        return outcome

    def _run(
        self,
        system: str,
        program: str,
        changelog: Changelog,
        folder: Path,
        extra: Mapping[str, str],
    ) -> dict[str, Any]:
        state_dir = Path(tempfile.mkdtemp(prefix="state-", dir=folder))
        arguments = {**self._parameters(changelog, state_dir), **extra}
        log_path, out_path = folder / "log", folder / "out"
        usage = Usage()
        with (
            log_path.open("wb") as log,
            out_path.open("wb") as out,
            started(
                SYSTEMS[system].command(program), arguments, folder, out=out, log=log
            ) as process,
        ):
            code = _watched(process, usage)
        shutil.rmtree(state_dir, ignore_errors=True)
        lines = out_path.read_text(errors="replace").strip().splitlines()
        if code or not lines:
            raise RunFailedError(f"it ended with exit code {code}\n{tail_of(log_path)}")
        outcome: dict[str, Any] = json.loads(lines[-1])
        return {**outcome, "rss_mib_max": usage.rss_bytes_max / 2**20}

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def with_size(size: RestoreSize, *, records: int | None, pairs: int | None) -> RestoreSize:
    """Return a size with other records or rounds; there is a key per eight records."""
    if records is not None:
        size = dataclasses.replace(
            size, records=records, keys=max(records // 8, 1), load_records=records
        )
    return size if pairs is None else dataclasses.replace(size, pairs=pairs)


def _check_content(outcome: Mapping[str, Any], spec: InputSpec) -> None:
    expected = expected_content(spec)
    if (outcome["rows"], outcome["digest"]) != (expected.rows, expected.digest):
        raise WrongResultError(
            f"the result is wrong: {outcome['rows']} rows with checksum {outcome['digest']} instead of {expected}"
        )


def _seconds(run: Mapping[str, Any]) -> float:
    total: float = run.get("spark_s", 0.0) + run["seconds"]
    return total


def _snapshots(folder: Path) -> Path:
    return folder / "snapshots"


def _watched(process: subprocess.Popen[bytes], usage: Usage) -> int:
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            return process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            usage.look(process.pid)
    raise RunFailedError(f"it had not restored everything after {RUN_TIMEOUT_S} s")
