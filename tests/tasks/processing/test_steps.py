"""Work that awaits users' coroutines on a loop which it shares with other work."""

import asyncio

from tasks.processing.steps import Steps, await_steps


class Owner:
    """Whose work it is; counts what the work notes."""

    def __init__(self) -> None:
        self.given_up = False
        self.worked_s = 0.0
        self.waits = 0


def test_work_whose_wait_is_over_begins_its_next_one_before_others_go_on() -> None:
    """However many wait for the loop, a record is behind them once, and not at each of its coroutine's ends and beginnings."""
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

    asyncio.run(run())
    assert order == [
        *("a0 begins", "b0 begins"),
        *("a0 ends", "a1 begins", "b0 ends", "b1 begins"),
        *("a1 ends", "b1 ends"),
    ]


def test_only_a_coroutine_that_waits_counts_as_a_wait() -> None:
    """Else nobody lets others go on where it returns at once."""

    async def wait(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    def work() -> Steps[list[int]]:
        return [(yield wait(0)), (yield wait(2)), (yield wait(0))]

    owner = Owner()
    assert asyncio.run(await_steps(work(), owner)) == [0, 2, 0]
    assert owner.waits == 2
