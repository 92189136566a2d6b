"""What a check is, how it is run, and the words the checks are written in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import anyio

from buffer.errors import Error
from buffer.store.base import ObjectMeta, ObjectStore

__all__ = [
    "Check",
    "ConformanceError",
    "Profile",
    "StoreFactory",
    "Subject",
    "check",
    "expect",
    "listed",
    "refused",
]

MIB = 1024 * 1024
E = TypeVar("E", bound=Error)

StoreFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[ObjectStore]]
"""Gives a handle on the store under test. All of its handles see the same objects."""


class ConformanceError(AssertionError):
    """The store did something else than the protocol says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a store says about itself, and how hard it is to be tried."""

    etag_is_content_hash: bool = False
    """Whether equal bytes have equal ETags. Such a store is safe for manifests, whose bytes never repeat; the
    checks that write equal bytes twice do not apply to it."""

    merged_names: frozenset[str] = frozenset()
    """Odd names that the server is known to keep under another name, whoever asks; they are left out."""

    writers: int = 32
    """Number of tasks that race for one object."""

    increments: int = 20
    """Number of times that each of them adds one to a counter."""

    listed_keys: int = 2501
    """Number of objects in the long listing: more than two of the store's pages."""

    large_body_bytes: int = 8 * MIB
    """Size of the large object."""

    time_limit: float = 300.0
    """Seconds after which a check is given up."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a check works on.

    Attributes:
        store: A handle on the store.
        other: Another handle on the same store, as a second client would have it.
        prefix: Prefix of the check's own keys, without a slash at its end.
        profile: What the store says about itself.
    """

    store: ObjectStore
    other: ObjectStore
    prefix: str
    profile: Profile

    def odd_names(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that the server keeps apart."""
        return [name for name in names if name not in self.profile.merged_names]

    def key(self, name: str) -> str:
        """Return the key of this name among the check's own."""
        return f"{self.prefix}/{name}"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a store must do. Calling it tries whether the store does.

    Attributes:
        name: Short name, unique in the suite.
        claim: What holds if the check passes, in one line.
        slow: Whether it makes hundreds of requests.
        repeats_bytes: Whether it asks for new ETags for equal bytes.
        body: The check itself.
    """

    name: str
    claim: str
    slow: bool
    repeats_bytes: bool
    body: Callable[[Subject], Awaitable[None]]

    def __str__(self) -> str:
        return self.name

    def applies(self, profile: Profile) -> bool:
        """Tell whether a store with this profile has to pass."""
        return not (self.repeats_bytes and profile.etag_is_content_hash)

    async def __call__(self, factory: StoreFactory, prefix: str, profile: Profile | None = None) -> None:
        """Run the check on two handles of the store; objects are written below `<prefix>/<name>/` only.

        If it passes, the objects are deleted again; if it fails, they stay to be looked at. Cancellation
        leaves them too.

        Raises:
            ConformanceError: The store did something else, or took too long.
            Error: The store failed where it must not.
        """
        profile = profile or Profile()
        async with factory() as store, factory() as other:
            subject = Subject(store, other, f"{prefix}/{self.name}", profile)
            with anyio.move_on_after(profile.time_limit) as limit:
                await self.body(subject)
                failed = await store.delete(list(await listed(store, subject.key(""))))
                expect(not failed, f"deleting the check's objects failed: {dict(failed)!r}")
            expect(not limit.cancelled_caught, f"{self.name} took more than {profile.time_limit:g} s")


def check(
    *, slow: bool = False, repeats_bytes: bool = False
) -> Callable[[Callable[[Subject], Awaitable[None]]], Check]:
    """Make a check of a function: its name becomes the name, the first line of its docstring the claim."""

    def make(body: Callable[[Subject], Awaitable[None]]) -> Check:
        name = getattr(body, "__name__", "")
        claim = (body.__doc__ or "").partition("\n")[0]
        return Check(name, claim, slow, repeats_bytes, body)

    return make


def expect(fact: object, otherwise: str) -> None:
    """Fail with this sentence unless the fact is true. Not an `assert`, which `python -O` takes away."""
    if not fact:
        raise ConformanceError(otherwise)


async def refused(error: type[E], call: Awaitable[object], what: str) -> E:
    """Return the error that the call must raise."""
    try:
        result = await call
    except error as exc:
        return exc
    except Error as exc:
        raise ConformanceError(f"{what} must raise {error.__name__}, but raised {exc!r}") from exc
    raise ConformanceError(f"{what} must raise {error.__name__}, but returned {result!r:.200}")


async def listed(store: ObjectStore, prefix: str) -> dict[str, ObjectMeta]:
    """Return everything that the store lists under a prefix; nothing may come twice or have another prefix."""
    found: dict[str, ObjectMeta] = {}
    # All pages first: a store that lists with a generator should not have it dropped half-way by a failure.
    for page in [page async for page in store.list(prefix)]:
        for meta in page.objects:
            expect(meta.key not in found, f"list({prefix!r}) gave {meta.key!r} twice")
            expect(meta.key.startswith(prefix), f"list({prefix!r}) gave {meta.key!r}")
            found[meta.key] = meta
    return found
