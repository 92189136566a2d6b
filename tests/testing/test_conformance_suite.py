"""The suite finds stores that break the protocol, and passes the test stores when they are told nothing."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext

import pytest
from anyio.lowlevel import checkpoint

from buffer.errors import AccessDeniedError, Error, NotFoundError, PreconditionError, StorageError
from buffer.store import (
    OVERWRITE,
    ByteRange,
    Create,
    GetResult,
    ListPage,
    Match,
    MemoryStore,
    ObjectStore,
    PutMode,
    Suffix,
)
from buffer.store.forwarding import ForwardingStore
from buffer.store.rules import part_bounds
from buffer.testing import (
    CHECKS,
    Check,
    ConformanceError,
    Fault,
    FaultStore,
    GatedStore,
    ListShape,
    MissingAs,
    Profile,
    conflict,
    lost_answer,
    lost_request,
    unavailable,
)

SMALL = Profile(writers=8, increments=4, listed_keys=120, large_body_bytes=100_000, time_limit=20)


async def failing_checks(store: ObjectStore, profile: Profile = SMALL) -> set[str]:
    failed = set()
    for number, check in enumerate(CHECKS):
        if check.applies(profile):
            try:
                await check(lambda: nullcontext(store), f"run{number}", profile)
            except (ConformanceError, Error):
                failed.add(check.name)
    return failed


@pytest.mark.parametrize(
    "make",
    [FaultStore, lambda inner: GatedStore(inner, before=lambda _: False)],
    ids=["FaultStore", "GatedStore"],
)
@pytest.mark.slow
async def test_test_stores_pass_when_they_are_told_nothing(
    make: Callable[[ObjectStore], ObjectStore],
) -> None:
    """A test store without faults and gates is a store like any other."""
    assert await failing_checks(make(MemoryStore(page_size=50)), Profile()) == set()


def test_every_check_has_its_name_and_claim() -> None:
    """Names are unique, and claims are one sentence each, for reports."""
    assert len({check.name for check in CHECKS}) == len(CHECKS) > 20
    for check in CHECKS:
        assert check.claim.endswith(".") and "\n" not in check.claim
        assert str(check) == check.name


@pytest.mark.slow
async def test_a_passing_check_leaves_nothing_behind() -> None:
    """Checks delete what they wrote, so that they can run against a bucket that is in use."""
    store = MemoryStore()
    await store.put("theirs", b"x")
    assert await failing_checks(store) == set()
    assert [meta.key async for page in store.list("") for meta in page.objects] == ["theirs"]


class Altered(ForwardingStore):
    """A memory store that does one thing in another way; subclasses say which."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())


class IgnoresConditions(Altered):
    """Overwrites always."""

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        return await super().put(key, body)


class IgnoresMatch(Altered):
    """Knows only one of the two conditions."""

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        return await super().put(key, body, OVERWRITE if isinstance(mode, Match) else mode)


class DecidesTooEarly(Altered):
    """Checks the condition in one step and writes in another."""

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        try:
            etag = (await self.get(key)).etag
        except NotFoundError:
            etag = None
        if (isinstance(mode, Create) and etag) or (isinstance(mode, Match) and mode.etag != etag):
            raise PreconditionError("lost")
        await checkpoint()
        return await super().put(key, body)


class CreatesOnMatch(Altered):
    """Takes a match on a missing key for a create."""

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        try:
            await self.get(key)
        except NotFoundError:
            return await super().put(key, body)
        return await super().put(key, body, mode)


class HashesContent(Altered):
    """Has the hash of the bytes for an ETag, as S3 does."""

    def tag(self, body: bytes) -> str:
        return hashlib.md5(body, usedforsecurity=False).hexdigest()

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        whole = await self._inner.get(key)
        tag = self.tag(whole.body)
        if tag == if_none_match:
            return None
        start, end = part_bounds(key, part, whole.size_bytes)
        return GetResult(whole.body[start:end], tag, whole.size_bytes)

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        if isinstance(mode, Match):
            try:
                there = await self._inner.get(key)
            except NotFoundError:
                raise PreconditionError("missing") from None
            if self.tag(there.body) != mode.etag:
                raise PreconditionError("other")
            mode = Match(there.etag)
        await super().put(key, body, mode)
        return self.tag(body)


class MixesVersions(Altered):
    """Answers with the body of one moment and the ETag of another."""

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        first = await super()._get(key, part, if_none_match)
        second = await self._inner.get(key, part=part)
        return first and GetResult(first.body, second.etag, second.size_bytes)


class TransfersAlways(Altered):
    """Does not know conditional reads."""

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        return await super()._get(key, part, None)


