"""The callback form: several tasks take deliveries and pass them to one handler.

Owns: the handlers' tasks, and which of their failures leaves. Does not own: where deliveries come from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import anyio
import anyio.lowlevel

from buffer.errors import Error, FencedError
from buffer.model import ConsumedBatch
from buffer.pipeline.delivery import Delivery
from buffer.pipeline.failures import foremost

__all__ = ["Handler", "handle_all"]

Handler: TypeAlias = Callable[[ConsumedBatch], Awaitable[object]]


async def handle_all(
    deliveries: AsyncIterator[Delivery],
    handler: Handler,
    *,
    concurrency: int,
    fenced: Callable[[], Awaitable[FencedError]],
) -> None:
    """Call `handler` with each batch until `deliveries` end. What a handler does not finish is given back.

    Args:
        deliveries: May be iterated by several tasks; an error of it comes again for each of them.
        handler: Processes one batch for good.
        concurrency: How many batches are handled at the same time.
        fenced: Returns once another consumer has taken over, and never if that does not happen.

    Raises:
        BaseException: What stopped it; of several, the foremost.
    """
    failures: list[BaseException] = []

    async def handle_each() -> None:
        while True:
            try:
                delivery = await anext(deliveries, None)
            except Error as exc:
                # The other tasks finish what they have in hand, and then meet it too.
                failures.append(exc)
                return
            if delivery is None:
                return
            try:
                await handler(delivery.batch)
                delivery.done()
            except BaseException as exc:
                delivery.give_back()
                if isinstance(exc, anyio.get_cancelled_exc_class()):
                    # Unless it is this task that was cancelled, it is something that the handler waited for; if
                    # the task just ended, nobody would notice.
                    await anyio.lowlevel.checkpoint_if_cancelled()
                failures.append(exc)
                tasks.cancel_scope.cancel()
                return
            # While this task waits for the next one, it must not keep the batch in memory.
            del delivery

    async def handle_until_end() -> None:
        async with anyio.create_task_group() as handlers:
            for number in range(concurrency):
                handlers.start_soon(handle_each, name=f"buffer handler {number}")
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle_until_end, name="buffer handlers")
            # A zombie must not go on writing only because all its handlers are busy and none of them asks.
            failures.append(await fenced())
            tasks.cancel_scope.cancel()
    except anyio.get_cancelled_exc_class():
        # A failure replaces the cancellation, as it does when a handler is called without tasks.
        if not failures:
            raise
    if failures:
        raise foremost(failures)
