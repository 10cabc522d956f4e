"""The measured systems: preparation, start and options.

Every peer is a program with NAME=VALUE arguments that runs until SIGTERM and then closes cleanly.
All get `bootstrap_servers`, `application_id` (the consumer group), `input_topic`, `output_topic`,
`state_dir`, `guarantee`, `commit_interval_ms`, `cache_bytes` and `threads`; and from the suite
`job`, with `other_topic` for a second input.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.environment import java, python_environment
from benchmarks.report.results import GUARANTEES

PEERS = Path(__file__).parents[1] / "peers"
# Java exits with 128 + 15 after SIGTERM, even after a clean close.
JAVA_STOPPED = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One measured system.

    Attributes:
        command: Prepares a job and returns its start command.
        output_format: Format of its counts: `int64`, `json`, or `copy` (see `outputs`).
        default_commit_interval_ms: Its default by guarantee; empty without one.
        cache: It also runs with an output cache. A stateful system without a cache runs as it is.
        threads: Numbers of threads to choose from; empty without a choice.
        record_share: Share of the records, for much slower systems.
        slowest_share: Share of the usual minimum rate; slower runs are stopped.
        clean_exits: Exit codes of a clean stop.
    """

    name: str
    command: Callable[[str], list[str]]
    output_format: str
    guarantees: tuple[str, ...] = GUARANTEES
    default_commit_interval_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    cache: bool = True
    threads: tuple[int, ...] = ()
    record_share: float = 1.0
    slowest_share: float = 1.0
    clean_exits: tuple[int, ...] = (0,)


def _tidewheel(job: str) -> list[str]:
    return [sys.executable, str(_program("tidewheel", f"{job}.py"))]


def _tidewheel_workers_2(job: str) -> list[str]:
    return [*_tidewheel(job), "workers=2"]


def _tidewheel_workers_4(job: str) -> list[str]:
    return [*_tidewheel(job), "workers=4"]


def _kafka_streams(job: str) -> list[str]:
    source = _program("kafka_streams", f"{_camel(job)}.java")
    return java.compiled_command(source)


def _quix(job: str) -> list[str]:
    return _in_own_environment("quix", job)


def _faust(job: str) -> list[str]:
    return _in_own_environment("faust", job)


def _bytewax(job: str) -> list[str]:
    return _in_own_environment("bytewax", job)


def _raw_client(_job: str) -> list[str]:
    return [sys.executable, str(_program("raw_client", "consume_produce.py"))]


def _raw_client_2(job: str) -> list[str]:
    return [*_raw_client(job), "processes=2"]


def _by_hand(_job: str) -> list[str]:
    return [sys.executable, str(_program("by_hand", "count_by_key.py"))]


def _in_own_environment(system: str, job: str) -> list[str]:
    python = python_environment.prepared_python(system, requirements(system))
    return [str(python), str(_program(system, f"{job}.py"))]


def requirements(system: str) -> Path:
    return PEERS / system / "requirements.txt"


def _program(system: str, name: str) -> Path:
    path = PEERS / system / name
    if not path.exists():
        raise FileNotFoundError(f"{system} has no program for this job: {path.name} is missing")
    return path


def _camel(job: str) -> str:
    return "".join(part.capitalize() for part in job.split("_"))


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        System(
            name="tidewheel",
            command=_tidewheel,
            output_format="int64",
            default_commit_interval_ms={"at_least_once": 100, "exactly_once": 100},
        ),
        System(
            name="tidewheel-workers-2",
            command=_tidewheel_workers_2,
            output_format="int64",
            default_commit_interval_ms={"at_least_once": 100, "exactly_once": 100},
        ),
        System(
            name="tidewheel-workers-4",
            command=_tidewheel_workers_4,
            output_format="int64",
        ),
        System(
            name="kafka-streams",
            command=_kafka_streams,
            output_format="int64",
            default_commit_interval_ms={"at_least_once": 30_000, "exactly_once": 100},
            threads=(1, 2, 4),
            clean_exits=(0, JAVA_STOPPED),
        ),
        System(
            name="quix",
            command=_quix,
            output_format="json",
            default_commit_interval_ms={"at_least_once": 5_000, "exactly_once": 5_000},
            record_share=0.25,
        ),
        System(
            name="faust",
            command=_faust,
            output_format="json",
            default_commit_interval_ms={"at_least_once": 2_800, "exactly_once": 2_800},
            cache=False,
            record_share=0.05,
            slowest_share=0.1,
        ),
        System(
            name="bytewax",
            command=_bytewax,
            output_format="json",
            guarantees=("at_least_once",),
            cache=False,
            record_share=0.25,
        ),
        System(name="raw-client", command=_raw_client, output_format="copy", cache=False),
        System(name="raw-client-2", command=_raw_client_2, output_format="copy", cache=False),
        System(name="by-hand", command=_by_hand, output_format="int64"),
    )
}
