"""Questions and orders to the cluster: the port `tasks.ports.Admin`.

Every call has one deadline, within which it is asked again while the cluster says "later" (a leader moving, a
coordinator loading, a broker away); past it a StreamsError names the cluster and what to check. Answers that mean
"already so" are not errors.
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

from rebalance.model import TopicPartition
from streams.errors import FencedError, MissingSourceTopicError, StreamsError
from streams.kafka.advice import AWAY_ADVICE, next_step
from streams.kafka.client_log import LOGIN_ADVICE, ClientLog, error_of, make_client
from streams.kafka.codes import (
    AWAY,
    NO_GROUP,
    NO_LEADER,
    NO_TOPIC,
    STALE_LEADER,
    TIMED_OUT,
    is_transient,
)
from streams.kafka.failures import Outcome, outcome_of
from streams.kafka.offsets_readers import OffsetsReaders
from streams.kafka.open_transactions import Node, with_producers
from streams.kafka.producer import ProducerClient
from streams.kafka.settings import ClientSettings, fixed_group
from tasks.open_transactions import OpenTransaction
from tasks.ports import (
    CommittedOffset,
    NewTopic,
    TopicDescription,
    UnansweredError,
    UnsettledOffsetsError,
)

#: How many producers fence at once; each has threads of its own.
_FENCING_AT_ONCE: Final = 16
_ASK_AGAIN_S: Final = 0.05
_RETENTION: Final = "offsets.retention.minutes"
#: How long a request for all topics waits at once.
_LISTING_S: Final = 2.0
#: How long one client is waited for that reads a group's offsets, before another one is asked.
_READER_S: Final = 10.0
#: How long the first question to the cluster waits at once, and for how long it is no news that nobody answers.
_LOOK_S: Final = 0.5
_QUIET_S: Final = 3.0
_LOGGER: Final = logging.getLogger("streams.kafka")
_OFFSETS: Any = OffsetSpec  # its functions have no types


class KafkaAdmin:
    """Calls may come from any thread: the clients are safe.

    Args:
        settings: What clients are made from.
        timeout_s: How long each call may take.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float = 30.0) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        config = settings.administration()
        self._log = ClientLog(config["client.id"], with_debug="debug" in config)
        #: Whether any call has succeeded: then the login is right, and a refused one passes by itself.
        self._logged_in = False
        #: Whether the last call found no broker. An admin call of librdkafka that waits for one keeps two threads
        #: spinning (60 % of a processor, measured); a question for metadata waits quietly, so that one goes first.
        self._is_away = False
        # Kept for the whole life: a client that is collected fails the futures that are under way (F24).
        self._client: Any = make_client(AdminClient, "admin", config, self._log)
        self._readers = OffsetsReaders(settings, self._log)

    def reach(self, stopped: threading.Event, *, timeout_s: float | None = None) -> bool:
        """Wait for the first answer of a broker; returns whether there was one before `stopped` was set.

        Says after a few seconds what it waits for, and gives up with `StreamsError` when the time of a call (or `timeout_s`)
        is over. A refused login is no matter of waiting: the next call tells of it.
        """
        patience_s = self._timeout_s if timeout_s is None else timeout_s
        began_s = time.monotonic()
        look_s, said = _LOOK_S, False
        while not stopped.is_set():
            try:
                self._client.list_topics(timeout=look_s)
            except KafkaException as exception:
                cause = exception
                # Somebody is there, and needs longer for the answer.
                look_s *= 2 if error_of(exception).code() == TIMED_OUT else 1
            else:
                return True
            self._client.poll(0)  # takes its log lines, which say why
            if self._is_refused:
                return True
            waited_s = time.monotonic() - began_s
            if waited_s >= patience_s:
                raise StreamsError(f"{self._no_answer()}; {AWAY_ADVICE}") from cause
            if not said and waited_s >= _QUIET_S:
                said = True
                _LOGGER.warning("%s; trying on", self._no_answer())
        return False

    def _no_answer(self) -> str:
        reason = f" ({self._log.unreachable})" if self._log.unreachable else ""
        return f"can't reach a broker at {self._settings.bootstrap_servers}{reason}"

    def list_topics(self) -> dict[str, int]:
        """Return all topics and their partition counts."""
        # In short calls: the client's log, which says what is wrong, is taken between them.
        listed = self._ask(
            "list topics", lambda left: self._client.list_topics(timeout=min(left, _LISTING_S))
        )
        return {
            name: len(topic.partitions) for name, topic in listed.topics.items() if topic.partitions
        }

    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]:
        """Return the topics that exist among `names`, with the asked settings."""
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}
        found = self._each(
            "describe topics",
            lambda left: self._client.describe_topics(
                TopicCollection(wanted), request_timeout=left
            ),
            fine=NO_TOPIC,
        )
        settings = self._topic_settings(list(found), config) if config and found else {}
        return {
            name: TopicDescription(
                name=name,
                topic_id=_uuid_bytes(topic.topic_id),
                partitions=len(topic.partitions),
                config=settings.get(name, {}),
            )
            for name, topic in found.items()
        }

    def create_topics(self, topics: Sequence[NewTopic]) -> None:
        """Create topics; one that exists already is left alone. Returns when all are usable."""
        if not topics:
            return
        orders = [
            KafkaNewTopic(
                topic.name, topic.partitions, topic.replication_factor, config=dict(topic.config)
            )
            # The client's thread crashes over a name that comes twice.
            for topic in {topic.name: topic for topic in topics}.values()
        ]
        self._each(
            f"create topics {_names(topic.name for topic in topics)}",
            lambda left: self._client.create_topics(
                orders, operation_timeout=left, request_timeout=left
            ),
            fine=frozenset({KafkaError.TOPIC_ALREADY_EXISTS}),
        )
        self._wait_until_usable([topic.name for topic in topics])

    def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic; its others stay."""
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
        )

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics; one that does not exist is fine. Returns when none of them is known any more."""
        if not names:
            return
        self._each(
            f"delete topics {_names(names)}",
            lambda left: self._client.delete_topics(
                list(dict.fromkeys(names)), operation_timeout=left, request_timeout=left
            ),
            fine=NO_TOPIC,
        )
        for deadline_s in self._until(f"delete topics {_names(names)}", "it is still listed"):
            if not self.describe_topics(names):
                return
            _pause(deadline_s)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete records below these offsets."""
        if not before:
            return
        wanted = [KafkaPartition(*each, offset) for each, offset in before.items()]
        self._each(
            f"delete records of {_names(map(str, before))}",
            lambda left: self._client.delete_records(
                wanted, operation_timeout=left, request_timeout=left
            ),
        )

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset still in the log per partition."""
        return self._offsets(dict.fromkeys(partitions, _OFFSETS.earliest()))

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of the log (high watermark) per partition; records below it may be undecided."""
        latest = dict.fromkeys(partitions, _OFFSETS.latest())
        return self._offsets(latest, IsolationLevel.READ_UNCOMMITTED)

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset per partition: all records below it are decided."""
        return self._offsets(dict.fromkeys(partitions, _OFFSETS.latest()))

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        """Return the open transaction that the last stable offset waits for, of the partitions where there is one."""
        stable, ends = self.stable_offsets(partitions), self.end_offsets(partitions)
        found = {
            each: OpenTransaction(
                partition=each,
                start=stable[each],
                end=ends[each],
                servers=self._settings.bootstrap_servers,
            )
            for each in partitions
            if stable[each] < ends[each]
        }
        return self._with_producers(found) if found else {}

    def _with_producers(
        self, found: Mapping[TopicPartition, OpenTransaction]
    ) -> dict[TopicPartition, OpenTransaction]:
        """Add what brokers say of the producers; what they don't say is no failure."""
        try:
            described = self._each(
                "describe topics",
                lambda left: self._client.describe_topics(
                    TopicCollection(sorted({each.topic for each in found})), request_timeout=left
                ),
                fine=NO_TOPIC,
            )
            cluster = self._ask(
                "describe the cluster",
                lambda left: self._client.describe_cluster(request_timeout=left).result(left),
            )
        except StreamsError as error:
            return {each: replace(one, unknown=str(error)) for each, one in found.items()}
        leaders: dict[TopicPartition, Node] = {}
        for name, topic in described.items():
            for each in topic.partitions:
                if each.leader is not None:
                    leaders[TopicPartition(name, each.id)] = Node(
                        each.leader.host, each.leader.port
                    )
        nodes = [Node(each.host, each.port) for each in cluster.nodes]
        return with_producers(found, leaders, nodes, self._settings.administration())

    def offsets_of_age(self, ages_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return, per partition, the offset of the first record that is at most this old by now; the end if none is."""
        now_ms = time.time_ns() // 1_000_000
        return self._offsets_at({each: max(now_ms - age, 0) for each, age in ages_ms.items()})

    def committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return what is committed; `stable=True` waits until pending transactional commits are decided.

        Asked through a consumer: while a coordinator loads, librdkafka's admin call for this follows a null pointer
        (librdkafka#5040).
        """
        if partitions is None:
            partitions = [
                TopicPartition(topic, partition)
                for topic, count in self.list_topics().items()
                for partition in range(count)
            ]
        if not partitions:
            return {}
        wanted = [KafkaPartition(*each) for each in partitions]

        def read(left: float) -> list[Any]:
            with self._readers.lent(group_id, stable=stable) as reader:
                offsets: list[Any] = reader.committed(wanted, timeout=min(left, _READER_S))
            for each in offsets:
                if each.error is not None:  # an undecided commit is reported per partition
                    raise KafkaException(each.error)
            return offsets

        what = f"read the committed offsets of group {group_id}"
        try:
            return {
                TopicPartition(each.topic, each.partition): CommittedOffset(
                    each.offset, metadata_text(each)
                )
                for each in self._ask(what, read)
                if each.offset >= 0
            }
        except StreamsError as error:
            # librdkafka calls it a time-out, too, when all it waits for is the end of a transaction.
            if stable and self._answers_unstable(group_id, wanted):
                undecided = self._failed(what, KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))
                raise UnsettledOffsetsError(str(undecided)) from error
            raise

    def reach_group(self, group_id: str) -> None:
        """Ask for an offset that nobody commits, with the client that will ask for stable ones."""

        def ask(left: float) -> None:
            with self._readers.lent(group_id, stable=True) as reader:
                reader.committed([KafkaPartition(group_id, 0)], timeout=min(left, _READER_S))

        self._ask(f"find the coordinator of group {group_id}", ask)

    def _answers_unstable(self, group_id: str, wanted: list[KafkaPartition]) -> bool:
        """Whether the coordinator tells the offsets to one who does not mind an undecided commit."""
        try:
            with self._readers.lent(group_id, stable=False) as reader:
                reader.committed(wanted, timeout=_LISTING_S)
        except KafkaException:
            return False
        return True

    def group_members(self, group_id: str) -> int:
        """Return how many live members the group has."""
        return len(self._members(group_id))

    def fixed_workers(self, application_id: str) -> dict[str, str]:
        """Return the workers with a fixed assignment that live: the transactional id of each, and its host."""
        return {
            member.client_id: member.host.removeprefix("/")
            for member in self._members(fixed_group(application_id))
        }

    def _members(self, group_id: str) -> list[Any]:
        """Return the members of a group as the client describes them."""
        found = self._each(
            f"describe group {group_id}",
            lambda left: self._client.describe_consumer_groups([group_id], request_timeout=left),
            fine=NO_GROUP,
        )
        return [member for group in found.values() for member in group.members]

    def offsets_retention_ms(self) -> int:
        """Return how long brokers keep an offset that is not committed again, by the settings of one of them."""
        what = f"read {_RETENTION} of a broker"
        cluster = self._ask(
            what, lambda left: self._client.describe_cluster(request_timeout=left).result(left)
        )
        broker = ConfigResource(ConfigResource.Type.BROKER, str(cluster.controller.id))
        found = self._each(
            what, lambda left: self._client.describe_configs([broker], request_timeout=left)
        )
        setting = found[broker].get(_RETENTION)
        # Services that run Kafka for others leave settings out, or their values.
        if setting is None or not str(setting.value).isdigit():
            raise StreamsError(f"{what}: it does not say")
        return int(setting.value) * 60_000

    def alter_committed(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        """Overwrite committed offsets; refused by the cluster while the group has members."""
        if not offsets:
            return
        wanted = [
            KafkaPartition(*each, offset)
            if isinstance(offset, int)
            else KafkaPartition(*each, offset.offset, metadata=offset.metadata)
            for each, offset in offsets.items()
        ]
        request = [ConsumerGroupTopicPartitions(group_id, wanted)]
        altered = self._each(
            f"overwrite the committed offsets of group {group_id}",
            lambda left: self._client.alter_consumer_group_offsets(request, request_timeout=left),
        )
        for each in altered[group_id].topic_partitions:
            if each.error is not None:
                raise self._failed(
                    f"overwrite the committed offset of {each.topic}-{each.partition}", each.error
                )

    def delete_group(self, group_id: str) -> None:
        """Delete a group and its offsets; one that does not exist is fine."""
        self._each(
            f"delete group {group_id}",
            lambda left: self._client.delete_consumer_groups([group_id], request_timeout=left),
            fine=NO_GROUP,
        )

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Fence producers of these ids, in parallel, and abort their open transactions."""
        ids = list(dict.fromkeys(transactional_ids))
        if not ids:
            return
        with ThreadPoolExecutor(
            min(len(ids), _FENCING_AT_ONCE), thread_name_prefix="fence"
        ) as threads:
            # All are tried, whatever becomes of one: the others' transactions must not stay open.
            tried = [threads.submit(self._fence, each) for each in ids]
        for each in tried:
            each.result()

    def close(self) -> None:
        """Let the clients go; those that are being asked close when they have answered. Idempotent."""
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
                # Somebody else fenced it at the same moment; the leader's own log decides who goes on.
                raise FencedError(
                    f"producer {transactional_id}: fenced by another while fencing it"
                ) from exception
            raise self._failed(f"fence producer {transactional_id}", error) from exception
        finally:
            producer.drop()

    def _topic_settings(
        self, names: Sequence[str], config: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        found = self._each(
            f"read the settings of topics {_names(names)}",
            lambda left: self._client.describe_configs(resources, request_timeout=left),
            fine=NO_TOPIC,
        )
        return {
            resource.name: {
                name: entries[name].value
                for name in config
                if name in entries and entries[name].value is not None
            }
            for resource, entries in found.items()
        }

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time; the end where there is none."""
        return self._offsets_at(dict.fromkeys(partitions, timestamp_ms))

    def _offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return, per partition, the offset of the first record at or after a time; the end where there is none."""
        found = self._offsets(
            {each: _OFFSETS.for_timestamp(time_ms) for each, time_ms in times_ms.items()}
        )
        return found | self.stable_offsets([each for each, offset in found.items() if offset < 0])

    def _offsets(
        self,
        specs: Mapping[TopicPartition, Any],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        wanted = {KafkaPartition(*each): spec for each, spec in specs.items()}
        topics = list(dict.fromkeys(each.topic for each in specs))

        def read(left: float) -> dict[TopicPartition, int]:
            futures = self._client.list_offsets(
                wanted, isolation_level=isolation, request_timeout=left
            )
            try:
                found = {
                    TopicPartition(each.topic, each.partition): future.result(left).offset
                    for each, future in futures.items()
                }
            except KafkaException as exception:
                if error_of(exception).code() in NO_LEADER:
                    self._check_exist(
                        topics
                    )  # else the same error means that a leader is being elected
                    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) from exception
                raise
            if OFFSET_INVALID in found.values():
                # Neither an offset nor an error, as for a topic made a moment ago: nobody who leads it has answered.
                raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
            return found

        offsets: dict[TopicPartition, int] = self._ask(
            f"read offsets of topics {_names(topics)}", read
        )
        return offsets

    def _check_exist(self, topics: Sequence[str]) -> None:
        missing = sorted(set(topics) - set(self.describe_topics(topics)))
        if missing:
            raise MissingSourceTopicError(
                f"topics {_names(missing)} do not exist on {self._settings.bootstrap_servers}; create them first"
            )

    def _wait_until_usable(self, names: Sequence[str]) -> None:
        what = f"create topics {_names(names)}"
        for deadline_s in self._until(what, "they were created, but a partition has no leader yet"):
            found = self._each(
                what,
                lambda left: self._client.describe_topics(
                    TopicCollection(list(names)), request_timeout=left
                ),
                fine=NO_TOPIC,
            )
            led = [
                name
                for name, topic in found.items()
                if topic.partitions and all(each.leader is not None for each in topic.partitions)
            ]
            if len(led) == len(set(names)):
                return
            _pause(deadline_s)

    def _each(
        self,
        what: str,
        call: Callable[[float], Mapping[Any, "Future[Any]"]],
        *,
        fine: frozenset[int] = frozenset(),
    ) -> dict[Any, Any]:
        """Ask for several things at once; those whose error is `fine` are left out of the answer."""

        def read(left: float) -> dict[Any, Any]:
            answers: dict[Any, Any] = {}
            for key, future in call(left).items():
                try:
                    answers[key] = future.result(left)
                except KafkaException as exception:
                    if error_of(exception).code() not in fine:
                        raise
            return answers

        answers: dict[Any, Any] = self._ask(what, read)
        return answers

    def _ask(self, what: str, call: Callable[[float], Any]) -> Any:
        """Return what `call(seconds left)` returns, asking again while the error passes by itself."""
        client = self._client
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            if self._client is None:
                raise StreamsError(f"{what}: given up, because the client was closed meanwhile")
            try:
                if self._is_away:
                    client.list_topics(timeout=max(deadline_s - time.monotonic(), _ASK_AGAIN_S))
                answer = call(max(deadline_s - time.monotonic(), _ASK_AGAIN_S))
            except KafkaException as exception:
                error = error_of(exception)
                self._is_away = error.code() in AWAY
                final = not is_transient(error) or self._is_refused
                if final or time.monotonic() + _ASK_AGAIN_S >= deadline_s:
                    raise self._failed(what, error) from exception
                if error.code() in STALE_LEADER:
                    self._refresh_leaders()
            except (
                TimeoutError
            ) as exception:  # the future's own, should the client forget its time limit
                error = KafkaError(TIMED_OUT)
                self._is_away = True
                if time.monotonic() >= deadline_s:
                    raise self._failed(what, error) from exception
            else:
                self._logged_in = True
                self._is_away = False
                return answer
            finally:
                client.poll(
                    0
                )  # takes its log lines, which would else pile up; `close` may have come meanwhile
            _pause(deadline_s)

    def _refresh_leaders(self) -> None:
        """Have the client ask for the partitions' leaders anew: after a broker's restart it would never do so itself."""
        with contextlib.suppress(KafkaException):  # then the next try tells
            self._client.list_topics(timeout=_LISTING_S)

    def _until(self, what: str, state: str) -> Iterator[float]:
        """Yield the deadline until it has passed, then raise."""
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s:
            yield deadline_s
        raise UnansweredError(
            f"{what}: not done within {self._timeout_s:g} s on {self._settings.bootstrap_servers}: {state}; run it again once "
            "they answer"
        )

    @property
    def _is_refused(self) -> bool:
        return not self._logged_in and self._log.refused_login != ""

    def _failed(self, what: str, error: KafkaError) -> StreamsError:
        if is_transient(error) and self._is_refused:
            return StreamsError(
                f"{what}: {self._log.refused_login} (cluster {self._settings.bootstrap_servers}); {LOGIN_ADVICE}"
            )
        kind = UnansweredError if is_transient(error) else StreamsError
        return kind(
            f"{what}: {error.name()}: {error.str()} (cluster {self._settings.bootstrap_servers}); {next_step(error)}"
        )


def metadata_text(partition: Any) -> str:
    """Return the metadata of a committed offset, "" for none.

    The client reads what others than itself committed past its end (librdkafka copies it without the final zero that
    confluent-kafka looks for), so there may be anything behind it, also what is no text.
    """
    try:
        return partition.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _pause(deadline_s: float) -> None:
    time.sleep(max(min(_ASK_AGAIN_S, deadline_s - time.monotonic()), 0))


def _uuid_bytes(uuid: Any) -> bytes:
    halves = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits())
    return b"".join(half.to_bytes(8, "big", signed=True) for half in halves)


def _names(names: "Any") -> str:
    """Return names for a message: all of a few, the first of many."""
    listed = sorted(set(names))
    shown = ", ".join(listed[:5])
    return shown if len(listed) <= 5 else f"{shown} and {len(listed) - 5} more"  # noqa: PLR2004 - as many as one reads
