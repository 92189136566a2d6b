"""The tasks of a pipeline as one: started, watched and ended together.

Owns: the owner task and the fetching, and what ended them. Does not own: what they do.

They raise nothing into the surrounding code: what stops them is kept, for iteration to raise.
"""

from __future__ import annotations

import random
from types import TracebackType

import anyio

from buffer.consumer import Consumer
from buffer.errors import FencedError
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.failures import foremost, leaves
from buffer.pipeline.fetching import Fetching
from buffer.pipeline.owner import Owner
from buffer.pipeline.progress import Progress
from buffer.pipeline.signals import Signal
from buffer.store.stray import stray_cancellation

__all__ = ["Background"]


class Background:
    """One owner and the fetching; made on the event loop.

    Args:
        consumer: Entered.
        progress: The pipeline's state.
        config: The pipeline's settings.
        look_timeout: Seconds for which a manifest that cannot be read is tried again.
        rng: Source of jitter.

    Attributes:
        changed: Notified by everybody who changes the pipeline's state.
        owner: The one who uses the consumer.
        failure: What ended the tasks, or None.
        shown: Whether the failure has been raised to a caller.
        ended: Set once none of them runs any more.
    """

    def __init__(
        self,
        consumer: Consumer,
        progress: Progress,
        config: PipelineConfig,
        *,
        look_timeout: float,
        rng: random.Random,
    ) -> None:
        self.changed = Signal()
        self.owner = Owner(consumer, progress, self.changed, config, look_timeout=look_timeout, rng=rng)
        self._fetching = Fetching(consumer.fetch_handle(), progress, self.changed, config, rng=rng)
        # Only closing ends them: who cleans up after a cancellation can go on iterating.
        self._scope = anyio.CancelScope(shield=True)
        self.failure: BaseException | None = None
        self._came_through: TracebackType | None = None
        self.shown = False
        self.ended = anyio.Event()

    @property
    def fenced(self) -> bool:
        """Whether another consumer has taken over."""
        return isinstance(self.failure, FencedError)

    async def run(self) -> None:
        """Run until one of them fails, or until `cancel`; return in both cases."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._own, name="buffer pipeline owner")
                    tasks.start_soon(self._fetching.run, name="buffer pipeline fetching")
        except BaseExceptionGroup as group:
            # If the surrounding code was cancelled in the same moment, the cancellation is in there too and goes on.
            failures, others = group.split(Exception)
            if failures is not None:
                self._fail(foremost(leaves(failures)))
            if others is not None:
                raise others from None
        finally:
            self.ended.set()
            self.changed.notify()

    async def _own(self) -> None:
        try:
            await self.owner.run()
        except anyio.get_cancelled_exc_class() as exc:
            raise await stray_cancellation(exc) from exc

    def _fail(self, failure: BaseException) -> None:
        self.failure, self._came_through = failure, failure.__traceback__

    async def until_fenced(self) -> FencedError:
        """Wait until another consumer has taken over; for ever, if that does not happen."""
        await self.ended.wait()
        while not isinstance(self.failure, FencedError):
            await anyio.sleep_forever()
        self.shown = True
        return self.failure

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            self.shown = True
            # The same exception each time: otherwise it would remember every place it was ever raised at.
            raise self.failure.with_traceback(self._came_through)

    def cancel(self) -> None:
        """End them. A write under way may be applied, or not."""
        self._scope.cancel()
