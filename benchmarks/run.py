"""One run of one system: start, wait for committed input, stop, check, measure."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks import progress
from benchmarks.environment.peer_process import PeerProcess, RunFailedError, Usage, peer_process
from benchmarks.environment.systems import System
from benchmarks.progress import CommitRecord, Slope
from benchmarks.topics import input_topic, outputs
from benchmarks.topics.commit_log import read_group_commits
from benchmarks.topics.generator import InputSpec
from benchmarks.topics.group_progress import GroupProgress, own_topics

POLL_S = 0.25
START_ALLOWANCE_S = 90
SLOWEST_RECORDS_PER_S = 4_000
ADMIN_TIMEOUT_S = 30.0


class WrongResultError(RunFailedError):
    """A run with wrong output; it voids the whole round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Parameters of a run.

    Attributes:
        run_name: Name of the run's topics and group; unique on a broker.
        cache_bytes: Output cache; 0: every update is an output.
        threads: Threads of systems with a choice; else None.
        source: The filled input.
        second_source: A filled second input whose records are work too.
        repartitions: Records are done only after the system's internal topics.
        tally: Reader of the output; by default counts or copies.
        untimed_records: Number of records in the warm-up.
        extra: The suite's arguments of the system's program.
        slowest_records_per_s: Slower runs are stopped.
    """

    system: System
    job: str
    run_name: str
    guarantee: str
    commit_interval_ms: int
    cache_bytes: int
    threads: int | None
    source: InputSpec
    untimed_records: int
    second_source: InputSpec | None = None
    repartitions: bool = False
    tally: outputs.Tally | None = None
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    slowest_records_per_s: float = SLOWEST_RECORDS_PER_S

    @property
    def work(self) -> tuple[InputSpec, ...]:
        return (self.source,) if self.second_source is None else (self.source, self.second_source)

    @property
    def records(self) -> int:
        return sum(source.records for source in self.work)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    slope: Slope
    outputs: int
    rss_mib_max: float
    cpu_s_per_million: float


def run_once(
    bootstrap_servers: str, request: RunRequest, expected: Mapping[bytes, int]
) -> RunResult:
    """Run a system over the whole input and return its figures.

    Raises:
        WrongResultError: The output differs from the direct computation.
        RunFailedError: The run has no figure for another reason.
    """
    try:
        return _checked_run(bootstrap_servers, request, expected)
    except outputs.UnreadableOutputError as error:
        raise WrongResultError(f"the result is wrong: {error}") from error
    except (KafkaException, TimeoutError) as error:
        raise RunFailedError(f"the broker failed, or did not answer in time: {error!r}") from error


def _checked_run(
    bootstrap_servers: str, request: RunRequest, expected: Mapping[bytes, int]
) -> RunResult:
    admin = input_topic.quiet_admin(bootstrap_servers)
    output_topic = f"{request.run_name}-out"
    input_topic.create_topic(admin, output_topic, request.source.partitions)
    try:
        usage = _run_process(bootstrap_servers, request, output_topic)
        tally = request.tally or outputs.OutputTally(outputs.decoder(request.system.output_format))
        outputs.read_outputs(bootstrap_servers, output_topic, tally)
        problems = tally.problems(expected)
        if problems:
            raise WrongResultError(f"the result is wrong: {'; '.join(problems)}")
        stages = _stages(bootstrap_servers, request)
        try:
            found = progress.staged_slope(
                stages,
                untimed_records=request.untimed_records,
                records=request.records,
                commit_interval_ms=request.commit_interval_ms,
            )
        except ValueError as error:
            raise RunFailedError(str(error)) from error
        return RunResult(
            slope=found,
            outputs=tally.outputs,
            rss_mib_max=usage.rss_bytes_max / 2**20,
            cpu_s_per_million=usage.cpu_s / request.records * 1e6,
        )
    finally:
        delete_run_topics(admin, request.run_name)


def _stages(bootstrap_servers: str, request: RunRequest) -> list[list[CommitRecord]]:
    commits = read_group_commits(bootstrap_servers, request.run_name)
    first = [
        replace(commit, partition=commit.partition + number * source.partitions)
        for number, source in enumerate(request.work)
        for commit in commits.get(source.topic, [])
    ]
    if not request.repartitions:
        return [first]
    own = own_topics(list(commits), request.run_name)
    return [first, *(commits[topic] for topic in own)]


def _run_process(bootstrap_servers: str, request: RunRequest, output_topic: str) -> Usage:
    arguments = {
        "bootstrap_servers": bootstrap_servers,
        "application_id": request.run_name,
        "input_topic": request.source.topic,
        "output_topic": output_topic,
        "guarantee": request.guarantee,
        "commit_interval_ms": str(request.commit_interval_ms),
        "cache_bytes": str(request.cache_bytes),
        "threads": str(request.threads or 1),
        **request.extra,
    }
    with peer_process(request.system, request.job, arguments) as peer:
        try:
            _await_all_committed(bootstrap_servers, request, peer)
        except RunFailedError as failure:
            raise RunFailedError(f"{failure}\n{peer.log_tail()}") from failure
        peer.stop()
        return peer.usage


def _await_all_committed(bootstrap_servers: str, request: RunRequest, peer: PeerProcess) -> None:
    limit_s = (
        START_ALLOWANCE_S
        + request.records / request.slowest_records_per_s
        + 2 * request.commit_interval_ms / 1000
    )
    deadline = time.monotonic() + limit_s
    places = [
        TopicPartition(source.topic, partition)
        for source in request.work
        for partition in range(source.partitions)
    ]
    done = 0
    with GroupProgress(bootstrap_servers, request.run_name) as group:
        while done < request.records or (request.repartitions and not group.own_topics_done()):
            peer.look()
            code = peer.process.poll()
            if code is not None:
                raise RunFailedError(
                    f"it ended by itself with exit code {code} after {done} records"
                )
            if time.monotonic() > deadline:
                raise RunFailedError(
                    f"it had committed {done} of {request.records} records after {limit_s:.0f} s"
                )
            time.sleep(POLL_S)
            done = max(done, group.committed(places))


def delete_run_topics(admin: AdminClient, run_name: str) -> None:
    names = [name for name in admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics if run_name in name]
    input_topic.delete_topics(admin, sorted(names))
