"""Waiting for state to change: nothing is missed, and nobody is woken for nothing."""

from __future__ import annotations

import anyio
import pytest

from buffer.pipeline.signals import Signal

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
