"""Every example: short, run by the test driver and by `tidewheel run` on a real Kafka."""

import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import orjson
import pytest

from tests.integration.cluster import Cluster, until
from tests.streams.cli.command_runs import ROOT, Command
from tests.streams.demo.archive import small_archive
from tidewheel import ChangelogRecord, Serdes
from tidewheel.rebalance.protocol.group import replay
from tidewheel.rebalance.protocol.records import decode_record
from tidewheel.streams.demo.check import ARRIVALS, DELAYS, RAIN, expected_results, wrong_results
from tidewheel.streams.demo.tables import read_rows, table, to_batches
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.user_program import load_program
from tidewheel.testing import TopologyTestDriver

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINES = ["All streams lead to Kafka", "Hello Kafka streams", "all the rest"]


def test_every_example_is_run_by_a_test() -> None:
    assert [path.stem for path in EXAMPLES] == [
        "bootstrap_product_table",
        "flight_delays",
        "flights_in_batch",
        "new_visitors",
        "restore_from_snapshot",
        "word_count",
        "word_count_service",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_complete(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    program = load_program(f"{path}:topology")
    assert program.config().application_id == path.stem.replace("_", "-")
    assert program.topology(program.config()).source_topics


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_on_any_cluster(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_program(f"{path}:topology")
    assert program.config().bootstrap_servers == "localhost:9092"
    monkeypatch.setenv("TIDEWHEEL_BOOTSTRAP_SERVERS", "kafka.example:9093")
    assert program.config().bootstrap_servers == "kafka.example:9093"


def test_word_count_without_a_broker() -> None:
    program = load_program(f"{ROOT / 'examples' / 'word_count.py'}:topology")
    with TopologyTestDriver(program.topology(program.config())) as driver:
        lines = driver.create_input_topic("lines", key_serde=str, value_serde=str)
        counts = driver.create_output_topic("word-counts", key_serde=str, value_serde=int)
        for line in LINES:
            lines.pipe_input(None, line)
        assert dict(counts.read_key_values()) == _counted()


def test_new_visitors_without_a_broker() -> None:
    program = load_program(f"{ROOT / 'examples' / 'new_visitors.py'}:topology")
    with TopologyTestDriver(program.topology(program.config())) as driver:
        visits = driver.create_input_topic("visits", key_serde=str, value_serde=str)
        new = driver.create_output_topic("new-visitors", key_serde=str, value_serde=str)
        visits.pipe_key_values((name, name) for name in ["ann", "bob", "ann", "eve", "bob"])
        assert [record.value for record in new.read_records()] == ["ann", "bob", "eve"]
        found = driver.get_state_store("seen")
        again = type(found)()
        again.restore(
            [
                ChangelogRecord(key, block.to_bytes(64, "big"), 0)
                for key, block in found.blocks.items()
            ]
        )
        assert again.blocks == found.blocks


def _counted() -> dict[str, int]:
    return dict(Counter(word for line in LINES for word in line.lower().split()))


@pytest.fixture
def topics(
    topics_of_the_demo: None, cluster: Cluster, request: pytest.FixtureRequest
) -> Iterator[None]:
    """The example's fixed topics, deleted afterwards with its internal ones."""
    names: tuple[str, ...] = request.param
    cluster.create(dict.fromkeys(names, 2))
    yield
    applications = [path.stem.replace("_", "-") for path in EXAMPLES]
    prefixes = tuple(f"{application}-" for application in applications)
    own = [topic for topic in cluster.admin.list_topics() if topic.startswith(prefixes)]
    cluster.admin.delete_topics([*names, *own])
    for application in applications:
        cluster.admin.delete_group(application)


def _arguments(example: str, cluster: Cluster, state_dir: Path) -> list[str]:
    servers = ("--bootstrap-servers", cluster.bootstrap_servers)
    return ["run", f"examples/{example}.py:topology", *servers, "--state-dir", str(state_dir)]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("topics", [("lines", "word-counts")], indirect=True)
@pytest.mark.usefixtures("topics")
def test_word_count_on_kafka(cluster: Cluster, tmp_path: Path) -> None:
    cluster.send("lines", [(None, line.encode()) for line in LINES])
    expected = {word.encode(): Serdes.int64().serialize("", n) for word, n in _counted().items()}
    with Command(*_arguments("word_count", cluster, tmp_path)) as command:
        until(
            lambda: (
                {key: values[-1] for key, values in cluster.values_by_key("word-counts").items()}
                == expected
            ),
            command.said,
        )
        command.signal(signal.SIGTERM)
        assert command.wait() == ExitCode.OK, command.said


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _get(url: str) -> str:
    with urlopen(url, timeout=10) as reply:  # noqa: S310 - of a process of ours
        text: str = reply.read().decode()
        return text


def _owners_of_counts(cluster: Cluster) -> set[str | None]:
    log = cluster.read("word-count-service-group-state")
    group = replay(record for each in log if (record := decode_record(each.value)) is not None)
    return {state.owner for task, state in group.states.items() if task.subtopology == 1}


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("topics", [("lines",)], indirect=True)
@pytest.mark.usefixtures("topics")
def test_any_process_of_the_word_count_service_answers(cluster: Cluster, tmp_path: Path) -> None:
    cluster.send("lines", [(None, line.encode()) for line in LINES])
    ports = [_free_port(), _free_port()]
    asked = dict.fromkeys(ports, "")

    def start(port: int) -> Command:
        return Command(
            str(port),
            program=["examples/word_count_service.py"],
            environment={
                "TIDEWHEEL_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
                "TIDEWHEEL_STATE_DIR": str(tmp_path),
                "TIDEWHEEL_SETTLING_MS": "0",
            },
        )

    def tell(port: int) -> bool:
        try:
            found = {word: int(_get(f"http://localhost:{port}/{word}")) for word in _counted()}
        except OSError as error:  # not started yet, or a task is moving
            asked[port] = repr(error)
            return False
        asked[port] = str(found)
        return found == _counted() and _get(f"http://localhost:{port}/nothing") == "0"

    with start(ports[0]) as first, start(ports[1]) as second:
        until(lambda: tell(ports[0]), f"{asked}\n{first.said}")
        until(lambda: len(_owners_of_counts(cluster)) == 2, "both have counts")
        until(lambda: all(tell(port) for port in ports), f"{asked}\n{second.said}")
        second.signal(signal.SIGTERM)
        assert second.wait() == ExitCode.OK, second.said
        until(lambda: tell(ports[0]), f"{asked}\n{first.said}")
        first.signal(signal.SIGTERM)
        assert first.wait() == ExitCode.OK, first.said


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("topics", [("flights", "weather", DELAYS, ARRIVALS, RAIN)], indirect=True)
@pytest.mark.usefixtures("topics")
def test_flight_delays_on_kafka(cluster: Cluster, tmp_path: Path) -> None:
    archive = small_archive(tmp_path / "small.tar.gz")
    for name in ("flights", "weather"):
        for batch in to_batches(table(name), read_rows(archive, name)):
            cluster.send(name, zip(batch.keys, batch.values, strict=True))
    expected = expected_results(read_rows(archive, "flights"), read_rows(archive, "weather"))

    def found() -> dict[str, dict[str, object]]:
        read = {topic: cluster.values_by_key(topic) for topic in expected}
        return {
            topic: {key.decode(): _value(topic, values[-1]) for key, values in by_key.items()}
            for topic, by_key in read.items()
        }

    with Command(*_arguments("flight_delays", cluster, tmp_path / "state")) as command:
        until(lambda: not wrong_results(expected, found()), command.said)
        command.signal(signal.SIGTERM)
        assert command.wait() == ExitCode.OK, command.said


def _value(topic: str, value: bytes | None) -> object:
    assert value is not None
    return orjson.loads(value) if topic == DELAYS else Serdes.int64().deserialize(topic, value)
