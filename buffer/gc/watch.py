"""The manifest as a collector reads it: never changed, and never taken for empty because it is not there.

Owns: one cycle's knowledge of the manifest. Does not own: what follows from it.
"""

from __future__ import annotations

from buffer.errors import FencedError, FormatError, NotFoundError, StorageError
from buffer.format import ManifestView, parse_manifest
from buffer.queue.limits import in_time
from buffer.store.base import ObjectStore
from buffer.workers import CpuWorkers

__all__ = ["ManifestWatch"]


class ManifestWatch:
    """Reads one manifest again and again; a read costs a "not modified" while it stays as it was.

    Args:
        store: Where the manifest lies.
        path: Its key.
        epoch: The epoch that the manifest must have, or None if any will do.
        workers: Where large manifests are checked.
        request_timeout: Seconds after which one read is given up.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        *,
        epoch: int | None,
        workers: CpuWorkers,
        request_timeout: float,
    ) -> None:
        self._store = store
        self._path = path
        self._epoch = epoch
        self._workers = workers
        self._request_timeout = request_timeout
        self._etag: str | None = None
        self.view = ManifestView.empty()

    async def refresh(self) -> bool:
        """Read the manifest into `view` and return whether it has changed since the last time.

        Raises:
            NotFoundError: There is none. Producers and consumers begin with an empty one; for a collector it
                would make garbage of every batch there is.
            FencedError: It has another epoch.
            FormatError: It breaks a rule of the format.
            StorageError: It could not be read.
        """
        try:
            found = await in_time(
                self._request_timeout, lambda: self._store.get(self._path, if_none_match=self._etag)
            )
        except TimeoutError as exc:
            raise StorageError(f"the manifest was not read: {exc}", path=self._path, transient=True) from exc
        except NotFoundError as exc:
            raise NotFoundError(
                "there is no manifest, so nothing tells which batches are still needed and none is deleted; "
                "before the first batch is enqueued this is normal, later manifest_path is wrong or the manifest lost",
                path=self._path,
                status=exc.status,
                code=exc.code,
                request_id=exc.request_id,
            ) from exc
        if found is None:
            return False
        try:
            view = await self._workers.run(
                len(found.body), parse_manifest, found.body, known=self.view if self._etag else None
            )
        except FormatError as exc:
            exc.path = self._path
            raise
        if self._epoch is not None and view.epoch != self._epoch:
            raise FencedError(
                "another consumer has taken over the queue, and with it the collection of its garbage",
                path=self._path,
                epoch=self._epoch,
                manifest_epoch=view.epoch,
            )
        self.view, self._etag = view, found.etag
        return True
