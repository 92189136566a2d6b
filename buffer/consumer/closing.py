"""Pure. The error of a consumer that could not write its last acks in time."""

from __future__ import annotations

from buffer.config import ConsumerConfig
from buffer.errors import StorageError, UnknownOutcomeError

__all__ = ["late_acks"]


def late_acks(config: ConsumerConfig, through: int | None, *, in_doubt: bool) -> StorageError:
    """Return the error of acks that took longer than `close_timeout`.

    Args:
        config: The consumer's.
        through: The last acked sequence.
        in_doubt: Whether they may have been written.
    """
    late = f"acks through sequence {through} took longer than {config.close_timeout:g} s"
    if in_doubt:
        return UnknownOutcomeError(
            f"{late}: the write had no answer, and their batches may be delivered again",
            path=config.manifest_path,
            transient=True,
        )
    return StorageError(
        f"{late} and were not written: their batches will be delivered again",
        path=config.manifest_path,
        transient=True,
    )
