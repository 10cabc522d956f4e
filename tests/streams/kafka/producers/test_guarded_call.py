import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidewheel.streams.kafka.client.client_log import ClientLog
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.producers import producer as module
from tidewheel.streams.kafka.producers.producer import ProducerClient, RefusedError, StuckError

LATER = KafkaException(KafkaError(KafkaError._TIMED_OUT, "later", retriable=True))
NEVER = KafkaException(KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE, "never"))


@pytest.fixture
def client() -> Iterator[ProducerClient]:
    settings = ClientSettings(bootstrap_servers="127.0.0.1:9", application_id="app")
    client = ProducerClient(settings.sink(), ClientLog("test"), stall_timeout_s=1)
    yield client
    client.drop()


def test_a_call_that_never_returns_is_abandoned(
    client: ProducerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STUCK_S", 0.1)
    monkeypatch.setattr(module, "SLICE_S", 0.02)
    released = threading.Event()
    with pytest.raises(StuckError):
        _guarded(client, lambda _: released.wait(10), within_s=0.1)
    released.set()


def test_a_guarded_call_passes_its_arguments_and_raises_the_error(client: ProducerClient) -> None:
    seen: list[object] = []
    _guarded(client, lambda what, limit_s: seen.extend([what, limit_s]), "x", within_s=5)
    assert seen[0] == "x"
    with pytest.raises(KafkaException, match="never"):
        _guarded(client, _raises(NEVER), within_s=5)


def test_a_guarded_call_runs_concurrently_with_its_caller_until_it_is_ended(
    client: ProducerClient,
) -> None:
    tried = threading.Event()

    def later(_: float) -> None:
        tried.set()
        raise LATER

    call = client.begin_call(later, deadline_s=time.monotonic() + 60)
    assert tried.wait(10), "nobody has made the call, though nobody waits for it yet"
    with pytest.raises(KafkaException, match="later"):
        call.end(time.monotonic() + 0.1)


def test_a_call_is_repeated_after_retriable_errors(client: ProducerClient) -> None:
    client.call(_raises(LATER, LATER), deadline_s=time.monotonic() + 5)
    with pytest.raises(KafkaException, match="later"):
        client.call(_raises(*[LATER] * 1_000), deadline_s=time.monotonic() + 0.1)


@pytest.mark.parametrize("call", ["init", "produce"])
def test_a_dropped_client_is_freed_although_its_error_is_kept(call: str) -> None:
    settings = ClientSettings(bootstrap_servers="127.0.0.1:9", application_id="app")
    producer = ProducerClient(
        settings.transactional("app-1", 10_000), ClientLog("test"), stall_timeout_s=1
    )
    raw = producer.client
    calls = {
        "init": lambda: producer.call(
            producer.named("init_transactions"), deadline_s=time.monotonic() + 0.05
        ),
        # Refused outside a transaction.
        "produce": lambda: producer.send_columns("out", 0, [b"k"], [b"v"], [1], stop=1),
    }
    with pytest.raises((KafkaException, RefusedError)) as kept:
        calls[call]()
    producer.drop()
    assert sys.getrefcount(raw) == 2, f"somebody besides this test holds it: {kept.value!r}"


def _guarded(
    client: ProducerClient, operation: Callable[..., object], *arguments: object, within_s: float
) -> None:
    deadline_s = time.monotonic() + within_s
    client.begin_call(operation, *arguments, deadline_s=deadline_s).end(deadline_s)


def _raises(*errors: KafkaException) -> Callable[[float], None]:
    left = list(errors)

    def operation(_: float) -> None:
        if left:
            raise left.pop(0)

    return operation
