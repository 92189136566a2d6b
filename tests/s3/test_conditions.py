"""Conditional writes: every answer means exactly one of done, refused, lost and unknown."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from buffer.errors import (
    AccessDeniedError,
    InvalidInputError,
    NotFoundError,
    PreconditionError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.store.base import CREATE, OVERWRITE, Match, PutMode
from buffer.testing.fault_server import FaultServer, Reply, play
from tests.s3.scripted import ETAG, Bucket, has_received, s3_error, serving, store_at

CONDITIONS: list[PutMode] = [CREATE, Match('"e0"')]


@pytest.mark.parametrize("mode", CONDITIONS, ids=["create", "match"])
@pytest.mark.parametrize(
    "answer",
    [
        s3_error(412, "PreconditionFailed"),
        s3_error(409, "ConditionalRequestConflict"),
        s3_error(409, "OperationAborted"),
    ],
    ids=["412", "409", "409 aborted"],
)
async def test_a_lost_race_is_a_precondition_error(mode: PutMode, answer: Reply) -> None:
    """412, and 409 for a competing request, say that nothing was written; the request is not repeated."""
    async with serving(play([answer])) as (store, server):
        with pytest.raises(PreconditionError) as caught:
            await store.put("m", b"x", mode)
    assert caught.value.transient and caught.value.path == "m" and caught.value.request_id == "R1"
    assert [request.method for request in server.received if request.method == "PUT"] == ["PUT"]


@pytest.mark.parametrize("mode", CONDITIONS, ids=["create", "match"])
async def test_another_409_is_permanent(mode: PutMode) -> None:
    """A 409 with a code of no race is neither lost nor transient."""
    async with serving(play([s3_error(409, "BucketNotEmpty")])) as (store, _):
        with pytest.raises(StorageError) as caught:
            await store.put("m", b"x", mode)
    assert type(caught.value) is StorageError and not caught.value.transient


async def test_a_match_on_a_missing_object_is_lost() -> None:
    """404 for the key is the same as 412; 404 for the bucket is not."""
    async with serving(play([s3_error(404, "NoSuchKey"), s3_error(404, "NoSuchBucket")])) as (store, _):
        with pytest.raises(PreconditionError):
            await store.put("m", b"x", Match('"e0"'))
        with pytest.raises(StorageError, match="NoSuchBucket") as caught:
            await store.put("m", b"x", Match('"e0"'))
    assert type(caught.value) is StorageError


@pytest.mark.parametrize("mode", CONDITIONS, ids=["create", "match"])
@pytest.mark.parametrize(
    "answer",
    [
        s3_error(500, "InternalError"),
        s3_error(503, "SlowDown"),
        Reply(status=502, body=b"<html>Bad Gateway</html>"),
        Reply(status=504),
        Reply(status=408),
        Reply(silent=True, end="reset"),
        Reply(silent=True, end="close"),
        Reply(headers=ETAG, body=b"1234567890", cut=5),
    ],
    ids=["500", "503", "502", "504", "408", "reset", "closed", "cut"],
)
async def test_without_a_clear_answer_the_outcome_is_unknown(mode: PutMode, answer: Reply) -> None:
    """A 5xx, a reset and a cut answer may hide an applied write; exactly one request was sent."""
    async with serving(play([answer])) as (store, server):
        with pytest.raises(UnknownOutcomeError) as caught:
            await store.put("m", b"x", mode)
        assert caught.value.transient
        assert len(server.received) == 1


async def test_no_answer_in_time_is_unknown() -> None:
    """A write whose answer takes longer than the request may is unknown, and the connection is gone."""
    async with serving(play([Reply(silent=True, end="hang")]), request_timeout=0.05) as (store, _):
        with pytest.raises(UnknownOutcomeError, match=r"within 0\.05"):
            await store.put("m", b"x", CREATE)
        assert store.statistics() == type(store.statistics())(in_use=0, idle=0)


async def test_what_was_not_sent_was_not_written() -> None:
    """A refused connection is an ordinary transient error: nothing can have been applied."""
    async with FaultServer(play([Reply()])) as server:
        url = server.url

    async with store_at(url) as store:
        with pytest.raises(StorageError) as caught:
            await store.put("m", b"x", CREATE)
    assert type(caught.value) is StorageError and caught.value.transient


async def test_a_cancelled_write_gives_its_connection_back() -> None:
    """A deadline of the caller ends the request at once; the next one works."""
    script = play([Reply(silent=True, end="hang"), Reply(headers=ETAG)])
    async with serving(script) as (store, server):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, "m", b"x", CREATE)
            await has_received(server, 1)
            tasks.cancel_scope.cancel()
        assert store.statistics().in_use == 0
        assert await store.put("m", b"x", CREATE) == '"e0"'


async def test_an_applied_write_with_a_lost_answer_is_told_from_a_lost_race() -> None:
    """The store says unknown, not conflict, and repeats nothing: the next identical write would see 412."""
    bucket = Bucket()
    bucket.after = [s3_error(500, "InternalError")]
    async with serving(bucket) as (store, _):
        with pytest.raises(UnknownOutcomeError):
            await store.put("m", b"one", CREATE)
        with pytest.raises(PreconditionError):
            await store.put("m", b"one", CREATE)
        assert bucket.puts == 2
        assert (await store.get("m")).body == b"one"


async def test_an_overwrite_stays_unknown_once_an_attempt_was() -> None:
    """After a lost answer, a definite refusal of the retry does not prove that nothing was written."""
    bucket = Bucket()
    bucket.after = [Reply(silent=True, end="reset")]
    async with serving(bucket) as (store, _):
        bucket.before = []
        original = bucket._put

        def put_then_refuse(key: str, request: Any) -> Reply:
            return original(key, request) if not bucket.puts else s3_error(403, "AccessDenied")

        bucket._put = put_then_refuse  # type: ignore[method-assign]
        with pytest.raises(UnknownOutcomeError, match="AccessDenied") as caught:
            await store.put("b", b"x", OVERWRITE)
    assert caught.value.status == 403
    assert bucket.objects == {"b": b"x"}


async def test_an_overwrite_is_repeated_until_it_succeeds() -> None:
    """An unconditional write survives lost answers and 5xx by itself."""
    bucket = Bucket()
    bucket.before = [
        s3_error(500, "InternalError"),
        Reply(silent=True, end="reset"),
        s3_error(503, "SlowDown"),
    ]
    async with serving(bucket) as (store, _):
        assert await store.put("b", b"x") == bucket.etag(b"x")
    assert bucket.puts == 4


@pytest.mark.parametrize("retry_after", [None, "1", "0.5", "soon", "-3"])
async def test_throttling_is_told_with_the_wait_it_asks_for(retry_after: str | None) -> None:
    """429 on a conditional write is a refusal to try again later, with the store's own number if it has one."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    async with serving(play([Reply(status=429, headers=headers)])) as (store, server):
        with pytest.raises(StorageError) as caught:
            await store.put("m", b"x", CREATE)
        assert len(server.received) == 1
    assert type(caught.value) is StorageError and caught.value.transient
    assert caught.value.retry_after == {"1": 1.0, "0.5": 0.5}.get(retry_after or "")


