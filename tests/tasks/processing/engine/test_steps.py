"""Steps: work that awaits users' coroutines on a shared loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tidewheel.tasks.processing.api.coroutines import new_loop
from tidewheel.tasks.processing.engine.steps import Steps, await_steps


class Owner:
    def __init__(self) -> None:
        self.is_cancelled = False
        self.worked_s = 0.0
        self.waits = 0
        self.awaited: asyncio.Task[Any] | None = None

    def limited(self, coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        return coroutine


def run_promptly(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(coroutine)


def test_work_whose_wait_ended_continues_before_others() -> None:
    order: list[str] = []

    async def wait(name: str, until: asyncio.Event) -> None:
        order.append(f"{name} begins")
        await until.wait()
        order.append(f"{name} ends")

    def work(name: str, gates: list[asyncio.Event]) -> Steps[None]:
        for number, gate in enumerate(gates):
            yield wait(f"{name}{number}", gate)

    async def run() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        works = [
            asyncio.create_task(await_steps(work(name, [first, second]), Owner())) for name in "ab"
        ]
        await asyncio.sleep(0)
        for gate in (first, second):
            gate.set()
            await asyncio.sleep(0)
        await asyncio.gather(*works)

    run_promptly(run())
    assert order == [
        *("a0 begins", "b0 begins"),
        *("a0 ends", "a1 begins", "b0 ends", "b1 begins"),
        *("a1 ends", "b1 ends"),
    ]


def test_only_a_coroutine_that_waits_counts_as_a_wait() -> None:
    async def wait(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    def work() -> Steps[list[int]]:
        return [(yield wait(0)), (yield wait(2)), (yield wait(0))]

    owner = Owner()
    assert run_promptly(await_steps(work(), owner)) == [0, 2, 0]
    assert owner.waits == 2


def _by_a_timer() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(0.01, task.cancel)


def _by_its_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    _begun.append(asyncio.create_task(_cancel(task)))


async def _cancel(task: "asyncio.Task[Any]") -> None:
    await asyncio.sleep(0.01)
    task.cancel()


def _and_withdraws_it() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    task.uncancel()


_begun: list["asyncio.Task[None]"] = []


@pytest.mark.parametrize("cancel", [_by_a_timer, _by_its_own_task, _and_withdraws_it])
@pytest.mark.parametrize("run", [run_promptly, asyncio.run], ids=["prompt loop", "any loop"])
def test_a_coroutine_cancelled_after_its_end_cancels_no_other(
    run: Callable[[Coroutine[Any, Any, Any]], Any], cancel: Callable[[], None]
) -> None:
    async def leaves() -> str:
        cancel()
        return "left"

    async def waits() -> str:
        await asyncio.sleep(0.05)
        return "waited"

    def work() -> Steps[list[str]]:
        return [(yield leaves()), (yield waits())]

    assert run(await_steps(work(), Owner())) == ["left", "waited"]
