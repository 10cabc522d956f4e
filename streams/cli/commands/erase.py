"""`tidewheel state delete`: makes the owner of a key delete it, and waits for the tombstone."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tidewheel.rebalance.inspect.describe import duration_text
from tidewheel.rebalance.model import TaskId, TaskPhase
from tidewheel.rebalance.protocol.field_types import KEY_BYTES_MAX
from tidewheel.rebalance.protocol.messages import EraseKey, KeyErased
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.bulk.store_view import key_bytes, partition_of_key
from tidewheel.streams.bulk.stores import BulkStore
from tidewheel.streams.cli.arguments import SettingsOptions, parse_timeout_ms
from tidewheel.streams.cli.commands.bulk.shared import Flag, program_of, target_and
from tidewheel.streams.cli.group_access import GroupAccess, access_to
from tidewheel.streams.cli.output import print_error, print_json, text_console
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.serdes.windowed import is_windowed
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, changelog_topic

_POLL_S: Final = 0.2
#: Interval of delete orders until one is answered: the owner may change or be restoring.
_REPEAT_S: Final = 1.0


def delete(
    *names: str,
    partition: int | None = None,
    everywhere: Flag = False,
    execute: Flag = False,
    timeout: str = "30s",
    json: Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Delete a key from a store of a running application: its row, windows, sessions or versions.

    The worker that owns the key deletes the rows as a processor's `delete` does, and commits the
    tombstones to the changelog, which all copies follow. Input and output topics are not changed:
    docs/guides/erasure.md has all steps. Without --execute nothing is deleted.

    Exit codes: 0 deleted, or shown; 1 the key does not exist, or no worker deletes it; 2 no such
    store, it can't delete keys, or KEY does not fit its serde.

    Args:
        names: [MODULE:TOPOLOGY] STORE KEY. The key is text, or JSON such as 7 or {"id": 7}; without
            a program, the setting topology names it.
        partition: The key's partition, for keys that your own partitioner has placed.
        everywhere: Delete it in all partitions, one after the other: for stores of processors whose
            keys are not the records' keys.
        execute: Delete the key.
        timeout: Limit for the owner's commit, such as 30s or 5m.
        json: Print a line of JSON instead of text.
        settings: Settings.
    """
    timeout_ms = parse_timeout_ms(timeout, 1, ": give how long to wait, such as 30s")
    if everywhere and partition is not None:
        raise ConfigError("--everywhere and --partition contradict each other; give one of them")
    target, store, key = target_and(names, "STORE", "KEY")
    topology, config = program_of(target, settings)
    as_json = json
    with access_to(config) as access:
        _check_group(access)
        topics = access.connection.admin.list_topics()
        plan = configured_plan(topology.spec(config), config, topics)
        rows = rows_of_key(erasable_store(topology, config, plan, store), key, partition)
        access.read()
        _check_runs(access)
        numbers = range(rows.store.partitions) if everywhere else (rows.partition,)
        deletions = [_Deletion(access, rows._replace(partition=number)) for number in numbers]
        if not execute:
            _print_plans(deletions, as_json=as_json)
            return ExitCode.OK
        return _execute(deletions, key, timeout_ms, as_json=as_json)


def _execute(
    deletions: Sequence["_Deletion"], key: str, timeout_ms: int, *, as_json: bool
) -> ExitCode:
    code = ExitCode.FAILED
    for deletion in deletions:
        answer = _waited(deletion, timeout_ms, as_json=as_json)
        if answer.problem:
            print_error(
                f"store {deletion.rows.store.name}, task {answer.task}: nothing was deleted: {answer.problem}"
            )
            return ExitCode.FAILED
        if answer.rows:
            code = ExitCode.OK
            _print_answer(deletion.rows, answer, as_json=as_json)
    if code is not ExitCode.OK:
        print_error(_missing_key_text(deletions, key))
    return code


class KeyRows(NamedTuple):
    """Place of a key's rows.

    Attributes:
        tail: Number of bytes behind `key` in each row's key (window times).
        partition: The store's changelog partition.
    """

    store: BulkStore
    key: bytes
    tail: int
    partition: int

    @property
    def task(self) -> TaskId:
        return self.store.task_of_key(self.partition, self.key)


