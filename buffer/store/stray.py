"""What a store of somebody else may raise in place of an error of ours: a time-out, or a cancellation that is nobody's.

The latter comes when a store waits for a future that something else has cancelled.

A background task that ended of it would be missed by nobody: task groups take it for one that was told to end. In a
caller's own task it cannot be told from the caller's cancellation, and goes on as that.
"""

from __future__ import annotations

import anyio.lowlevel

from buffer.errors import StorageError

__all__ = ["own_time_out", "stray_cancellation"]


def own_time_out(raised: TimeoutError, path: str | None = None) -> StorageError:
    """Return the error that stands for a time-out that the store has raised: a limit of its own, and none of ours.

    Args:
        raised: What the task has caught.
        path: Key of the object that the store was asked for.
    """
    error = StorageError(f"the store gave up: {raised!r}", path=path, transient=True)
    error.__cause__ = raised
    return error


async def stray_cancellation(cancelled: BaseException, path: str | None = None) -> StorageError:
    """Return the error that stands for `cancelled`; if it was this task that was cancelled, that goes on instead.

    Args:
        cancelled: What the task has caught.
        path: Key of the object that the store was asked for.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    error = StorageError(
        "the store gave up because something that it waited for was cancelled", path=path, transient=True
    )
    error.__cause__ = cancelled
    return error
