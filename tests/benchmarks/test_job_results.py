"""Jobs of the suite `throughput`: our programs against the direct computation, without a broker."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest

from benchmarks.environment.systems import PEERS, SYSTEMS
from benchmarks.jobs.checks import tally_for
from benchmarks.jobs.contents import CONTENTS, InputRecord, input_blocks, words
from benchmarks.jobs.expected import (
    GAP_MS,
    expected,
    fingerprint,
    of_session,
    of_window,
)
from benchmarks.jobs.plan import CACHES, JOBS, Job
from benchmarks.peers.tidewheel import throughput as ours
from benchmarks.topics.generator import BLOCK_RECORDS, InputSpec
from benchmarks.topics.outputs import OutputTally
from tidewheel import StreamsConfig
from tidewheel.testing import TopologyTestDriver

RECORDS = 300
TOPICS = {"input_topic": "in", "other_topic": "other", "output_topic": "out"}


def small_inputs(job: Job) -> tuple[InputSpec, ...]:
    return replace(job, stream=replace(job.stream, keys=20)).inputs(RECORDS)


def records(spec: InputSpec) -> list[InputRecord]:
    return list(chain.from_iterable(input_blocks(spec)))


def in_order(inputs: tuple[InputSpec, ...]) -> Iterator[tuple[str, InputRecord]]:
    named = [
        (topic, record)
        for topic, spec in zip(("in", "other"), inputs, strict=False)
        for record in records(spec)
    ]
    return iter(sorted(named, key=lambda each: each[1][2]))


def our_output(job: Job, inputs: tuple[InputSpec, ...]) -> list[tuple[bytes, bytes | None]]:
    config = StreamsConfig(application_id="job", statestore_cache_max_bytes=0)
    topology = ours.topology({**TOPICS, "job": job.name, "cache_bytes": "0"})
    with TopologyTestDriver(topology, config) as driver:
        sources = {
            name: driver.create_input_topic(name, key_serde=bytes, value_serde=bytes)
            for name in ("in", "other")[: len(inputs)]
        }
        output = driver.create_output_topic("out", key_serde=bytes, value_serde=bytes)
        for topic, (key, value, at_ms, _) in in_order(inputs):
            sources[topic].pipe_input(key, value, at_ms)
        return [(record.key, record.value) for record in output.read_records()]


@pytest.mark.parametrize("name", JOBS)
def test_our_program_has_the_right_result(name: str) -> None:
    job = JOBS[name]
    inputs = small_inputs(job)
    written = our_output(job, inputs)
    right = expected(name, inputs)
    assert len(right) > 5
    tally = tally_for(job.check, "int64")
    tally.add(written)
    assert tally.problems(right) == []
    assert tally.outputs == len(written)
    lacking = tally_for(job.check, "int64")
    lacking.add(written[:-1])
    assert lacking.problems(right)


def test_a_wrong_value_is_found_where_every_output_counts() -> None:
    right = {b"a": fingerprint(b"1") + fingerprint(b"2")}
    for written, count in (
        ([b"2", b"1"], 0),
        ([b"1"], 1),
        ([b"1", b"2", b"2"], 1),
        ([b"1", b"3"], 1),
    ):
        tally = tally_for("joined", "int64")
        tally.add((b"a", value) for value in written)
        assert len(tally.problems(right)) == count, written


def kafka_session(key: bytes, start_ms: int, end_ms: int) -> bytes:
    return key + end_ms.to_bytes(8, "big") + start_ms.to_bytes(8, "big")


def test_an_extended_session_counts_once() -> None:
    one, two = (b"\0" * 7 + bytes([count]) for count in (1, 2))
    short, long = kafka_session(b"a", 5, 5), kafka_session(b"a", 5, 9)
    right = {of_window(b"a", 5): of_session(2, 5, 9)}
    for written in (
        [(short, one), (short, None), (long, two)],
        [(short, one), (long, two), (short, None)],
    ):
        tally = tally_for("sessions", "int64")
        tally.add(written)
        assert tally.problems(right) == []
        assert tally.outputs == 3


def test_a_session_that_was_not_deleted_is_found() -> None:
    one = b"\0" * 7 + b"\1"
    tally = tally_for("sessions", "int64")
    tally.add([(kafka_session(b"a", 5, 5), one), (kafka_session(b"a", 5, 9), one)])
    assert tally.problems({of_window(b"a", 5): of_session(1, 5, 9)})


def test_windows_and_sessions_as_dicts_are_read() -> None:
    windows = tally_for("windows", "json")
    windows.add([(b"a", b'{"start":60000,"end":120000,"value":3}')])
    assert windows.problems({of_window(b"a", 60_000): 3}) == []
    sessions = tally_for("sessions", "json")
    sessions.add(
        [(b"a", b'{"start":5,"end":6,"value":1}'), (b"a", b'{"start":5,"end":10,"value":2}')]
    )
    assert sessions.problems({of_window(b"a", 5): of_session(2, 5, 9)}) == []


def test_events_are_read_with_any_json_spacing() -> None:
    right = {b"u": fingerprint(b"7 view 119")}
    for value in (
        b'{"id":7,"kind":"view","cents":119}',
        b'{"cents": 119, "user": "u", "kind": "view", "id": 7}',
    ):
        tally = tally_for("events", "json")
        tally.add([(b"u", value)])
        assert tally.problems(right) == []


@pytest.mark.parametrize("check", ["sessions", "last_joined"])
def test_unknown_output_formats_are_refused(check: str) -> None:
    with pytest.raises(ValueError, match=f"{check}.*xml"):
        tally_for(check, "xml")


def test_the_plain_client_is_checked_by_its_copies() -> None:
    assert isinstance(tally_for("events", "copy"), OutputTally)


@pytest.mark.parametrize("name", JOBS)
def test_times_never_decrease_within_a_partition(name: str) -> None:
    inputs = small_inputs(JOBS[name])
    for spec in inputs:
        times = [at_ms for _, _, at_ms, _ in records(spec)]
        assert len(times) == spec.records
        assert times == sorted(times)
    if JOBS[name].other_content == "rows":
        assert records(inputs[1])[-1][2] < records(inputs[0])[0][2]


def test_both_sides_of_the_stream_join_are_uneven_and_copartitioned() -> None:
    left, right = JOBS["stream_stream_join"].inputs(20_000)
    assert (left.records, right.records) == (10_000, 10_000)
    places = {key: partition for key, _, _, partition in records(left)}
    assert all(places.get(key, partition) == partition for key, _, _, partition in records(right))
    counts = Counter(partition for _, _, _, partition in records(left))
    assert 3 < counts[0] / counts[3] < 5
    assert [record[:2] for record in records(left)] != [record[:2] for record in records(right)]


def test_each_row_appears_once_and_refers_to_an_existing_row() -> None:
    orders, users = JOBS["foreign_key_join"].inputs(2_000)
    assert (users.keys, users.records) == (200, 200)
    assert len({key for key, _, _, _ in records(orders)}) == orders.records
    assert {value[12:21] for _, value, _, _ in records(orders)} == {
        key for key, _, _, _ in records(users)
    }


def test_lines_are_of_frequent_and_rare_words() -> None:
    (lines,) = JOBS["word_count"].inputs(4_000)
    found = records(lines)
    counts = expected("word_count", (lines,))
    assert sum(counts.values()) == 8 * 4_000
    assert {partition for _, _, _, partition in found} == set(range(lines.partitions))
    assert 0.05 < max(counts.values()) / (8 * 4_000) < 0.2
    assert len(set(words(1_000, seed=7))) == 1_000


def test_a_shorter_input_is_the_beginning_of_a_longer_one() -> None:
    for content in sorted(set(CONTENTS) - {"rows"}):
        spec = InputSpec(records=BLOCK_RECORDS + 5, keys=50, content=content)
        long = records(replace(spec, records=BLOCK_RECORDS + 50))
        assert records(spec) == long[: spec.records], content


def test_sessions_have_several_records_and_pauses() -> None:
    (spec,) = JOBS["session_count"].inputs(200_000)
    sessions = expected("session_count", (spec,))
    assert 2 < spec.records / len(sessions) < 20
    assert GAP_MS > 0


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_its_programs_or_lists_the_systems_without_one(name: str) -> None:
    """Tidewheel and Kafka Streams run every job, Python peers a subset."""
    job = JOBS[name]
    java = (PEERS / "kafka_streams" / "Throughput.java").read_text()
    assert name in ours.JOBS
    assert f'"{name}"' in java
    for peer in ("quix", "faust", "bytewax"):
        program = (PEERS / peer / "throughput.py").read_text()
        assert (f'"{name}":' in program) == (peer not in job.lacking), peer
    assert set(job.lacking) <= set(SYSTEMS)
    assert set(job.caches) <= set(CACHES)
