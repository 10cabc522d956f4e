"""Membership of a worker: welcome, orders, names and tasks."""

import math
import threading

import pytest

from tidewheel import FencedError, IncompatibleMemberError, Materialized, StreamsBuilder
from tidewheel.rebalance.model import TaskId, TaskShape
from tidewheel.rebalance.protocol.messages import SeenTask
from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    DropCopy,
    EndApplication,
    EndIncarnation,
    TasksSeen,
    WantShutdown,
    Welcome,
    WorkerLeaves,
)
from tidewheel.streams.worker.group_membership import (
    Departure,
    GroupMembership,
    member_name,
    task_shapes,
    tasks_seen,
    user_error,
)
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application


class FakeLink:
    """Connection whose other end is the test."""

    def __init__(self) -> None:
        self.orders: list[AnyOrder] = []
        self.said: list[AnyReport] = []
        self.turns = 0
        self.call_ns = 0

    def receive_orders(self) -> list[AnyOrder]:
        taken, self.orders = self.orders, []
        return taken

    def send(self, report: AnyReport) -> None:
        self.said.append(report)

    def progress(self) -> None:
        self.turns += 1

    def show_call(self, since_ns: int) -> None:
        self.call_ns = since_ns

    def lease_left_s(self) -> float:
        return math.inf


class Stage:
    def __init__(self, *orders: AnyOrder) -> None:
        self.link = FakeLink()
        self.link.orders = list(orders)
        self.woken = threading.Event()
        self.shutdowns: list[str] = []
        self.membership = GroupMembership(self.link, self.woken, self.shutdowns.append)


def test_orders_received_with_the_welcome_are_kept_for_the_loop() -> None:
    drop = DropCopy(task="0_1")
    welcome = Welcome(transactional_id="app-a-0")
    stage = Stage(welcome, drop)
    assert stage.membership.wait_for_welcome(threading.Event()) == "app-a-0"
    assert stage.link.turns > 0, "a worker that waits does not hang"
    assert stage.membership.receive_orders() == [welcome, drop]
    assert stage.membership.receive_orders() == []


def test_a_stopping_worker_does_not_wait_for_its_welcome() -> None:
    stopped = threading.Event()
    stopped.set()
    assert Stage().membership.wait_for_welcome(stopped) is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INCOMPATIBLE_TOPOLOGY", IncompatibleMemberError),
        ("INCOMPATIBLE_ASSIGNOR", IncompatibleMemberError),
        ("INCOMPATIBLE_VERSION", IncompatibleMemberError),
        ("FENCED_INSTANCE", FencedError),
    ],
)
def test_a_refusal_is_an_error_with_its_reason(code: str, kind: type[Exception]) -> None:
    stage = Stage(EndIncarnation(reason="says why", final=True, code=code))
    with pytest.raises(FencedError, match="says why") as caught:
        stage.membership.wait_for_welcome(threading.Event())
    assert caught.value.final
    assert isinstance(user_error(caught.value), kind)
    assert str(user_error(caught.value)) == "says why"


def test_the_end_of_the_application_is_passed_to_the_program_and_not_to_the_loop() -> None:
    drop = DropCopy(task="0_1")
    stage = Stage(EndApplication(reason="b: ValueError"), drop)
    assert stage.membership.receive_orders() == [drop]
    assert stage.shutdowns == ["b: ValueError"]


def test_a_shutdown_waits_until_the_group_has_accepted_it() -> None:
    stage = Stage()
    assert not stage.membership.shut_down("ValueError", 0.01), "nobody leads"
    assert stage.link.said == [WantShutdown(reason="ValueError")]
    assert stage.link.turns > 0
    stage.link.orders = [EndApplication(reason="a: ValueError")]
    assert stage.membership.shut_down("ValueError", 30.0)
    fenced = Stage(EndIncarnation(reason="no beat"))
    assert not fenced.membership.shut_down("ValueError", 30.0), "it has no say any more"
    assert stage.shutdowns == fenced.shutdowns == []


def test_S3_the_group_gives_the_reason_of_a_fence() -> None:
    by_brokers = FencedError("producer shop-a-0: commit: _FENCED")
    silent = Stage()
    assert silent.membership.fencing_reason(by_brokers, 0.01) is by_brokers
    late = Stage()
    late.link.orders = [DropCopy(task="0_1")]
    order = EndIncarnation(reason="another one has joined", final=True, code="FENCED_INSTANCE")

    def speak() -> None:
        late.link.orders.append(order)
        late.woken.set()

    threading.Timer(0.05, speak).start()
    told = late.membership.fencing_reason(by_brokers, 30)
    assert (str(told), told.final, told.code) == ("another one has joined", True, "FENCED_INSTANCE")


def test_a_reason_already_received_by_the_loop_is_used() -> None:
    stage = Stage(EndIncarnation(reason="over", final=True, code="FENCED_INSTANCE"))
    stage.membership.receive_orders()
    assert stage.membership.fencing_reason(FencedError("over"), 30).final


def test_a_leave_message_contains_the_kind_of_departure() -> None:
    stage = Stage()
    stage.membership.leave(Departure(drain_ms=700))
    stage.membership.leave(Departure(rejoin=True))
    assert stage.link.said == [WorkerLeaves(drain_ms=700), WorkerLeaves(rejoin=True)]


def test_S1_a_static_member_is_called_by_its_instance_id() -> None:
    assert member_name("shop", "kept", 3, alone=True) == "shop"
    assert member_name("shop", "kept", 3, alone=False) == "shop-3"
    assert member_name(None, "kept", 3, alone=False) == "kept"


def _plan(**topics: int) -> ApplicationPlan:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).group_by(
        lambda value: value, key_serde=str, name="by-value"
    ).count(store=Materialized("counts"))
    return plan_application(builder.build().spec(), "app", topics)


def test_N8_the_group_receives_the_shape_of_every_task() -> None:
    plan = _plan(**{"in": 2})
    stateless, counting = (
        TaskShape(stateful=False),
        TaskShape(stateful=True, changelogs=("app-counts-changelog",)),
    )
    assert task_shapes(plan, "app") == {
        TaskId(0, 0): stateless,
        TaskId(0, 1): stateless,
        TaskId(1, 0): counting,
        TaskId(1, 1): counting,
    }
    assert tasks_seen(plan, "app") == TasksSeen(
        tasks=(
            SeenTask(task="0_0"),
            SeenTask(task="0_1"),
            SeenTask(task="1_0", stateful=True, changelogs=("app-counts-changelog",)),
            SeenTask(task="1_1", stateful=True, changelogs=("app-counts-changelog",)),
        ),
        partitions={"in": 2, "app-by-value-repartition": 2},
    )
