"""Administrative requests: the port `tidewheel.tasks.kafka.ports.Admin`.

Each call retries transient errors (leader elections, loading coordinators) until its deadline, then
raises a StreamsError that names the cluster and what to check. With a longer deadline the single
requests stay as long as with the default one.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
)
from confluent_kafka.admin import NewTopic as KafkaNewTopic
from msgspec.structs import replace

from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.plain_text import plain_text
from tidewheel.streams.errors import FencedError, MissingSourceTopicError, StreamsError
from tidewheel.streams.kafka.admin.open_transactions import BrokerAddress, with_producers
from tidewheel.streams.kafka.client.advice import AWAY_ADVICE, missing_right, next_step
from tidewheel.streams.kafka.client.client_log import ClientLog, error_of, make_client
from tidewheel.streams.kafka.client.codes import (
    AWAY,
    NO_GROUP,
    NO_LEADER,
    NO_TOPIC,
    STALE_LEADER,
    TIMED_OUT,
    is_transient,
)
from tidewheel.streams.kafka.client.failures import Outcome, outcome_of
from tidewheel.streams.kafka.client.settings import ClientSettings, fixed_group
from tidewheel.streams.kafka.client.waits import OnWait, reported_wait
from tidewheel.streams.kafka.consumers.offsets_readers import OffsetsReaders, own_partition
from tidewheel.streams.kafka.producers.producer import ProducerClient
from tidewheel.tasks.kafka.internal_topics import HIDDEN_TOPICS, absence
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.kafka.ports import (
    CommittedOffset,
    NewTopic,
    TopicDescription,
    UnansweredError,
    UnsettledOffsetsError,
)

_FENCING_THREADS: Final = 16
_ASK_AGAIN_S: Final = 0.05
_RETENTION: Final = "offsets.retention.minutes"
_LISTING_S: Final = 2.0
#: Seconds for an answer with committed offsets. A client that exceeds it is dropped, as its
#: connection may be dead.
_READER_S: Final = 10.0
#: Maximum seconds of one request; a lost one must not use up a long deadline.
_REQUEST_S: Final = 30.0
#: Seconds of the first request in `reach`.
_POLL_S: Final = 0.5
#: Seconds after which `reach` logs that no broker answers.
_QUIET_S: Final = 3.0
_LOGGER: Final = logging.getLogger("tidewheel.streams.kafka")
_OFFSETS: Any = OffsetSpec  # its functions have no type hints


class KafkaAdmin:
    """An admin client; calls may come from any thread, each with a deadline of `timeout_s`.

    `on_wait` is called, from another thread, while a call takes longer than a few seconds.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        timeout_s: float = _REQUEST_S,
        on_wait: OnWait | None = None,
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        config = settings.administration()
        name, with_debug = config["client.id"], "debug" in config
        self._log = ClientLog(name, with_debug=with_debug)
        #: Set by the first successful call: the login is right, so a later refusal is transient.
        self._logged_in = False
        #: True until a call finds a broker. A waiting admin call keeps two of librdkafka's
        #: threads spinning (60 % of a CPU, measured); a metadata request waits idle, so
        #: `_ask` sends one first. It also does while the log names an unreachable broker.
        self._is_away = True
        # Kept until `close`: garbage collection of a client fails its pending futures.
        self._client: Any = make_client(AdminClient, "admin", config, self._log)
        self._readers = OffsetsReaders(settings, ClientLog(name, with_debug=with_debug))

    def reach(
        self,
        stopped: threading.Event,
        *,
        timeout_s: float | None = None,
        unreachable_s: float | None = None,
    ) -> bool:
        """Wait for a broker's first answer; return False if `stopped` was set before.

        Raises `StreamsError` at the deadline, or after `unreachable_s` if no connection could be
        made: that is no slow broker. Returns True also for a refused login, which the next call
        reports.
        """
        with reported_wait(f"a broker at {self._settings.bootstrap_servers}", self._on_wait):
            patience_s = self._timeout_s if timeout_s is None else timeout_s
            return self._reach(stopped, patience_s, unreachable_s)

    def _reach(
        self, stopped: threading.Event, timeout_s: float, unreachable_s: float | None
    ) -> bool:
        began_s = time.monotonic()
        poll_s, is_logged = _POLL_S, False
        while not stopped.is_set():
            try:
                self._client.list_topics(timeout=poll_s)
            except KafkaException as exception:
                cause = exception
                # A broker is there but slow: allow more time per request.
                poll_s *= 2 if error_of(exception).code() == TIMED_OUT else 1
            else:
                return True
            self._client.poll(0)  # Delivers the client's log lines with the reason.
            if self._is_refused:
                return True
            waited_s = time.monotonic() - began_s
            is_gone = unreachable_s is not None and bool(self._log.unreachable)
            if waited_s >= (unreachable_s if is_gone and unreachable_s else timeout_s):
                raise StreamsError(f"{self._no_answer()}; {AWAY_ADVICE}") from cause
            # A known reason is in the log already, see `client_log`.
            if not is_logged and waited_s >= _QUIET_S and not self._log.unreachable:
                is_logged = True
                _LOGGER.warning("%s; trying on", self._no_answer())
        return False

    def _no_answer(self) -> str:
        reason = f" ({self._log.unreachable})" if self._log.unreachable else ""
        return f"can't reach a broker at {self._settings.bootstrap_servers}{reason}"

    def list_topics(self) -> dict[str, int]:
        # Short calls: the client's log lines are delivered in between.
        listed = self._ask(
            "list topics", lambda left: self._client.list_topics(timeout=min(left, _LISTING_S))
        )
        return {
            name: len(topic.partitions) for name, topic in listed.topics.items() if topic.partitions
        }

    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]:
        unique_names = list(dict.fromkeys(names))
        if not unique_names:
            return {}
        descriptions = self._each(
            "describe topics",
            lambda left: self._client.describe_topics(
                TopicCollection(unique_names), request_timeout=left
            ),
            needs="DESCRIBE",
            fine=NO_TOPIC,
        )
        settings = (
            self._topic_settings(list(descriptions), config) if config and descriptions else {}
        )
        return {
            name: TopicDescription(
                name=name,
                topic_id=_uuid_bytes(topic.topic_id),
                partitions=len(topic.partitions),
                config=settings.get(name, {}),
            )
            for name, topic in descriptions.items()
        }

    def create_topics(self, topics: Sequence[NewTopic]) -> None:
        if not topics:
            return
        orders = [
            KafkaNewTopic(
                topic.name, topic.partitions, topic.replication_factor, config=dict(topic.config)
            )
            # The client's thread crashes on duplicate names.
            for topic in {topic.name: topic for topic in topics}.values()
        ]
        self._each(
            f"create topics {_names(topic.name for topic in topics)}",
            lambda left: self._client.create_topics(
                orders, operation_timeout=left, request_timeout=left
            ),
            needs="CREATE",
            fine=frozenset({KafkaError.TOPIC_ALREADY_EXISTS}),
        )
        self._wait_until_usable([topic.name for topic in topics])

    def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        change = ConfigResource(
            ConfigResource.Type.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                for key, value in config.items()
            ],
        )
        self._each(
            f"change the settings of topic {name}",
            lambda left: self._client.incremental_alter_configs([change], request_timeout=left),
            needs="ALTER_CONFIGS",
        )

    def delete_topics(self, names: Sequence[str]) -> None:
        if not names:
            return
        self._each(
            f"delete topics {_names(names)}",
            lambda left: self._client.delete_topics(
                list(dict.fromkeys(names)), operation_timeout=left, request_timeout=left
            ),
            needs="DELETE",
            fine=NO_TOPIC,
        )
        for deadline_s in self._until(f"delete topics {_names(names)}", "it is still listed"):
            if not self.describe_topics(names):
                return
            _pause(deadline_s)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        if not before:
            return
        partitions = [KafkaPartition(*partition, offset) for partition, offset in before.items()]
        self._each(
            f"delete records of {_names(map(str, before))}",
            lambda left: self._client.delete_records(
                partitions, operation_timeout=left, request_timeout=left
            ),
            needs="DELETE",
        )

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(dict.fromkeys(partitions, _OFFSETS.earliest()))

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        latest = dict.fromkeys(partitions, _OFFSETS.latest())
        return self._offsets(latest, IsolationLevel.READ_UNCOMMITTED)

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(dict.fromkeys(partitions, _OFFSETS.latest()))

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        stable, ends = self.stable_offsets(partitions), self.end_offsets(partitions)
        transactions = {
            partition: OpenTransaction(
                partition=partition,
                start=stable[partition],
                end=ends[partition],
                servers=self._settings.bootstrap_servers,
            )
            for partition in partitions
            if stable[partition] < ends[partition]
        }
        return self._with_producers(transactions) if transactions else {}

    def _with_producers(
        self, transactions: Mapping[TopicPartition, OpenTransaction]
    ) -> dict[TopicPartition, OpenTransaction]:
        try:
            described = self._each(
                "describe topics",
                lambda left: self._client.describe_topics(
                    TopicCollection(sorted({partition.topic for partition in transactions})),
                    request_timeout=left,
                ),
                needs="DESCRIBE",
                fine=NO_TOPIC,
            )
            cluster = self._ask(
                "describe the cluster",
                lambda left: self._client.describe_cluster(request_timeout=left).result(left),
            )
        except StreamsError as error:
            return {
                partition: replace(transaction, unknown=str(error))
                for partition, transaction in transactions.items()
            }
        leaders: dict[TopicPartition, BrokerAddress] = {}
        for name, topic in described.items():
            for partition in topic.partitions:
                if partition.leader is not None:
                    leaders[TopicPartition(name, partition.id)] = BrokerAddress(
                        partition.leader.host, partition.leader.port
                    )
        nodes = [BrokerAddress(partition.host, partition.port) for partition in cluster.nodes]
        return with_producers(transactions, leaders, nodes, self._settings.administration())

    def offsets_of_age(self, ages_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        now_ms = time.time_ns() // 1_000_000
        return self._offsets_at(
            {partition: max(now_ms - age, 0) for partition, age in ages_ms.items()}
        )

    def committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Read with a consumer: librdkafka's admin call crashes while a coordinator loads.

        See librdkafka#5040.
        """
        if partitions is None:
            partitions = [
                TopicPartition(topic, partition)
                for topic, count in self.list_topics().items()
                for partition in range(count)
            ]
        if not partitions:
            return {}
        requested = [KafkaPartition(*partition) for partition in partitions]
        what = f"read the committed offsets of group {group_id}"

        def read(left: float) -> list[Any]:
            with self._readers.lent(group_id, stable=stable) as reader:
                offsets: list[Any] = reader.committed(requested, timeout=min(left, _READER_S))
            for partition in offsets:
                if partition.error is not None:
                    self._check_permitted(what, partition, "DESCRIBE")
                    raise KafkaException(partition.error)
            return offsets

        try:
            return {
                TopicPartition(offset.topic, offset.partition): CommittedOffset(
                    offset.offset, metadata_text(offset)
                )
                for offset in self._ask(what, read)
                if offset.offset >= 0
            }
        except StreamsError as error:
            # librdkafka reports a wait for pending commits as a time-out.
            if stable and self._answers_unstable(group_id, requested):
                undecided = self._failed(what, KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))
                raise UnsettledOffsetsError(str(undecided)) from error
            raise

    def reach_group(self, group_id: str) -> None:
        def ask(left: float) -> None:
            for stable in (True, False):
                with self._readers.lent(group_id, stable=stable) as reader:
                    reader.committed([own_partition(group_id)], timeout=min(left, _READER_S))

        self._ask(f"find the coordinator of group {group_id}", ask)

    def _answers_unstable(self, group_id: str, partitions: list[KafkaPartition]) -> bool:
        try:
            with self._readers.lent(group_id, stable=False) as reader:
                reader.committed(partitions, timeout=_LISTING_S)
        except KafkaException:
            return False
        return True

    def group_members(self, group_id: str) -> tuple[str, ...]:
        return tuple(
            f"{plain_text(member.client_id)!r} on {plain_text(member.host.removeprefix('/'))}"
            for member in self._members(group_id)
        )

    def fixed_workers(self, application_id: str) -> dict[str, str]:
        return {
            plain_text(member.client_id): plain_text(member.host.removeprefix("/"))
            for member in self._members(fixed_group(application_id))
        }

    def groups(self, prefix: str) -> tuple[str, ...]:
        def read(left: float) -> list[str]:
            listed = self._client.list_consumer_groups(request_timeout=left).result(left)
            if listed.errors:
                raise KafkaException(listed.errors[0])  # a KafkaError, unlike its documentation
            return [group.group_id for group in listed.valid]

        group_ids = self._ask("list consumer groups", read)
        return tuple(sorted(name for name in group_ids if name.startswith(prefix)))

    def _members(self, group_id: str) -> list[Any]:
        groups = self._each(
            f"describe group {group_id}",
            lambda left: self._client.describe_consumer_groups([group_id], request_timeout=left),
            needs="DESCRIBE",
            fine=NO_GROUP,
        )
        return [member for group in groups.values() for member in group.members]

    def offsets_retention_ms(self) -> int:
        what = f"read {_RETENTION} of a broker"
        cluster = self._ask(
            what, lambda left: self._client.describe_cluster(request_timeout=left).result(left)
        )
        broker = ConfigResource(ConfigResource.Type.BROKER, str(cluster.controller.id))
        configs = self._each(
            what,
            lambda left: self._client.describe_configs([broker], request_timeout=left),
            needs="DESCRIBE_CONFIGS",
        )
        setting = configs[broker].get(_RETENTION)
        # Managed services hide some settings.
        if setting is None or not str(setting.value).isdigit():
            raise StreamsError(f"{what}: the broker hides the setting")
        return int(setting.value) * 60_000

    def alter_committed(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        if not offsets:
            return
        positions = [
            KafkaPartition(*partition, offset)
            if isinstance(offset, int)
            else KafkaPartition(*partition, offset.offset, metadata=offset.metadata)
            for partition, offset in offsets.items()
        ]
        request = [ConsumerGroupTopicPartitions(group_id, positions)]
        altered = self._each(
            f"overwrite the committed offsets of group {group_id}",
            lambda left: self._client.alter_consumer_group_offsets(request, request_timeout=left),
            needs="READ",
        )
        for partition in altered[group_id].topic_partitions:
            if partition.error is not None:
                what = f"overwrite the committed offset of {partition.topic}-{partition.partition}"
                self._check_permitted(what, partition, "READ")
                raise self._failed(what, partition.error)

    def delete_group(self, group_id: str) -> None:
        self._each(
            f"delete group {group_id}",
            lambda left: self._client.delete_consumer_groups([group_id], request_timeout=left),
            needs="DELETE",
            fine=NO_GROUP,
        )

    def fence(self, transactional_ids: Sequence[str]) -> None:
        ids = list(dict.fromkeys(transactional_ids))
        if not ids:
            return
        with ThreadPoolExecutor(
            min(len(ids), _FENCING_THREADS), thread_name_prefix="fence"
        ) as threads:
            # Try all: a failure for one id must not leave the others' transactions open.
            tried = [threads.submit(self._fence, transactional_id) for transactional_id in ids]
        for call in tried:
            call.result()

    def close(self) -> None:
        self._client = None
        self._readers.close()

    def _fence(self, transactional_id: str) -> None:
        config = self._settings.fencing(transactional_id)
        log = ClientLog(config["client.id"])
        producer = ProducerClient(config, log, stall_timeout_s=self._timeout_s)
        try:
            producer.call(
                producer.named("init_transactions"), deadline_s=time.monotonic() + self._timeout_s
            )
        except KafkaException as exception:
            error = error_of(exception)
            if outcome_of(error, ending=False) is Outcome.FENCED:
                # Another process fenced the same id at that moment; the caller may try again.
                raise FencedError(
                    f"producer {transactional_id}: fenced by another while fencing it"
                ) from exception
            raise self._failed(
                f"fence producer {transactional_id}", log.cause_of(error)
            ) from exception
        finally:
            producer.drop()

    def _topic_settings(
        self, names: Sequence[str], config: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        configs = self._each(
            f"read the settings of topics {_names(names)}",
            lambda left: self._client.describe_configs(resources, request_timeout=left),
            needs="DESCRIBE_CONFIGS",
            fine=NO_TOPIC,
        )
        return {
            resource.name: {
                name: entries[name].value
                for name in config
                if name in entries and entries[name].value is not None
            }
            for resource, entries in configs.items()
        }

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        return self._offsets_at(dict.fromkeys(partitions, timestamp_ms))

    def _offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        offsets = self._offsets(
            {partition: _OFFSETS.for_timestamp(time_ms) for partition, time_ms in times_ms.items()}
        )
        return offsets | self.stable_offsets(
            [partition for partition, offset in offsets.items() if offset < 0]
        )

    def _offsets(
        self,
        specs: Mapping[TopicPartition, Any],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        request = {KafkaPartition(*partition): spec for partition, spec in specs.items()}
        topics = list(dict.fromkeys(partition.topic for partition in specs))
        what = f"read offsets of topics {_names(topics)}"

        def read(left: float) -> dict[TopicPartition, int]:
            futures = self._client.list_offsets(
                request, isolation_level=isolation, request_timeout=left
            )
            offsets: dict[TopicPartition, int] = {}
            topic = ""
            try:
                for partition, future in futures.items():
                    topic = partition.topic
                    offsets[TopicPartition(topic, partition.partition)] = future.result(left).offset
            except KafkaException as exception:
                error = error_of(exception)
                if step := missing_right(error, "DESCRIBE", topic):
                    raise self._failed(what, error, step) from exception
                if error.code() in NO_LEADER:
                    self._check_exist(topics)  # Raises for a missing topic.
                    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) from exception
                raise
            if OFFSET_INVALID in offsets.values():
                # No leader has answered yet, as for a new topic.
                raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
            return offsets

        answers: dict[TopicPartition, int] = self._ask(what, read)
        return answers

    def _check_exist(self, topics: Sequence[str]) -> None:
        missing = sorted(set(topics) - set(self.describe_topics(topics)))
        if missing:
            raise MissingSourceTopicError(
                f"{absence('topic', missing)} on {self._settings.bootstrap_servers}; create what is missing first; {HIDDEN_TOPICS}"
            )

    def _wait_until_usable(self, names: Sequence[str]) -> None:
        what = f"create topics {_names(names)}"
        for deadline_s in self._until(what, "they were created, but a partition has no leader yet"):
            descriptions = self._each(
                what,
                lambda left: self._client.describe_topics(
                    TopicCollection(list(names)), request_timeout=left
                ),
                needs="DESCRIBE",
                fine=NO_TOPIC,
            )
            led = [
                name
                for name, topic in descriptions.items()
                if topic.partitions
                and all(partition.leader is not None for partition in topic.partitions)
            ]
            if len(led) == len(set(names)):
                return
            _pause(deadline_s)

    def _each(
        self,
        what: str,
        call: Callable[[float], Mapping[Any, "Future[Any]"]],
        *,
        needs: str,
        fine: frozenset[int] = frozenset(),
    ) -> dict[Any, Any]:
        def read(left: float) -> dict[Any, Any]:
            answers: dict[Any, Any] = {}
            for key, future in call(left).items():
                try:
                    answers[key] = future.result(left)
                except KafkaException as exception:
                    error = error_of(exception)
                    if step := missing_right(error, needs, _name(key)):
                        raise self._failed(what, error, step) from exception
                    if error.code() not in fine:
                        raise
            return answers

        answers: dict[Any, Any] = self._ask(what, read)
        return answers

    def _ask(self, what: str, call: Callable[[float], Any]) -> Any:
        """Return `call(seconds of the request)`; retry transient errors until the deadline."""
        with reported_wait(what, self._on_wait):
            return self._retried(what, call)

    def _retried(self, what: str, call: Callable[[float], Any]) -> Any:
        client = self._client
        began_s = time.monotonic()
        deadline_s = began_s + self._timeout_s
        listing_s = _LISTING_S
        while True:
            if self._client is None:
                raise StreamsError(f"{what}: given up, because the client was closed meanwhile")
            try:
                answer = self._answer(client, call, deadline_s, listing_s)
            except KafkaException as exception:
                error = error_of(exception)
                self._is_away = error.code() in AWAY
                final = not is_transient(error) or self._is_refused or self._is_gone(began_s)
                if final or time.monotonic() + _ASK_AGAIN_S >= deadline_s:
                    raise self._failed(what, error) from exception
                if error.code() in STALE_LEADER:
                    self._refresh_leaders()
            except (
                TimeoutError
            ) as exception:  # `future.result` timed out: the client missed its request timeout.
                error = KafkaError(TIMED_OUT)
                self._is_away = True
                if time.monotonic() >= deadline_s:
                    raise self._failed(what, error) from exception
            else:
                self._logged_in = True
                self._is_away = False
                self._log.unreachable = ""
                return answer
            listing_s = min(listing_s * 2, _REQUEST_S)
            _pause(deadline_s)

    def _answer(
        self, client: Any, call: Callable[[float], Any], deadline_s: float, listing_s: float
    ) -> Any:
        client.poll(0)  # Delivers log lines about brokers lost since the last call.
        try:
            if self._is_away or self._log.unreachable:
                left = max(deadline_s - time.monotonic(), _ASK_AGAIN_S)
                client.list_topics(timeout=min(left, listing_s))
            left = max(deadline_s - time.monotonic(), _ASK_AGAIN_S)
            return call(min(left, _REQUEST_S))
        finally:
            client.poll(0)  # Delivers log lines; `close` may have reset `self._client`.

    def _refresh_leaders(self) -> None:
        """Make the client refresh leaders; after a broker's restart it never does by itself."""
        with contextlib.suppress(KafkaException):
            self._client.list_topics(timeout=_LISTING_S)

    def _until(self, what: str, state: str) -> Iterator[float]:
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s:
            yield deadline_s
        raise UnansweredError(
            f"{what}: not done within {self._timeout_s:g} s on {self._settings.bootstrap_servers}: {state}; run it again once "
            "they answer"
        )

    def _is_gone(self, began_s: float) -> bool:
        """Return True if brokers can't even be connected to: a slow one could."""
        waited_s = time.monotonic() - began_s
        return self._is_away and bool(self._log.unreachable) and waited_s >= _REQUEST_S

    @property
    def _is_refused(self) -> bool:
        return not self._logged_in and self._log.refused_login is not None

    def _check_permitted(self, what: str, partition: Any, operation: str) -> None:
        if step := missing_right(partition.error, operation, partition.topic):
            raise self._failed(what, partition.error, step)

    def _failed(self, what: str, error: KafkaError, step: str = "") -> StreamsError:
        if self._is_refused:
            error = self._log.cause_of(error)
        kind = UnansweredError if is_transient(error) else StreamsError
        return kind(
            f"{what}: {error.name()}: {error.str()} (cluster {self._settings.bootstrap_servers}); "
            f"{step or next_step(error)}"
        )


def metadata_text(partition: Any) -> str:
    """Return the metadata of a committed offset, "" for none.

    confluent-kafka commits metadata with a final zero and reads up to it. Metadata of other clients
    has none, so any bytes may follow it.
    """
    try:
        return partition.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _pause(deadline_s: float) -> None:
    time.sleep(max(min(_ASK_AGAIN_S, deadline_s - time.monotonic()), 0))


def _name(key: Any) -> str:
    return str(getattr(key, "topic", None) or getattr(key, "name", key))


def _uuid_bytes(uuid: Any) -> bytes:
    halves = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits())
    return b"".join(half.to_bytes(8, "big", signed=True) for half in halves)


def _names(names: "Any") -> str:
    listed = sorted(set(names))
    shown = ", ".join(listed[:5])
    return shown if len(listed) <= 5 else f"{shown} and {len(listed) - 5} more"  # noqa: PLR2004 - a message names five
