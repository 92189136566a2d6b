"""`S3Store`: the store protocol on S3 and what speaks like it.

Provider quirks live here, each with a comment where it is handled.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, assert_never, overload
from urllib.parse import quote

import anyio

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import InvalidInputError, PreconditionError, StorageError
from buffer.store.base import (
    OVERWRITE,
    ByteRange,
    Create,
    GetResult,
    ListPage,
    Match,
    ObjectMeta,
    Overwrite,
    PutMode,
    Suffix,
)
from buffer.store.keys import check_key
from buffer.store.s3.answers import (
    object_from,
    put_etag,
    range_header,
    read_delete,
    read_listing,
    strong_etag,
)
from buffer.store.s3.chain import provider_for
from buffer.store.s3.client import S3Client
from buffer.store.s3.config import S3Config
from buffer.store.s3.credentials import CredentialProvider
from buffer.store.s3.errors import diagnose, server_time_ms
from buffer.store.s3.messages import Answer, Call, Subject
from buffer.store.s3.sigv4 import quote_path
from buffer.store.s3.transport import HttpTransport, SocketTransport, TransportStatistics
from buffer.store.s3.xml import Listing, delete_body, in_xml
from buffer.workers import CpuWorkers

__all__ = ["S3Store"]

_DELETE_CHUNK = 1000
_SINGLE_DELETES = 8


class S3Store:
    """Keeps objects in a bucket of S3, or of a store with its protocol and conditional writes.

    The constructor does no I/O. A store belongs to one event loop; a pickled copy opens connections of its own
    and looks for credentials where it is unpickled, unless the settings hold them.

    Args:
        config: Bucket and settings.
        credentials: Who signs; by default what `config` says, or the environment and the chain of the AWS tools.
        transport: Any httpx transport; by default one of our own that is fast with large bodies.
        clock: Wall clock of the signatures.
        rng: Source of the jitter.
    """

    def __init__(
        self,
        config: S3Config,
        *,
        credentials: CredentialProvider | None = None,
        transport: HttpTransport | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self._config = config
        self._components = (credentials, transport, clock, rng)
        self._transport = transport or SocketTransport(
            ca_bundle=config.ca_bundle,
            connect_timeout=config.connect_timeout,
            idle_timeout=config.idle_timeout,
        )
        self._client = S3Client(
            config,
            credentials=credentials or provider_for(config, clock=clock),
            transport=self._transport,
            clock=clock,
            rng=rng or random.Random(),
        )
        self._workers = CpuWorkers()
        self._root = f"{config.prefix}/" if config.prefix else ""
        # Ceph before release 17 takes If-Match only without the quotes; None until a write has told.
        self._unquoted: bool | None = None

    @classmethod
    def from_url(cls, url: str, *, environ: Mapping[str, str] | None = None, **settings: Any) -> S3Store:
        """Return the store of `s3://bucket/prefix?region=...`; see `S3Config.from_url`."""
        return cls(S3Config.from_url(url, os.environ if environ is None else environ, **settings))

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`, with the endpoint in its query unless it is Amazon's; `open_store` takes it."""
        url = f"s3://{self._config.bucket}/{quote_path(self._config.prefix)}".rstrip("/")
        endpoint = self._config.endpoint
        return url if endpoint is None else f"{url}?endpoint={quote(endpoint, safe=':/[]~')}"

    @property
    def config(self) -> S3Config:
        """The settings."""
        return self._config

    def statistics(self) -> TransportStatistics:
        """Return how many connections are open; with a transport of another kind, how many requests run."""
        if isinstance(self._transport, SocketTransport):
            return self._transport.statistics()
        return TransportStatistics(self._client.in_flight, 0)

    @overload
    async def get(self, key: str, *, part: ByteRange | Suffix | None = None) -> GetResult: ...

    @overload
    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None
    ) -> GetResult | None: ...

    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None = None
    ) -> GetResult | None:
        """Read an object, or a part of it; see `ObjectStore.get`. Transient failures are tried again.

        Raises:
            NotFoundError: The store says that the key does not exist. A missing bucket, and a 404 that does not
                come from S3, are a `StorageError`.
            AccessDeniedError: The store refused.
            InvalidInputError: S3 cannot hold such a key.
            StorageError: Anything else, among it an object without a strong ETag or with an encoding on top.
        """
        subject = self._subject("read", key)
        headers: dict[str, str] = {}
        if part is not None:
            headers["range"] = range_header(part)
        if if_none_match is not None:
            headers["if-none-match"] = _header_value(if_none_match)
        call = Call(
            method="GET",
            key=self._full(key),
            subject=subject,
            headers=headers,
            success=frozenset({200, 206, 304, 416} if isinstance(part, Suffix) else {200, 206, 304}),
            conditional=if_none_match is not None,
        )
        result = await self._client.call(call, lambda answer: object_from(answer, subject, part))
        if result == "empty":
            # No last bytes of an empty object: its ETag needs another request. (Some stores answer 200 at once.)
            whole = await self.get(key, if_none_match=if_none_match)
            if whole is None or not isinstance(part, Suffix):
                return None
            return GetResult(whole.body[-part.length :], whole.etag, whole.size_bytes)
        if result == "unchanged":
            if if_none_match is None:
                raise StorageError(
                    f"{subject}: HTTP 304 to a request without a condition", path=key, status=304
                )
            return None
        return result

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Write an object whole and return its ETag; see `ObjectStore.put`.

        `OVERWRITE` is tried again after transient failures. A condition is sent once, and its errors are exactly
        what is known: refused, lost, or unknown.

        Raises:
            PreconditionError: The condition did not hold, or a competing request was in the way.
            UnknownOutcomeError: The write may have been applied.
            AccessDeniedError: The store refused; nothing was written.
            InvalidInputError: S3 cannot hold such a key, or the ETag is none.
            ClosedError: The store has been closed.
            StorageError: Anything else; nothing was written. One exception: an overwrite that the store confirms
                without a strong ETag was written, but no queue can live on such a store.
        """
        match mode:
            case Overwrite():
                return await self._put(key, body, {})
            case Create():
                return await self._put(key, body, {"if-none-match": "*"})
            case Match(etag):
                return await self._put_matching(key, body, strong_etag(_header_value(etag)))
            case _:
                assert_never(mode)

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """Iterate over the pages of all objects whose key starts with `prefix`; see `ObjectStore.list`.

        A page that cannot be read, or tokens that do not lead on, raise `StorageError`: a listing is never cut short.
        """
        return _Listing(self._client, self._subject("list", None), self._root, prefix)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """Delete objects and return the keys that could not be, each with its error; see `ObjectStore.delete`.

        A thousand keys go into one request. A key that the store does not report on counts as failed.
        """
        errors: dict[str, StorageError] = {}
        unique = list(dict.fromkeys(keys))
        for key in unique:
            self._full(key)
        together = [key for key in unique if in_xml(key)]
        alone = [key for key in unique if not in_xml(key)]
        for first in range(0, len(together), _DELETE_CHUNK):
            chunk = together[first : first + _DELETE_CHUNK]
            try:
                errors |= await self._delete_together(chunk)
            except StorageError as exc:
                if exc.status not in {405, 501}:
                    if first == 0 and not alone:
                        raise
                    errors |= dict.fromkeys(chunk, exc)
                    continue
                alone += chunk
        errors |= await self._delete_alone(alone)
        return errors

    async def aclose(self) -> None:
        """Close the connections; requests that are running end theirs."""
        await self._client.aclose()

    async def _put(self, key: str, body: bytes, condition: dict[str, str]) -> str:
        subject = self._subject("write", key, write=True, conditional=bool(condition))
        if condition:
            # What takes the place of another object must not be a stump. Not every store checks the signed hash of
            # the body, and some keep what has come when a client goes away; this checksum they all respect.
            condition = {**condition, "content-md5": await self._workers.run(len(body), _content_md5, body)}
        call = Call(
            method="PUT",
            key=self._full(key),
            subject=subject,
            headers=condition,
            body=bytes(body),
            success=frozenset({200, 201, 204}),
            conditional=subject.conditional,
        )
        return await self._client.call(call, lambda answer: put_etag(answer, subject))

    async def _put_matching(self, key: str, body: bytes, etag: str) -> str:
        bare = etag[1:-1] if len(etag) > 2 and etag[0] == etag[-1] == '"' else etag
        try:
            written = await self._put(key, body, {"if-match": bare if self._unquoted else etag})
        except PreconditionError as exc:
            # A store that takes only the bare form says 412 to the exact ETag of the object that is there. That
            # was a decision, nothing was written; so the other form may be tried. Settled for good after that.
            if exc.status != 412 or self._unquoted is not None or bare == etag:
                raise
            if await self._current_etag(key) != etag:
                raise
            written = await self._put(key, body, {"if-match": bare})
            self._unquoted = True
        else:
            if self._unquoted is None:
                self._unquoted = False
        return written

    async def _current_etag(self, key: str) -> str | None:
        """Return the object's ETag, or None if it cannot be had."""
        call = Call(
            method="HEAD",
            key=self._full(key),
            subject=self._subject("read", key),
            success=frozenset({200, 404}),
            conditional=True,
        )
        try:
            return await self._client.call(call, lambda answer: answer.headers.get("etag"))
        except StorageError:
            return None

    async def _delete_together(self, keys: Sequence[str]) -> dict[str, StorageError]:
        names = {self._full(key): key for key in keys}
        body = delete_body(list(names))
        subject = self._subject("delete", None)
        call = Call(
            method="POST",
            key=None,
            subject=subject,
            query=[("delete", "")],
            # The one checksum that every store takes, and some demand.
            headers={"content-md5": _content_md5(body), "content-type": "application/xml"},
            body=body,
        )
        return await self._client.call(call, lambda answer: read_delete(answer, subject, names))

    async def _delete_alone(self, keys: Sequence[str]) -> dict[str, StorageError]:
        errors: dict[str, StorageError] = {}
        limiter = anyio.CapacityLimiter(_SINGLE_DELETES)

        async def delete(key: str) -> None:
            call = Call(
                method="DELETE",
                key=self._full(key),
                subject=self._subject("delete", key),
                success=frozenset({200, 204, 404}),
            )

            def accept(answer: Answer) -> None:
                if answer.status == 404:
                    diagnosis = diagnose(answer, call.subject)
                    if diagnosis.body.code == "NoSuchBucket":
                        raise diagnosis.error()

            async with limiter:
                try:
                    await self._client.call(call, accept)
                except StorageError as exc:
                    errors[key] = exc

        async with anyio.create_task_group() as group:
            for key in keys:
                group.start_soon(delete, key)
        return errors

    def _full(self, key: str) -> str:
        check_key(key)
        full = self._root + key
        check_key(full)
        return full

    def _subject(
        self, operation: str, key: str | None, *, write: bool = False, conditional: bool = False
    ) -> Subject:
        return Subject(operation, self._config.bucket, key, write, conditional)

    def __repr__(self) -> str:
        return f"<S3Store {self.url}>"

    def __reduce__(self) -> tuple[type[S3Store], tuple[S3Config]]:
        credentials, transport, clock, rng = self._components
        if not (credentials is None and transport is None and rng is None and clock is SYSTEM_CLOCK):
            raise TypeError(
                "an S3Store with components of its own cannot be pickled; only one made from settings can"
            )
        return S3Store, (self._config,)


