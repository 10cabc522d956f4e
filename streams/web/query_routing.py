"""Routing of queries to the members that have the tasks."""

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.streams.errors import InvalidStateStoreError, QueryTimeoutError, StreamsError
from tidewheel.streams.group.discovery import copy_owners, owner_of
from tidewheel.streams.web.local_queries import Answer, QueriedStore
from tidewheel.streams.web.query_place import QueryPlace, place_text
from tidewheel.streams.web.query_request import QueryRequest
from tidewheel.streams.web.query_text import BadQueryError
from tidewheel.streams.web.query_transfer import fetch_json
from tidewheel.streams.worker.process_view import ProcessView

#: Seconds that a member may take beyond its time to say that it is over, and for what.
_GRACE_S: Final = 0.5
#: Members asked at the same time.
_FORWARDS_MAX: Final = 16
_OK: Final = 200


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a request that other members get.

    Attributes:
        prefix: Path before `/stores`, if the queries are mounted in a larger application.
        parameters: Parameters of the URL.
        authorization: Header of that name.
    """

    prefix: str = ""
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    authorization: str | None = None


class QueryRouter:
    """Answers queries from this process and from the owners of other tasks.

    Only the addresses of members in the group log are asked, and redirects are not followed.
    """

    def __init__(self, view: ProcessView) -> None:
        self._view = view
        self._pool = ThreadPoolExecutor(_FORWARDS_MAX, thread_name_prefix="tidewheel-forward")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def answer(self, request: QueryRequest, caller: Caller) -> Answer:
        """Return the rows of all partitions that the query concerns.

        Raises:
            BadQueryError: The query is wrong.
            InvalidStateStoreError: There is no such store, or a partition can't answer now.
        """
        store = QueriedStore(self._view, request.store)
        shape = request.shape_for(store.spec.kind)
        if store.spec.internal_rows:
            raise BadQueryError(f"store {store.name} can't be queried: {store.spec.internal_rows}")
        store.check_position(request.min_position)
        if store.subtopology is None:
            return store.read(request, ())
        key = store.arguments(request, shape).keys.get("key")
        tasks = self._tasks(store, request, key)
        here = store.roles(stale=request.is_stale, max_lag=request.max_lag)
        local = self._local(here, tasks, request)
        remote = self._remote(store, [task for task in tasks if task not in local], request)
        forwarded = self._forward(request, caller, remote)
        answers = [store.read(request, local)]
        for asked, future in forwarded:
            try:
                answers.append(future.result(timeout=request.left_s + 1.5 * _GRACE_S))
            except BadQueryError:
                raise
            except (TimeoutError, InvalidStateStoreError) as error:
                if not request.is_stale or not here.keys() >= set(asked):
                    raise _unanswered(request, error) from error
                answers.append(store.read(request, asked))
        return _merged(answers, request)

    def _tasks(self, store: QueriedStore, request: QueryRequest, key: Any) -> list[TaskId]:
        if request.partitions is None:
            return list(store.tasks) if key is None else store.tasks_of(key)
        for part in request.partitions:
            if not any(map(part.has, store.tasks)):
                tasks = ", ".join(map(place_text, store.tasks))
                raise BadQueryError(
                    f"store {store.name} has the partitions {tasks}, and no {part}; correct partitions="
                )
        return [task for task in store.tasks if any(part.has(task) for part in request.partitions)]

    def _local(
        self, here: Mapping[TaskId, QueryPlace], tasks: Iterable[TaskId], request: QueryRequest
    ) -> list[TaskId]:
        """Return the tasks to read here: those whose owner this is, and copies without one."""
        own = [task for task in tasks if task in here]
        if not request.is_stale or request.is_local:
            return own
        # A copy answers only if the owner can't.
        return [
            task
            for task in own
            if here[task].role == "active" or not self._has_reachable_owner(task)
        ]

    def _has_reachable_owner(self, task: TaskId) -> bool:
        group = self._group()
        owner = None if group is None else owner_of(group, task)
        return owner is not None and self._fault_of(owner) is None

    def _group(self) -> Group | None:
        try:
            return self._view.group()
        except InvalidStateStoreError:
            raise
        except StreamsError:
            return None

    def _remote(
        self, store: QueriedStore, tasks: list[TaskId], request: QueryRequest
    ) -> dict[tuple[str, ...], list[TaskId]]:
        """Return the addresses to ask, best first, with their tasks."""
        found: dict[tuple[str, ...], list[TaskId]] = {}
        if not tasks:
            return found
        group = None if request.is_local else self._group()
        for task in tasks:
            if group is None:
                raise InvalidStateStoreError(
                    f"store {store.name}: the task of partition {place_text(task)} is not running in this process; ask the "
                    "process that has it, or again in a moment"
                )
            servers = self._servers(group, store, task, request)
            found.setdefault(servers, []).append(task)
        return found

    def _servers(
        self, group: Group, store: QueriedStore, task: TaskId, request: QueryRequest
    ) -> tuple[str, ...]:
        owner = owner_of(group, task)
        members = [] if owner is None else [owner]
        if request.is_stale:
            members += copy_owners(group, task)
        faults = {member.endpoint or "": self._fault_of(member) for member in members}
        servers = tuple(endpoint for endpoint, fault in faults.items() if fault is None)
        if servers:
            return servers
        reason = next(iter(faults.values()), None) or f"no member runs task {task} now"
        raise InvalidStateStoreError(
            f"store {store.name}, partition {place_text(task)}: {reason}; ask again"
        )

    def _fault_of(self, member: MemberRecord) -> str | None:
        """Return why a member can't be asked, or None."""
        endpoint = member.endpoint
        if endpoint is None:
            return f"member {member.member} announces no address (set http_port or application_server there)"
        if endpoint == self._view.application.endpoint:
            return "its task is about to run in this process"
        if _is_loopback(endpoint) and member.host != socket.gethostname():
            return f"member {member.member} listens on host {member.host} for that machine only (set http_host there)"
        return None

    def _forward(
        self, request: QueryRequest, caller: Caller, remote: Mapping[tuple[str, ...], list[TaskId]]
    ) -> list[tuple[list[TaskId], "Future[Answer]"]]:
        return [
            (tasks, self._pool.submit(_ask, request, caller, servers, tasks))
            for servers, tasks in remote.items()
        ]