@pytest.mark.parametrize("etag", ['"abc"', "abc", '"9b2cf5-3"', '"d8e8fca2dc0f-gzip"', f'"{"0" * 32}"'])
@pytest.mark.parametrize("header", ["ETag", "etag"])
async def test_an_etag_is_echoed_as_it_came(etag: str, header: str) -> None:
    """What the store sent goes back byte for byte: no quote added, none taken, no guess at its meaning."""
    async with serving(play([Reply(headers={header: etag}, body=b"m")])) as (store, server):
        found = await store.get("m")
        assert found.etag == etag
        await store.put("m", b"n", Match(found.etag))
        assert await store.get("m", if_none_match=found.etag) is not None
    assert server.received[1].headers["if-match"] == etag
    assert server.received[2].headers["if-none-match"] == etag


@pytest.mark.parametrize("headers", [{"etag": 'W/"abc"'}, {"etag": ""}, {"etag": '""'}, {}])
async def test_without_a_strong_etag_there_is_an_error(headers: dict[str, str]) -> None:
    """A weak, empty or missing ETag is an error that says so; a write with it may have been applied."""
    async with serving(play([Reply(headers=headers, body=b"m")])) as (store, _):
        with pytest.raises(StorageError, match="strong ETag"):
            await store.get("m")
        with pytest.raises(UnknownOutcomeError, match="strong ETag"):
            await store.put("m", b"n", CREATE)


