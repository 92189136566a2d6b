"""From a URL to an open store.

To add a scheme, write an opener and register it in `_OPENERS`; its options go into a class beside `FileOptions`
and among the bases of `StoreOptions`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, Unpack, cast
from urllib.parse import SplitResult, quote, urlsplit

import anyio

from buffer.clock import Clock
from buffer.errors import InvalidInputError
from buffer.store.base import ObjectStore
from buffer.store.file import FileStore
from buffer.store.memory import MemoryStore
from buffer.store.options import decode_path, parse_bool, parse_seconds, read_options
from buffer.suggestion import did_you_mean

if TYPE_CHECKING:
    import random

    from buffer.store.s3.credentials import CredentialProvider
    from buffer.store.s3.transport import HttpTransport

__all__ = ["FileOptions", "MemoryOptions", "S3Options", "StoreOptions", "open_store"]

# Options that the query of a URL may have, each with what makes a value of its text.
FILE_QUERY: Final[Mapping[str, Callable[[str], object]]] = {
    "fsync": parse_bool,
    "lock_timeout": parse_seconds,
}
S3_QUERY: Final[Mapping[str, Callable[[str], object]]] = dict.fromkeys(
    ("region", "endpoint", "addressing", "profile", "ca_bundle"), str
)

_CLOSE_SECONDS: Final = 5.0

# What plain paths of folders begin with; "" stands for the root.
_BEFORE_SLASH: Final = frozenset({"", ".", "..", "~"})
# As Spark and Hadoop show paths of local files; with an @ there may be a secret in it.
_HADOOP_FILE: Final = re.compile("file:/(?!/)[^@]*$", re.IGNORECASE)
_HADOOP_S3: Final = frozenset({"s3a", "s3n"})


class MemoryOptions(TypedDict, total=False):
    """Options of `memory://`: the arguments of `MemoryStore`."""

    clock: Clock
    page_size: int


class FileOptions(TypedDict, total=False):
    """Options of `file://`: the arguments of `FileStore`."""

    fsync: bool
    lock_timeout: float
    page_size: int
    clock: Clock


class S3Options(TypedDict, total=False):
    """Options of `s3://`: the settings of `S3Config`, and the components of `S3Store`."""

    region: str
    endpoint: str
    addressing: Literal["auto", "path", "virtual"]
    access_key_id: str
    secret_access_key: str
    session_token: str
    profile: str
    ca_bundle: str
    max_connections: int
    reserved_connections: int
    connect_timeout: float
    request_timeout: float
    slowest_transfer: int
    call_timeout: float
    idle_timeout: float
    max_attempts: int
    retry_base: float
    throttle_base: float
    retry_cap: float
    max_object_bytes: int
    credentials: CredentialProvider
    transport: HttpTransport
    rng: random.Random
    clock: Clock


class StoreOptions(FileOptions, MemoryOptions, S3Options, total=False):
    """All options; each scheme takes its own and refuses the others."""


Opener: TypeAlias = Callable[[SplitResult, StoreOptions], AbstractAsyncContextManager[ObjectStore]]


def open_store(url: str, **options: Unpack[StoreOptions]) -> AbstractAsyncContextManager[ObjectStore]:
    """Open the store of a URL for the time of an `async with` block, and close it at its end.

    * `memory://` is a new store each time. `memory://name` is shared: everybody in the process who opens the
      name while it is open gets the same store, which is forgotten when the last of them has left.
    * `file:///absolute/path` is a folder; characters other than letters, digits and `/-._~` may be percent
      escaped. Its query takes `fsync=false` and `lock_timeout=<seconds>`.
    * `s3://bucket/optional/prefix` is a bucket of S3 or of what speaks like it. Its query takes `region`, `endpoint`,
      `addressing`, `profile` and `ca_bundle`; what is in neither query nor options comes from the `AWS_...`
      variables of the environment. Secrets are no part of a URL.

    Closing is not cut off by cancellation, but takes 5 seconds at most.

    Args:
        url: Where the store is.
        options: What the store's class takes as keyword arguments; none for a shared memory store.

    Raises:
        InvalidInputError: The URL has another form, or an option is unknown. It says what is right.
    """
    if not isinstance(url, str):
        raise InvalidInputError(f"a store's URL must be text, but is of the type {type(url).__name__}")
    scheme = url.partition("://")[0].lower()
    if "://" not in url or scheme not in _OPENERS:
        raise InvalidInputError(_unsupported(url))
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise InvalidInputError(f"the {scheme} URL cannot be read: {exc}") from exc
    return _OPENERS[scheme](parts, options)


def _unsupported(url: str) -> str:
    supported = [f"{name}://" for name in sorted(_OPENERS)]
    rule = f"a store's URL must begin with one of {', '.join(supported)}"
    # A folder is quoted. Of anything else only the scheme is: the rest may hold a secret.
    if url and url.partition("/")[0] in _BEFORE_SLASH and not url.startswith("//"):
        try:
            folder = quote(os.path.abspath(os.path.expanduser(url)), errors="replace")
        except OSError:  # the working folder is gone
            folder = "/absolute/path"
        return f"{rule}, but the one given is a plain path: write file://{folder}"
    if _HADOOP_FILE.match(url):
        return f"{rule}, but the one given has no '//' behind 'file:': write file://{url.partition(':')[2]}"
    if "://" not in url:
        return f"{rule}, but the one given has no scheme; a folder is file:///absolute/path"
    scheme = url.partition("://")[0].lower()
    given = f"{rule}, but the one given begins with {scheme + '://'!r}"
    if scheme in _HADOOP_S3:
        return f"{given}, Hadoop's name for S3: write s3://"
    return f"{given}{did_you_mean(scheme, _OPENERS)}"


def _open_memory(url: SplitResult, options: StoreOptions) -> AbstractAsyncContextManager[ObjectStore]:
    if url.path not in {"", "/"} or "@" in url.netloc or ":" in url.netloc:
        raise InvalidInputError("a memory URL must be memory:// or memory://name, but has more than a name")
    shared = bool(url.netloc)
    keywords = () if shared else MemoryOptions.__annotations__
    settings = cast("MemoryOptions", read_options(url, options, query={}, keywords=keywords))
    return _open_shared(url.netloc) if shared else _closing(MemoryStore(**settings))


def _open_file(url: SplitResult, options: StoreOptions) -> AbstractAsyncContextManager[ObjectStore]:
    path = decode_path(url)
    if url.netloc or not path.startswith("/"):
        problem = "has a host, or is relative" if url.netloc else "has no path"
        raise InvalidInputError(
            f"a file URL must be file:///absolute/path, with three slashes, but it {problem}"
        )
    if not {".", ".."}.isdisjoint(path.split("/")):
        raise InvalidInputError("the path of a file URL must not have '.' or '..' between slashes")
    settings = read_options(url, options, query=FILE_QUERY, keywords=FileOptions.__annotations__)
    return _closing(FileStore(path, **cast("FileOptions", settings)))


def _open_s3(url: SplitResult, options: StoreOptions) -> AbstractAsyncContextManager[ObjectStore]:
    # The HTTP client takes its time to load, which users of other stores need not spend.
    from buffer.store.s3 import S3Config, S3Store  # noqa: PLC0415

    given = read_options(url, options, query=S3_QUERY, keywords=S3Options.__annotations__)
    components = {
        name: given.pop(name) for name in ("credentials", "transport", "rng", "clock") if name in given
    }
    config = S3Config.from_url(url._replace(query="").geturl(), os.environ, **given)
    return _closing(S3Store(config, **cast("Any", components)))


@asynccontextmanager
async def _closing(store: ObjectStore) -> AsyncIterator[ObjectStore]:
    try:
        yield store
    finally:
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await store.aclose()


@asynccontextmanager
async def _open_shared(name: str) -> AsyncIterator[ObjectStore]:
    # Not closed by whoever leaves first: the others go on.
    with _shared.use(name) as store:
        yield store


class _SharedStores:
    """Memory stores by name, each from the first use to the end of the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[str, MemoryStore] = {}
        self._users: dict[str, int] = {}

    @contextmanager
    def use(self, name: str) -> Iterator[MemoryStore]:
        with self._lock:
            store = self._stores.setdefault(name, MemoryStore())
            self._users[name] = self._users.get(name, 0) + 1
        try:
            yield store
        finally:
            with self._lock:
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name], self._stores[name]


_shared: Final = _SharedStores()

_OPENERS: Final[dict[str, Opener]] = {"file": _open_file, "memory": _open_memory, "s3": _open_s3}