class _Listing(AsyncIterator[ListPage]):
    """The pages of one listing. Not a generator, so that it may be dropped half-read on any event loop."""

    def __init__(self, client: S3Client, subject: Subject, root: str, prefix: str) -> None:
        self._client = client
        self._subject = subject
        self._root = root
        self._prefix = root + prefix
        self._token: str | None = None
        self._seen: set[str] = set()
        self._ended = False

    async def __anext__(self) -> ListPage:
        if self._ended:
            raise StopAsyncIteration
        query = [("list-type", "2"), ("encoding-type", "url"), ("prefix", self._prefix)]
        if self._token is not None:
            query.append(("continuation-token", self._token))
        call = Call(method="GET", key=None, subject=self._subject, query=query)
        listing, now_ms = await self._client.call(call, self._accept)
        self._token = listing.token
        self._ended = listing.token is None
        if listing.token is not None:
            if listing.token in self._seen:
                raise StorageError(f"{self._subject}: the store gave the same continuation token twice")
            self._seen.add(listing.token)
        objects = tuple(
            ObjectMeta(item.key.removeprefix(self._root), item.size_bytes, item.last_modified_ms)
            for item in listing.objects
        )
        return ListPage(objects, now_ms)

    def _accept(self, answer: Answer) -> tuple[Listing, int | None]:
        listing = read_listing(answer, self._subject)
        for item in listing.objects:
            if not item.key.startswith(self._prefix):
                raise StorageError(
                    f"{self._subject}: asked for keys with {self._prefix!r}, but got {item.key!r}"
                )
        return listing, server_time_ms(answer.headers.get("date"))


def _header_value(etag: str) -> str:
    if not etag or not all(" " <= character <= "\xff" and character != "\x7f" for character in etag):
        raise InvalidInputError(f"an ETag must be the printable text that the store gave, but is {etag!r}")
    return etag


def _content_md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