def _ask(
    request: QueryRequest, caller: Caller, servers: Sequence[str], tasks: Sequence[TaskId]
) -> Answer:
    """Return the answer of the first server that has one; each gets its share of the time."""
    *others, last = servers
    for number, server in enumerate(others):
        share_s = request.left_s / (len(servers) - number)
        with suppress(InvalidStateStoreError):
            return _ask_one(request, caller, server, tasks, share_s)
    return _ask_one(request, caller, last, tasks, request.left_s, _GRACE_S)


def _ask_one(
    request: QueryRequest,
    caller: Caller,
    server: str,
    tasks: Sequence[TaskId],
    timeout_s: float,
    grace_s: float = 0.0,
) -> Answer:
    asked = {
        "local": "true",
        "partitions": ",".join(map(place_text, tasks)),
        "limit": str(request.rows_max),
        "timeout_ms": str(max(int(timeout_s * 1000), 1)),
    }
    headers = {} if caller.authorization is None else {"authorization": caller.authorization}
    path = f"{caller.prefix}/stores/{quote(request.store, safe='')}/{request.kind}"
    try:
        reply = fetch_json(
            server,
            path,
            {**caller.parameters, **asked},
            headers,
            timeout_s=timeout_s + grace_s,
            bytes_max=request.bytes_max,
        )
    except TimeoutError as error:
        raise QueryTimeoutError(
            f"store {request.store}: member {server} did not answer in time; ask again, or with a larger timeout_ms"
        ) from error
    except OSError as error:
        raise InvalidStateStoreError(
            f"store {request.store}: member {server} did not answer ({type(error).__name__}); ask again"
        ) from error
    if reply.status == _OK and reply.fields is not None:
        return _answer_of(reply.fields)
    problem = "" if reply.fields is None else reply.fields.get("error", "")
    text = f"store {request.store}: member {server} answered {reply.status}: {str(problem)[:500]}"
    match reply.status:
        case 400:
            raise BadQueryError(text)
        case 401 | 403:
            text += " (all members need the same http_token)"
        case 504:
            raise QueryTimeoutError(text)
        case _:
            pass
    raise InvalidStateStoreError(text)


def _unanswered(request: QueryRequest, error: Exception) -> InvalidStateStoreError:
    if isinstance(error, InvalidStateStoreError):
        return error
    return QueryTimeoutError(f"store {request.store}: a member did not answer in time; ask again")


def _answer_of(content: dict[str, Any]) -> Answer:
    try:
        rows = [msgspec.json.encode(row) for row in content["rows"]]
        return Answer(
            rows=rows,
            partitions=msgspec.convert(content["partitions"], dict[str, QueryPlace]),
            truncated=content["truncated"],
            size_bytes=sum(map(len, rows)) + len(rows),
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise InvalidStateStoreError(
            "a member answered in an unknown form; its version may differ: update all members"
        ) from error


def _merged(answers: list[Answer], request: QueryRequest) -> Answer:
    """Return one answer in the order of partitions, within the limits."""
    if len(answers) == 1:
        return answers[0]
    merged = Answer()
    for answer in answers:
        merged.partitions |= answer.partitions
        merged.truncated = merged.truncated or answer.truncated
    merged.partitions = dict(sorted(merged.partitions.items(), key=_place_order))
    rows = sorted((row for answer in answers for row in answer.rows), key=_partition_of)
    for row in rows:
        merged.size_bytes += len(row) + 1
        if len(merged.rows) >= request.rows_max or merged.size_bytes > request.bytes_max:
            merged.truncated = merged.truncated or (
                "rows" if len(merged.rows) >= request.rows_max else "bytes"
            )
            break
        merged.rows.append(row)
    return merged


def _place_order(place: tuple[str, QueryPlace]) -> tuple[int, str]:
    partition, _, shard = place[0].partition("/")
    return int(partition), shard


def _partition_of(row: bytes) -> int:
    """Return the partition of a row: its last member.

    >>> _partition_of(b'{"key":"a","value":1,"partition":12}')
    12
    """
    return int(row[row.rindex(b":") + 1 : -1])


def _is_loopback(endpoint: str) -> bool:
    host = endpoint.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
