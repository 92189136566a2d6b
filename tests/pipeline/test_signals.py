"""Waiting for state to change: nothing is missed, nobody is woken for nothing, and the line keeps its order."""

from __future__ import annotations

import anyio
import pytest

from buffer.pipeline.signals import Line, Signal

pytestmark = pytest.mark.virtual_time


async def test_a_condition_that_is_true_is_not_waited_for() -> None:
    """No notification is needed for what is there already."""
    await Signal().until(lambda: True)


async def test_a_change_wakes_those_it_concerns() -> None:
    """A condition is looked at when there is news, and its task runs only if it holds."""
    signal, state, woken = Signal(), {"a": False, "b": False}, []

    async def wait(key: str) -> None:
        await signal.until(lambda: state[key])
        woken.append(key)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "a")
        tasks.start_soon(wait, "b")
        await anyio.wait_all_tasks_blocked()
        signal.notify()
        state["b"] = True
        signal.notify()
        await anyio.wait_all_tasks_blocked()
        assert woken == ["b"]
        state["a"] = True
        signal.notify()
    assert woken == ["b", "a"]


async def test_what_is_undone_before_the_task_runs_is_waited_for_again() -> None:
    """Being woken is no proof: the condition is looked at once more."""
    signal, state, woken = Signal(), [False], []

    async def wait() -> None:
        await signal.until(lambda: state[0])
        woken.append(state[0])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        state[0] = True
        signal.notify()
        state[0] = False
        await anyio.wait_all_tasks_blocked()
        assert not woken
        state[0] = True
        signal.notify()
    assert woken == [True]


async def test_waiting_ends_at_the_deadline() -> None:
    """Time passes without any change, and the task goes on."""
    began = anyio.current_time()
    await Signal().until(lambda: False, deadline=began + 5)
    assert anyio.current_time() - began == pytest.approx(5)


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    """Nobody looks at the condition of a task that has gone."""
    signal, asked = Signal(), []

    def condition() -> bool:
        asked.append(True)
        return False

    with anyio.move_on_after(1):
        await signal.until(condition)
    asked.clear()
    signal.notify()
    assert not asked


async def test_a_line_serves_in_the_order_of_coming() -> None:
    """However the changes come, first come is first served, one task for each thing there is."""
    signal = Signal()
    things: list[str] = []
    served: list[tuple[int, str]] = []
    line = Line(signal)

    async def customer(number: int) -> None:
        await line.until(lambda: bool(things))
        served.append((number, things.pop(0)))

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(customer, number)
            await anyio.wait_all_tasks_blocked()
        things += ["a", "b"]
        signal.notify()
        await anyio.wait_all_tasks_blocked()
        assert served == [(0, "a"), (1, "b")]
        things += ["c", "d"]
        signal.notify()
    assert served == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]


async def test_a_line_only_asks_for_its_first() -> None:
    """A change costs one look, however many tasks stand in line."""
    signal, asked, open_ = Signal(), [], [False]
    line = Line(signal)

    def condition() -> bool:
        asked.append(True)
        return open_[0]

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(line.until, condition)
        await anyio.wait_all_tasks_blocked()
        asked.clear()
        signal.notify()
        assert len(asked) == 1
        open_[0] = True
        signal.notify()


async def test_who_leaves_the_line_holds_up_nobody() -> None:
    """Cancelling the first, or one in the middle, lets the next ones move up."""
    signal, state, served = Signal(), [False], []
    line = Line(signal)
    scopes = [anyio.CancelScope() for _ in range(4)]

    async def customer(number: int) -> None:
        with scopes[number]:
            await line.until(lambda: state[0])
            served.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(customer, number)
            await anyio.wait_all_tasks_blocked()
        scopes[0].cancel()
        scopes[2].cancel()
        await anyio.wait_all_tasks_blocked()
        state[0] = True
        signal.notify()
    assert served == [1, 3]
