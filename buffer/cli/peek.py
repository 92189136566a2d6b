"""The queue read from outside: no consumer, no epoch, nothing written, nobody fenced."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator

from buffer import (
    ConsumedBatch,
    ConsumerConfig,
    ConsumerFetchHandle,
    FormatError,
    InvalidInputError,
    ManifestView,
    NotFoundError,
    ObjectStore,
    parse_manifest,
)
from buffer.cli.exits import CommandError, ExitCode
from buffer.format import MANIFEST_FOOTER_BYTES
from buffer.store.base import Suffix

__all__ = ["ManifestReader", "no_queue", "peek", "require_queue"]

logger = logging.getLogger("buffer.cli")

_ENTRIES_AHEAD = 256


class ManifestReader:
    """Reads one manifest again and again; while it stays as it was, a read costs no download.

    Attributes:
        view: The manifest as last read, or None before there was one.
    """

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path
        self._etag: str | None = None
        self.view: ManifestView | None = None

    async def refresh(self) -> None:
        """Read the manifest into `view`; one that is not there leaves it as it was.

        Raises:
            FormatError: It breaks a rule of the format.
            StorageError: It could not be read.
        """
        try:
            found = await self._store.get(self._path, if_none_match=self._etag)
        except NotFoundError:
            return
        if found is None:
            return
        try:
            self.view = parse_manifest(found.body, known=self.view)
        except FormatError as error:
            error.path = self._path
            raise
        self._etag = found.etag


async def peek(
    store: ObjectStore, config: ConsumerConfig, *, after: int | None
) -> AsyncGenerator[ConsumedBatch | None, None]:
    """Give the queue's batches in order, and None each time there are no more for now; it never ends by itself.

    Batches that a consumer takes before they were read are stepped over.

    Args:
        store: Where the queue lies.
        config: Which queue it is.
        after: Sequence after which to begin, or None for the first entry.

    Raises:
        NotFoundError: The manifest names a batch that is not there.
        FormatError: Manifest or batch break a rule of their format.
        InvalidInputError: The queue never came to `after`.
        StorageError: Manifest or batch could not be read.
    """
    manifest = ManifestReader(store, config.manifest_path)
    fetch = ConsumerFetchHandle(store, config)
    while True:
        await manifest.refresh()
        if manifest.view is not None and after is not None and after >= manifest.view.next_sequence:
            raise InvalidInputError(
                f"sequence {after} was never handed out by this queue, whose next sequence is "
                f"{manifest.view.next_sequence} (manifest {config.manifest_path!r}): it is another queue's, or this "
                "one was created anew"
            )
        ahead = manifest.view.after(after, _ENTRIES_AHEAD) if manifest.view is not None else []
        if not ahead:
            yield None
        for descriptor in ahead:
            try:
                batch = await fetch.fetch(descriptor)
            except NotFoundError:
                # Acknowledged and collected since the manifest was read, or lost: the manifest of now knows.
                await manifest.refresh()
                if manifest.view is None or manifest.view.first_sequence <= descriptor.sequence:
                    raise
                logger.warning(
                    "sequences %d to %d were taken by a consumer before they were read",
                    descriptor.sequence,
                    manifest.view.first_sequence - 1,
                )
                break
            after = descriptor.sequence
            yield batch


async def require_queue(store: ObjectStore, path: str) -> None:
    """Make sure that there is a manifest, for the price of its last bytes.

    Raises:
        CommandError: There is none.
        StorageError: The store did not tell.
    """
    try:
        await store.get(path, part=Suffix(MANIFEST_FOOTER_BYTES))
    except NotFoundError as error:
        raise no_queue(store, path) from error


def no_queue(store: ObjectStore, path: str) -> CommandError:
    """Return what to raise about a manifest that is not there."""
    return CommandError(
        f"there is no manifest {path} in {store.url}: nothing was ever produced there, or the path is another",
        ExitCode.NOT_FOUND,
    )