class IgnoresParts(Altered):
    """Answers with whole objects."""

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        return await super()._get(key, None, if_none_match)


class TakesPrefixesForFolders(Altered):
    """Lists what lies in a folder."""

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        return super().list(prefix.rstrip("/") + "/")


class DecodesKeys(Altered):
    """Takes `+` in a key for a blank."""

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        return await super().put(key.replace("+", " "), body, mode)

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        return await super()._get(key.replace("+", " "), part, if_none_match)


class DeletesNothing(Altered):
    """Says that everything was deleted."""

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        return {}


class MissesOnDelete(Altered):
    """Has an error for keys that are not there."""

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        there = {meta.key async for page in self.list("") for meta in page.objects}
        await super().delete(keys)
        return {key: NotFoundError("not there") for key in keys if key not in there}


def lists_in_this_shape(shape: ListShape) -> ObjectStore:
    store = FaultStore(MemoryStore())
    store.inject("list", shape, times=None)
    return store


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "found_by"),
    [
        (IgnoresConditions, {"create", "match_etag", "race_to_create", "race_to_match", "counting_together"}),
        (IgnoresMatch, {"match_etag", "match_on_missing", "race_to_match", "counting_together"}),
        (DecidesTooEarly, {"race_to_create", "race_to_match", "counting_together"}),
        (CreatesOnMatch, {"match_on_missing"}),
        (HashesContent, {"equal_bytes", "old_bytes_again"}),
        (MixesVersions, {"no_torn_read"}),
        (TransfersAlways, {"conditional_get"}),
        (IgnoresParts, {"byte_ranges", "suffixes", "large_body"}),
        (lambda: lists_in_this_shape(ListShape(page_size=50, pages=2)), {"many_pages"}),
        (lambda: lists_in_this_shape(ListShape(repeat=True)), {"prefix_is_a_string", "many_pages"}),
        (TakesPrefixesForFolders, {"prefix_is_a_string"}),
        (DecodesKeys, {"odd_keys"}),
        (DeletesNothing, {"create", "match_on_missing", "only_the_named", "many_deleted"}),
        (MissesOnDelete, {"absent_is_deleted"}),
    ],
)
async def test_broken_stores_are_found(make: Callable[[], ObjectStore], found_by: set[str]) -> None:
    """A store that breaks one rule fails the checks of that rule."""
    failed = await failing_checks(make())
    assert failed >= found_by


@pytest.mark.slow
async def test_a_store_that_declares_content_hashes_passes() -> None:
    """ETags made of the content break no rule but those about equal bytes, which then do not apply."""
    profile = Profile(writers=8, increments=4, listed_keys=120, etag_is_content_hash=True)
    skipped = {check.name for check in CHECKS if not check.applies(profile)}
    assert skipped == {"equal_bytes", "old_bytes_again"}
    assert await failing_checks(HashesContent(), profile) == set()


async def test_a_store_that_loses_answers_passes_the_races() -> None:
    """Overload, undecided conflicts and lost answers keep the protocol: they cost tries, and no check its result."""
    store = FaultStore(MemoryStore())
    faults: tuple[Fault, ...] = (lost_answer(), lost_request(), unavailable(), conflict())
    injections = [
        # The first writer of each race; the counter's first write is its creation.
        *(store.inject("put", fault, key=f"run/race_to_create/{n}") for n, fault in enumerate(faults[:3])),
        *(
            store.inject("put", fault, key="run/race_to_match/object", skip=1 + n * SMALL.writers)
            for n, fault in enumerate(faults[:3])
        ),
        *(
            store.inject("put", fault, key="run/counting_together/counter", skip=1 + n, times=5)
            for n, fault in enumerate(faults)
        ),
    ]
    for check in CHECKS:
        if check.name in {"race_to_create", "race_to_match", "counting_together"}:
            await check(lambda: nullcontext(store), "run", SMALL)
    assert all(injection.hits for injection in injections)


async def test_other_errors_than_the_expected_are_failures() -> None:
    """A store that refuses with another error than the protocol's fails the check, with both in its words."""
    store = FaultStore(MemoryStore())
    store.inject("get", MissingAs(AccessDeniedError("no permission to list")), times=None)
    with pytest.raises(ConformanceError, match="must raise NotFoundError, but raised AccessDeniedError"):
        await CHECKS[0](lambda: nullcontext(store), "scratch")


async def test_a_store_that_never_answers_is_given_up() -> None:
    """A check ends after its time limit, as a failure that says so."""
    store = GatedStore(MemoryStore())
    check: Check = CHECKS[0]
    with pytest.raises(ConformanceError, match=rf"{check.name} took more than 0\.01 s"):
        await check(lambda: nullcontext(store), "scratch", Profile(time_limit=0.01))
