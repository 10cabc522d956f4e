"""Jobs of the suite `throughput`: inputs, settings, and systems that cannot run them (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.jobs.contents import referred_keys
from benchmarks.topics.generator import InputSpec

#: Caches by name: bytes of output that a system may hold back.
CACHES: Mapping[str, int] = {"0": 0, "10MiB": 10 * 1024 * 1024, "all": 64 * 1024 * 1024}
#: Reference systems of some jobs; no peers, so their absence elsewhere is no gap.
YARDSTICKS = frozenset({"raw-client", "raw-client-2", "by-hand", "tidewheel-workers-4"})
_ONLY_COUNTS = {"by-hand": "count by key only", "tidewheel-workers-4": "count by key only"}
_ONLY_COPIES = {"raw-client": "copies only", "raw-client-2": "copies only", **_ONLY_COUNTS}
#: For a peer that may support a job, but has no program for it here.
NOT_MEASURED = "not measured"
_SOME_JOBS = {"faust": NOT_MEASURED, "bytewax": NOT_MEASURED, **_ONLY_COPIES}


def cache_text(cache_bytes: int) -> str:
    """Return the name of a cache in tables.

    >>> cache_text(0), cache_text(10 * 1024 * 1024)
    ('none', '10 MiB')
    """
    if cache_bytes == CACHES["all"]:
        return "all keys"
    return f"{cache_bytes // 2**20} MiB" if cache_bytes else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        stream: Its input without the number of records.
        keys_per_record: Keys per record if keys grow with the records; else 0.
        other_content: Content of its second input; None without one.
        other_is_work: The second input's records are timed work, not rows loaded before.
        check: Reader of its output (`jobs.checks`).
        repartitions: Work continues behind internal topics, which count like the input.
        caches: The caches it runs with, by name.
        own_defaults: It also runs with each system's default commit interval.
        record_share: Share of the suite's records, for expensive ones.
        slowest_share: Share of the usual minimum rate; slower runs are stopped.
        lacking: Systems that lack a feature of the job, with that feature.
    """

    name: str
    stream: InputSpec = InputSpec(records=1)  # noqa: RUF009 - a frozen value
    keys_per_record: float = 0.0
    other_content: str | None = None
    other_is_work: bool = False
    check: str = "counts"
    repartitions: bool = False
    caches: tuple[str, ...] = ("0", "all")
    own_defaults: bool = False
    record_share: float = 1.0
    slowest_share: float = 1.0
    lacking: Mapping[str, str] = field(default_factory=lambda: _ONLY_COPIES)

    def inputs(self, records: int) -> tuple[InputSpec, ...]:
        keys = int(records * self.keys_per_record) or self.stream.keys
        stream = replace(self.stream, records=records, keys=keys)
        if self.other_content is None:
            return (stream,)
        other = replace(stream, content=self.other_content, seed=stream.seed + 1)
        if self.other_is_work:
            return replace(stream, records=records // 2), replace(other, records=records // 2)
        rows = referred_keys(stream) if stream.content == "references" else keys
        return stream, replace(other, records=rows, keys=rows)

    def work(self, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
        return inputs if self.other_is_work else inputs[:1]


_JOBS = (
    Job(
        name="stateless_json",
        stream=InputSpec(records=1, content="events"),
        check="events",
        caches=("0",),
        lacking=_ONLY_COUNTS,
    ),
    Job(name="count_by_key", own_defaults=True, lacking={}),
    Job(name="count_by_key_hot", stream=InputSpec(records=1, zipf=1.1)),
    Job(name="count_by_key_large", keys_per_record=0.5, caches=("0", "10MiB")),
    Job(
        name="tumbling_count",
        stream=InputSpec(records=1, keys=10_000, content="timed"),
        check="windows",
        lacking=_SOME_JOBS,
    ),
    Job(
        name="session_count",
        stream=InputSpec(records=1, keys=10_000, content="timed"),
        check="sessions",
        record_share=0.5,
        slowest_share=0.5,
        lacking={**_SOME_JOBS, "faust": "no operator"},
    ),
    Job(
        name="stream_table_join",
        stream=InputSpec(records=1, content="timed"),
        other_content="rows",
        check="joined",
        caches=("0",),
        lacking=_SOME_JOBS,
    ),
    Job(
        name="interleaved_join",
        stream=InputSpec(records=1, content="left"),
        other_content="right",
        other_is_work=True,
        check="joined",
        caches=("0",),
        record_share=0.5,
        slowest_share=0.5,
        lacking={"quix": NOT_MEASURED, **_SOME_JOBS},
    ),
    Job(
        name="stream_stream_join",
        stream=InputSpec(records=1, keys=10_000, content="left"),
        other_content="right",
        other_is_work=True,
        check="joined",
        caches=("0",),
        record_share=0.5,
        slowest_share=0.25,
        lacking={**_SOME_JOBS, "faust": "no operator", "bytewax": "no operator"},
    ),
    Job(
        name="foreign_key_join",
        stream=InputSpec(records=1, content="references"),
        keys_per_record=1.0,
        other_content="rows",
        check="last_joined",
        repartitions=True,
        caches=("0",),
        record_share=0.25,
        slowest_share=0.25,
        lacking={"quix": "no operator", **_SOME_JOBS, "faust": "no operator"},
    ),
    Job(
        name="word_count",
        stream=InputSpec(records=1, keys=10_000, content="lines"),
        repartitions=True,
        record_share=0.25,
        slowest_share=0.05,
        lacking={"faust": NOT_MEASURED, **_ONLY_COPIES},
    ),
)
JOBS: Mapping[str, Job] = {job.name: job for job in _JOBS}