async def test_a_read_without_an_etag_is_repeated_one_with_a_weak_etag_is_not() -> None:
    """A server that has just been restarted may do better in a moment; whoever makes ETags weak will not."""
    async with serving(play([Reply(body=b"m"), Reply(headers={"etag": '"e"'}, body=b"m")])) as (store, _):
        assert (await store.get("m")).etag == '"e"'
    async with serving(play([Reply(headers={"etag": 'W/"e"'}, body=b"m")])) as (store, server):
        with pytest.raises(StorageError) as caught:
            await store.get("m")
        assert len(server.received) == 1 and not caught.value.transient


@pytest.mark.parametrize("headers", [{"etag": 'W/"abc"'}, {}])
async def test_an_overwrite_without_a_strong_etag_is_not_repeated(headers: dict[str, str]) -> None:
    """It is done, and will never be answered better: a permanent error that nobody takes for an unknown outcome."""
    async with serving(play([Reply(headers=headers)])) as (store, server):
        with pytest.raises(StorageError, match=r"the store took the object, but.*strong ETag") as caught:
            await store.put("b", b"x", OVERWRITE)
        assert len(server.received) == 1
    assert type(caught.value) is StorageError and not caught.value.transient


@pytest.mark.parametrize("etag", ['W/"abc"', "", '""', "a\r\nb", "é\u20ac"])
async def test_a_condition_that_cannot_hold_is_never_sent(etag: str) -> None:
    """An ETag that is weak, empty or no header text is refused; it never becomes an unconditional write."""
    async with serving(play([Reply(headers=ETAG)])) as (store, server):
        with pytest.raises(InvalidInputError):
            await store.put("m", b"x", Match(etag))
        assert server.received == []


async def test_a_store_that_wants_bare_etags_is_found_out() -> None:
    """If 412 comes for the exact ETag of what is there, the bare form is tried, and kept once it has worked."""
    bucket = Bucket(quoted_conditions=False)
    async with serving(bucket) as (store, server):
        first = await store.put("m", b"1", CREATE)
        second = await store.put("m", b"2", Match(first))
        third = await store.put("m", b"3", Match(second))
        with pytest.raises(PreconditionError):
            await store.put("m", b"4", Match(second))
    assert bucket.objects["m"] == b"3"
    sent = [(r.method, r.headers.get("if-match")) for r in server.received[1:]]
    bare = [etag.strip('"') for etag in (first, second, third)]
    assert sent == [("PUT", first), ("HEAD", None), ("PUT", bare[0]), ("PUT", bare[1]), ("PUT", bare[1])]


async def test_a_store_that_takes_quotes_never_sees_them_missing() -> None:
    """A genuine conflict before anything is settled costs one look and stays a conflict, in the quoted form."""
    bucket = Bucket()
    async with serving(bucket) as (store, server):
        first = await store.put("m", b"1", CREATE)
        bucket.objects["m"] = b"other"
        with pytest.raises(PreconditionError):
            await store.put("m", b"2", Match(first))
        await store.put("m", b"3", Match(bucket.etag(b"other")))
        with pytest.raises(PreconditionError):
            await store.put("m", b"4", Match(first))
    assert all(r.headers["if-match"].startswith('"') for r in server.received if "if-match" in r.headers)
    assert [r.method for r in server.received] == ["PUT", "PUT", "HEAD", "PUT", "PUT"]


async def test_403_is_not_404() -> None:
    """A missing permission is never taken for a missing manifest, and the message names the usual reason."""
    async with serving(play([s3_error(403, "AccessDenied"), Reply(status=403)])) as (store, _):
        for _ in range(2):
            with pytest.raises(AccessDeniedError, match="s3:ListBucket") as caught:
                await store.get("m")
            assert not isinstance(caught.value, NotFoundError)


async def test_only_a_404_for_the_key_says_that_it_is_missing() -> None:
    """NoSuchKey is not found; a missing bucket, and a 404 of somebody else, are errors."""
    answers = [
        s3_error(404, "NoSuchKey"),
        s3_error(404, "NoSuchBucket"),
        Reply(status=404),
        Reply(status=404, body=b"<html/>"),
    ]
    async with serving(play(answers)) as (store, _):
        with pytest.raises(NotFoundError):
            await store.get("m")
        for expected in ("NoSuchBucket", "nothing about the key", "nothing about the key"):
            with pytest.raises(StorageError, match=expected) as caught:
                await store.get("m")
            assert type(caught.value) is StorageError and not caught.value.transient
