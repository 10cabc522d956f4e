"""Group log access for processes outside the group: reads it and appends one step of records.

One transaction claims leadership, which fences the previous leader, and writes the whole group. If
a member claims leadership first, the step is rebuilt from the newer log.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, Protocol

from tidewheel.rebalance.inspect.describe import LogFold
from tidewheel.rebalance.leader.log_steps import Claimant, Command, command_leader
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import LeaderBeat, encode_message
from tidewheel.rebalance.protocol.records import AnyRecord, encode_record, record_keys
from tidewheel.rebalance.runtime.ports import LeadershipLostError
from tidewheel.streams.errors import FencedError, StreamsError
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.streams.group.recovery import LogWriter
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.kafka.admin.group_log import (
    LeaderProducer,
    inbox_topic,
    new_control_topics,
    state_topic,
)
from tidewheel.streams.kafka.admin.reset_admin import TIMEOUT_S, KafkaResetAdmin, show_wait
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.group_reader import KafkaGroupReader
from tidewheel.streams.kafka.producers.sink_producer import KafkaSinkProducer
from tidewheel.tasks.kafka.ports import Admin, SinkProducer
from tidewheel.tasks.kafka.shard_inputs import all_committed
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.processing.engine.output import OutputColumns

#: Age (ms) from which the inbox topic is read. A member counts as alive for two session timeouts
#: after its last message, so timeouts may be up to 60 s.
_INBOX_BACK_MS: Final = 120_000

#: Attempts of `step`; each fails if another process claims the group's leadership first.
_TRIES: Final = 8
#: Seconds before the second attempt; before the third twice this, and so on.
_PAUSE_S: Final = 0.25


class StepWriter(LogWriter, Protocol):
    def close(self) -> None: ...


class GroupLogWriter:
    def __init__(
        self,
        application_id: str,
        *,
        admin: Admin,
        topics: GroupTopics,
        writer: Callable[[], StepWriter],
        sink: Callable[[], SinkProducer],
        now_ms: Callable[[], int],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._app = application_id
        self._admin = admin
        self._topics = topics
        self._writer = writer
        self._sink = sink
        self._now_ms = now_ms
        self._pause = pause
        self._log = LogFold()
        self._inbox = InboxFold()

    def open(self, replication_factor: int) -> None:
        """Create missing topics; raise `StreamsError` if a group with commits has lost one."""
        ids = self._topics.topic_ids()
        missing = [
            name for name in (state_topic(self._app), inbox_topic(self._app)) if name not in ids
        ]
        if not missing:
            return
        committed = all_committed(self._admin, self._app)
        for partition, (offset, metadata) in sorted(committed.items()):
            progress = Progress.decode(metadata, committed_offset=offset)
            if progress is not None and progress.task_epoch > 0:
                raise StreamsError(
                    f"topic {missing[0]} does not exist, but the group has committed {partition}: run `tidewheel group recover` "
                    "first"
                )
        self._admin.create_topics(new_control_topics(self._app, replication_factor, missing))

    def topic_ids(self) -> dict[str, str]:
        return dict(self._topics.topic_ids())

    def group(self, *, decided: bool = False) -> Group:
        """Read the group log to its end, or if `decided` to its last stable offset.

        Reading to the end fails at the open transaction of a killed run, until a leadership claim
        fences its producer.
        """
        for entry in self._topics.log(decided=decided):
            self._log.add(entry)
        return self._log.group

    def live_members(self) -> tuple[str, ...]:
        return self.read_inbox().live_members(self._log.group, self._now_ms())

    def read_inbox(self) -> InboxFold:
        for message in self._topics.inbox(self._now_ms() - _INBOX_BACK_MS):
            self._inbox.add(message)
        return self._inbox

    def step(self, make: Callable[[Group], Sequence[AnyRecord]]) -> Group:
        """Claim leadership and append the records that `make` derives from the current group.

        `make` may run several times. If it raises, nothing is written.
        """
        problem = ""
        for number in range(_TRIES):
            if number:
                self._pause(_PAUSE_S * number)
            with closing(self._writer()) as writer:
                try:
                    writer.init()
                    before = self.group()
                    records = make(before)
                    writer.write(
                        record_keys(records), [encode_record(record) for record in records]
                    )
                except (LeadershipLostError, FencedError) as error:
                    problem = str(error)
                    continue
            after = replay(records, before)
            self._resign(after)
            return after
        raise StreamsError(
            f"topic {state_topic(self._app)} could not be written: others claimed the leadership of group {self._app} each time, or "
            f"the cluster refused: {problem}; "
            "nothing is half done, run the command again"
        )

    def claim_step(
        self,
        command: Command,
        run_id: str,
        make: Callable[[Group, Claimant], Sequence[AnyRecord]],
    ) -> None:
        """Append the records that `make` derives from the group for a run of `command`.

        A `ValueError` of `make` becomes a `StreamsError`. See `step`.
        """
        leader = command_leader(command, run_id)
        claimant = Claimant(leader=leader, topic_ids=self.topic_ids())

        def records(group: Group) -> Sequence[AnyRecord]:
            try:
                return make(group, claimant)
            except ValueError as error:
                raise StreamsError(str(error)) from error

        self.step(records)

    def close(self) -> None:
        self._topics.close()

    def _resign(self, group: Group) -> None:
        beat = LeaderBeat(
            app=self._app,
            member=group.leader,
            incarnation=group.leader,
            leader_epoch=group.leader_epoch,
            seq=1,
            resigns=True,
        )
        with closing(self._sink()) as sink:
            sink.produce(
                OutputColumns(
                    topic=inbox_topic(self._app),
                    partitions=0,
                    keys=[beat.incarnation.encode()],
                    values=[encode_message(beat)],
                    timestamps=[self._now_ms()],
                )
            )
            # Failures are ignored: without the message, members only wait longer for a leader.
            sink.flush()


def group_log_writer(settings: ClientSettings, admin: KafkaResetAdmin) -> GroupLogWriter:
    app = settings.application_id
    return GroupLogWriter(
        app,
        admin=admin,
        topics=group_topics(settings, admin),
        writer=lambda: LeaderProducer(
            settings, TopicPartition(state_topic(app), 0), timeout_s=TIMEOUT_S, on_wait=show_wait
        ),
        sink=lambda: KafkaSinkProducer(settings),
        now_ms=lambda: time.time_ns() // 1_000_000,
    )


def group_topics(settings: ClientSettings, admin: KafkaResetAdmin) -> GroupTopics:
    return GroupTopics(
        settings.application_id,
        admin,
        KafkaGroupReader(settings, committed_only=True),
        KafkaGroupReader(settings, committed_only=False),
    )
