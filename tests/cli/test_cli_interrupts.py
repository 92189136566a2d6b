"""What a signal cancels, and what it lets be finished; signals themselves are tested with real processes."""

from __future__ import annotations

import signal

import anyio
import anyio.lowlevel
import pytest

from buffer import FencedError
from buffer.cli.exits import Interrupted
from buffer.cli.interrupts import Interrupts, supervise

pytestmark = pytest.mark.virtual_time


async def test_a_command_that_ends_gives_its_result() -> None:
    """Without a signal nothing changes."""

    async def command(_interrupts: Interrupts) -> str:
        await anyio.sleep(1)
        return "result"

    assert await supervise(command) == "result"


async def test_an_error_leaves_as_itself() -> None:
    """Not in a group, wherever the command's own task groups may have put it."""
    failure = FencedError("taken")

    async def fail() -> None:
        raise failure

    async def command(_interrupts: Interrupts) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)

    with pytest.raises(FencedError) as caught:
        await supervise(command)
    assert caught.value is failure


async def test_a_signal_cancels_what_waits() -> None:
    """The command can tidy up, and the signal is what is reported."""
    tidied = False

    async def command(interrupts: Interrupts) -> None:
        nonlocal tidied
        interrupts.interrupt(signal.SIGTERM)
        try:
            await anyio.sleep_forever()
        finally:
            tidied = True

    with pytest.raises(Interrupted) as caught:
        await supervise(command)
    assert caught.value.signum is signal.SIGTERM
    assert tidied


async def test_a_command_that_ends_by_itself_after_a_signal_is_interrupted_all_the_same() -> None:
    """A shell must learn that not everything was done."""

    async def command(interrupts: Interrupts) -> None:
        interrupts.interrupt(signal.SIGINT)

    with pytest.raises(Interrupted):
        await supervise(command)


async def test_an_error_while_tidying_up_is_worth_more_than_the_signal() -> None:
    """It says what is not as it should be."""

    async def command(interrupts: Interrupts) -> None:
        interrupts.interrupt(signal.SIGINT)
        raise FencedError("taken")

    with pytest.raises(FencedError):
        await supervise(command)


@pytest.mark.parametrize("early", [True, False])
async def test_a_part_to_be_finished_goes_on_until_its_time_is_over(early: bool) -> None:
    """Whether the signal came before the part or within it."""
    steps: list[str] = []

    async def command(interrupts: Interrupts) -> None:
        if early:
            interrupts.interrupt(signal.SIGINT)
        with interrupts.finishing(10):
            interrupts.interrupt(signal.SIGINT)
            await anyio.sleep(9)
            steps.append("in time")
            await anyio.sleep(9)
            steps.append("too late")
        steps.append("after")
        await anyio.lowlevel.checkpoint()
        steps.append("waited")

    with pytest.raises(Interrupted):
        await supervise(command)
    assert steps == ["in time", "after"]


@pytest.mark.parametrize("early", [True, False])
async def test_a_stretch_within_such_a_part_ends_at_once(early: bool) -> None:
    """Reading stops, and what was read is still brought to its end."""
    steps: list[str] = []

    async def command(interrupts: Interrupts) -> None:
        with interrupts.finishing(10):
            if early:
                interrupts.interrupt(signal.SIGINT)
            with interrupts.interruptible():
                interrupts.interrupt(signal.SIGINT)
                await anyio.lowlevel.checkpoint()
                steps.append("read more")
            await anyio.sleep(1)
            steps.append("finished")

    with pytest.raises(Interrupted):
        await supervise(command)
    assert steps == ["finished"]


async def test_without_a_signal_a_part_has_all_the_time_it_needs() -> None:
    """The limit counts from the signal."""

    async def command(interrupts: Interrupts) -> bool:
        with interrupts.finishing(10):
            await anyio.sleep(3600)
            return True
        return False

    assert await supervise(command)


async def test_only_the_first_signal_counts() -> None:
    """A second one in the same moment does not give more time, nor another name to die by."""

    async def command(interrupts: Interrupts) -> None:
        with interrupts.finishing(10) as part:
            interrupts.interrupt(signal.SIGINT)
            deadline = part.deadline
            await anyio.sleep(1)
            interrupts.interrupt(signal.SIGTERM)
            assert part.deadline == deadline

    with pytest.raises(Interrupted) as caught:
        await supervise(command)
    assert caught.value.signum is signal.SIGINT