def rows_of_key(store: BulkStore, text: str, partition: int | None) -> KeyRows:
    serde = store.spec.key_serde
    tail = 0
    if is_windowed(serde):  # all windows of the inner key
        tail = serde.tail_bytes
        store = replace(store, spec=replace(store.spec, key_serde=serde.inner))
    key = key_bytes(store, text)
    if len(key) > KEY_BYTES_MAX:
        raise ConfigError(
            f"the key has {len(key)} bytes, and an order to delete holds {KEY_BYTES_MAX} at most; delete it in a processor"
        )
    number = partition_of_key(store, key) if partition is None else partition
    if not 0 <= number < store.partitions:
        raise ConfigError(
            f"store {store.name} has partitions 0 to {store.partitions - 1}, not {number}"
        )
    return KeyRows(store, key, tail, number)


def erasable_store(
    topology: Topology, config: StreamsConfig, plan: ApplicationPlan, name: str
) -> BulkStore:
    names: list[str] = []
    for global_store in topology.spec(config).global_stores:
        names.append(global_store.store.name)
        if global_store.store.name == name:
            raise ConfigError(
                f"store {name!r} is a global one: every process fills it from topic {global_store.topic}; write a tombstone of "
                "the key to that topic"
            )
    for number, subtopology in sorted(plan.subtopologies.items()):
        for spec in subtopology.spec.stores:
            names.append(spec.name)
            if spec.name == name:
                _check_spec(spec)
                return BulkStore(
                    spec=spec,
                    topic=changelog_topic(config.application_id, name),
                    subtopology=number,
                    partitions=subtopology.partitions,
                    shards=subtopology.shards,
                )
    names_text = f"there is {', '.join(sorted(names))}" if names else "the topology has none"
    raise ConfigError(f"there is no store {name!r}; {did_you_mean(name, names) or names_text}")


def _check_spec(spec: StoreSpec) -> None:
    if spec.kind is StoreKind.CUSTOM:
        raise ConfigError(
            f"store {spec.name!r} is a custom one: its rows are known to its own class only; give the class a method that "
            "deletes a key and logs that (log_change), and have a processor call it"
        )
    if spec.internal_rows:
        raise ConfigError(f"no key can be deleted from store {spec.name!r}: {spec.internal_rows}")
    if spec.source_topic is not None:
        raise ConfigError(
            f"store {spec.name!r} has no changelog of its own: it is restored from topic {spec.source_topic}, which would bring "
            "the row back; write a tombstone of the key to that topic: the table deletes its row, and forwards that"
        )
    if not spec.logging:
        raise ConfigError(
            f"store {spec.name!r} has no changelog (logging=False), so no tombstone can be committed; have a processor of your "
            "own delete the key"
        )


def _check_group(access: GroupAccess) -> None:
    fixed = access.connection.admin.fixed_workers(access.application_id)
    if fixed:
        raise StreamsError(
            f"the workers of {access.application_id} have fixed assignment (--tasks, --fixed-assignment) and take no orders: "
            f"{', '.join(sorted(fixed))}; stop them, run the application as a group (`tidewheel run` without these options), "
            "then delete the key"
        )
    access.check_exists()


def _check_runs(access: GroupAccess) -> None:
    if not access.inbox.live_members(access.group, access.now_ms()):
        raise StreamsError(
            f"no worker of {access.application_id} is running, so the key can't be deleted; start the application, then run "
            "this again"
        )


class _Owner(NamedTuple):
    record: MemberRecord
    task_epoch: int


class _Deletion:
    """Sends a delete order to the task's owner, also to later owners, until one answers."""

    def __init__(self, access: GroupAccess, rows: KeyRows) -> None:
        self.rows = rows
        self._access = access
        self._request = secrets.token_hex(16)
        #: Names of the members that received the order, by incarnation (one start of a member).
        self.asked: dict[str, str] = {}

    def _owner(self) -> _Owner | None:
        group = self._access.group
        state = group.states.get(self.rows.task)
        if state is None or state.phase != TaskPhase.RUNNING or state.owner is None:
            return None
        record = group.live().get(state.owner)
        return None if record is None else _Owner(record, state.task_epoch)

    def owner_name(self) -> str:
        owner = self._owner()
        return "" if owner is None else owner.record.member

    def run(self, timeout_ms: int, show: Callable[[str], None]) -> KeyErased:
        deadline_s = time.monotonic() + timeout_ms / 1000
        ask_s = time.monotonic()
        while True:
            answer = self._access.inbox.erased.get(self._request)
            if answer is not None and answer.incarnation in self.asked:
                return answer
            if time.monotonic() >= deadline_s:
                raise StreamsError(self._late(timeout_ms))
            owner = self._owner()
            if owner is None:
                show(f"task {self.rows.task} has no owner at the moment")
            elif time.monotonic() >= ask_s or owner.record.incarnation not in self.asked:
                self._ask(owner)
                show(f"{owner.record.member} was asked to delete the key")
                ask_s = time.monotonic() + _REPEAT_S
            time.sleep(_POLL_S)
            self._access.read()

    def _ask(self, owner: _Owner) -> None:
        rows = self.rows
        self.asked[owner.record.incarnation] = owner.record.member
        self._access.send(
            EraseKey(
                app=self._access.application_id,
                member="operator",
                incarnation=self._access.operator,
                request=self._request,
                task=str(rows.task),
                task_epoch=owner.task_epoch,
                store=rows.store.name,
                key=rows.key,
                tail=rows.tail,
            )
        )

    def _late(self, timeout_ms: int) -> str:
        waited = duration_text(timeout_ms)
        if self.asked:
            name = list(self.asked.values())[-1]
            return (
                f"{name} did not answer within {waited}; it may still delete the key, so run this again. `tidewheel status` "
                "shows if its task is restoring or in a long call; a member of a version without deletion logs that it "
                "skipped a message of the inbox: upgrade it"
            )
        pause_reason = self._access.group.about.held
        why = f": the group decides nothing ({pause_reason})" if pause_reason else ""
        return (
            f"task {self.rows.task} had no owner for {waited}{why}; nothing was deleted. `tidewheel status` shows the "
            "reason"
        )


def _waited(deletion: _Deletion, timeout_ms: int, *, as_json: bool) -> KeyErased:
    if as_json:
        return deletion.run(timeout_ms, lambda _: None)
    with text_console(stderr=True).status("asking") as status:
        return deletion.run(timeout_ms, status.update)


def _missing_key_text(deletions: Sequence[_Deletion], key: str) -> str:
    first = deletions[0]
    text = f"store {first.rows.store.name} has no key {key!r} in"
    if len(deletions) > 1:
        return f"{text} any partition"
    before = list(first.asked.values())[:-1]
    if before:
        return f"{text} partition {first.rows.partition} any more: {', '.join(before)} was asked before, and may have deleted it"
    return (
        f"{text} partition {first.rows.partition}; --partition names another one, and --everywhere all of them, for keys that are "
        "not where Kafka's own partitioning puts them"
    )


def _place(rows: KeyRows) -> dict[str, Any]:
    return {
        "store": rows.store.name,
        "task": str(rows.task),
        "topic": rows.store.topic,
        "partition": rows.partition,
    }


def _print_plans(deletions: Sequence[_Deletion], *, as_json: bool) -> None:
    console = text_console()
    for deletion in deletions:
        rows, owner = deletion.rows, deletion.owner_name()
        if as_json:
            print_json({**_place(rows), "owner": owner or None, "executed": False})
            continue
        console.print(
            f"Would have {owner or 'its next owner'} delete the key from store {rows.store.name}: task {rows.task}, changelog "
            f"{rows.store.topic} partition {rows.partition}.",
            markup=False,
            highlight=False,
        )
    if not as_json:
        console.print("Nothing was deleted. Add --execute to do it.")


def _print_answer(rows: KeyRows, answer: KeyErased, *, as_json: bool) -> None:
    if as_json:
        offsets = {
            "first_offset": answer.first if answer.first >= 0 else None,
            "last_offset": answer.last if answer.last >= 0 else None,
        }
        done = {"owner": answer.member, "rows": answer.rows, **offsets, "executed": True}
        print_json({**_place(rows), **done})
        return
    count = "1 row" if answer.rows == 1 else f"{answer.rows:,} rows"
    console = text_console()
    console.print(
        f"{answer.member} deleted {count} of the key from store {rows.store.name}. Committed in {rows.store.topic} partition "
        f"{rows.partition}{_offsets_text(answer)}.",
        markup=False,
        highlight=False,
    )


def _offsets_text(answer: KeyErased) -> str:
    if answer.last < 0:
        return ""
    if answer.first < 0:
        return f", offset {answer.last} at the latest"
    if answer.first == answer.last:
        return f", offset {answer.last}"
    return f", offsets {answer.first} to {answer.last}"
