"""Reads, listings and deletes on a network and a store that misbehave."""

from __future__ import annotations

import gzip

import anyio
import httpx
import pytest

from buffer.errors import AccessDeniedError, ClosedError, InvalidInputError, NotFoundError, StorageError
from buffer.store.base import CREATE, ByteRange, Suffix
from buffer.store.s3 import S3Config, S3Store
from buffer.testing.fault_server import FaultServer, Received, Reply, play
from tests.s3.scripted import ETAG, s3_error, serving, store_at

OK = Reply(headers=ETAG, body=b"whole body")


@pytest.mark.parametrize(
    "bad",
    [
        [s3_error(503, "SlowDown")] * 6,
        [s3_error(500, "InternalError")] * 2,
        [Reply(status=502, body=b"<html><body>Bad <b>Gateway</body>"), Reply(status=504, body=b"\x00\xff<")],
        [s3_error(400, "RequestTimeout"), Reply(status=408), Reply(status=503), Reply(status=429)],
        [Reply(status=500, framing="chunked", body=b"<Error><Code>InternalError</Code></Error>")],
        [s3_error(400, "BadDigest"), s3_error(400, "XAmzContentSHA256Mismatch")],
        [Reply(silent=True, end="close"), Reply(silent=True, end="reset")],
        [Reply(headers=ETAG, body=b"whole body", cut=5)],
        [Reply(headers=ETAG, body=b"whole body", cut=7, framing="chunked")],
        [Reply(headers=ETAG, body=b"whole", framing="close", end="close")],
        [Reply(status=206, headers=ETAG, body=b"whole")],
        [Reply(status=206, headers=ETAG | {"content-range": "bytes 0-4/10"}, body=b"whole")],
    ],
    ids=[
        "slow down",
        "internal error",
        "proxy pages",
        "timeouts and 429",
        "chunked error",
        "digests",
        "no answer",
        "cut body",
        "cut chunks",
        "no length",
        "206 unasked",
        "206 part unasked",
    ],
)
async def test_a_read_gets_through_what_passes(bad: list[Reply]) -> None:
    """Transient failures of every kind are tried again until the whole object is there."""
    async with serving(play([*bad, OK])) as (store, server):
        assert (await store.get("b")).body == b"whole body"
        assert len(server.received) == len(bad) + 1


async def test_every_attempt_is_signed_anew() -> None:
    """A retry carries the time of its own attempt, not that of the first."""

    class Ticking:
        now = 1_700_000_000_000

        def now_ms(self) -> int:
            self.now += 16 * 60 * 1000
            return self.now

    async with serving(play([s3_error(500, "InternalError"), OK]), components={"clock": Ticking()}) as (
        store,
        server,
    ):
        await store.get("b")
    first, second = (request.headers for request in server.received)
    assert first["x-amz-date"] != second["x-amz-date"]
    assert first["authorization"] != second["authorization"]


async def test_attempts_are_limited() -> None:
    """A store that never recovers costs `max_attempts` requests, and the last error comes out with its facts."""
    async with serving(
        play([s3_error(503, "SlowDown", headers={"retry-after": "0.001"})]), max_attempts=3
    ) as (store, server):
        with pytest.raises(StorageError) as caught:
            await store.get("b")
        assert len(server.received) == 3
    error = caught.value
    assert (error.path, error.status, error.code, error.request_id) == ("b", 503, "SlowDown", "R1")
    assert error.transient and error.retry_after == 0.001 and "bucket bucket" in str(error)


async def test_retries_end_with_the_call() -> None:
    """No retry begins that would start after the call's time, however long the store asks to wait."""
    async with serving(play([Reply(status=503, headers={"retry-after": "60"})]), call_timeout=5.0) as (
        store,
        server,
    ):
        with anyio.fail_after(4), pytest.raises(StorageError):
            await store.get("b")
        assert len(server.received) == 1


@pytest.mark.slow
async def test_retries_stop_when_everything_fails() -> None:
    """The budget of retries is shared: a store in trouble is not hit with all retries of all requests."""
    async with serving(play([Reply(status=500)])) as (store, server):
        for _ in range(40):
            with pytest.raises(StorageError):
                await store.get("b")
    # 40 calls with up to 8 attempts would be 320 requests; 100 retries are paid for.
    assert len(server.received) == 140


async def test_a_dripping_answer_does_not_hold_a_reader() -> None:
    """Bytes that keep coming do not extend the request's time; the next attempt may succeed."""
    script = play([Reply(headers=ETAG, body=b"x" * 10_000, drip=0.02), OK])
    async with serving(script, request_timeout=0.1, slowest_transfer=2**40) as (store, _):
        with anyio.fail_after(2):
            assert (await store.get("b")).body == b"whole body"
        assert store.statistics().in_use == 0


@pytest.mark.slow
async def test_a_large_body_gets_the_time_it_needs() -> None:
    """The time of an attempt grows with the length of the body, at the slowest rate that is accepted."""
    script = play([Reply(headers=ETAG, body=b"x" * 30, drip=0.01)])
    async with serving(script, request_timeout=0.05, slowest_transfer=10) as (store, server):
        assert len((await store.get("b")).body) == 30
        assert len(server.received) == 1


async def test_a_connection_closed_while_idle_is_not_used() -> None:
    """A server that closes after each answer costs a connection per request and no error, conditional or not."""
    async with serving(play([Reply(headers=ETAG, body=b"x", end="close")])) as (store, server):
        for _ in range(3):
            await store.put("m", b"x")
            await anyio.wait_all_tasks_blocked()
        assert server.connections == 3


async def test_a_connection_is_used_again() -> None:
    """One after the other, requests share a connection, also after errors and 304."""
    answers = [
        OK,
        s3_error(404, "NoSuchKey"),
        Reply(status=304),
        Reply(headers=ETAG, body=b"ab", framing="chunked"),
    ]
    async with serving(play([*answers, OK])) as (store, server):
        await store.get("b")
        with pytest.raises(StorageError):
            await store.get("b")
        assert await store.get("b", if_none_match='"e0"') is None
        assert (await store.get("b")).body == b"ab"
        await store.get("b")
        assert server.connections == 1


@pytest.mark.slow
async def test_an_early_answer_to_an_upload_is_read() -> None:
    """A server that refuses a body of 64 MiB before reading it is heard, and the upload is tried again."""
    refusals = [Reply(status=503, body=b"busy", end="close"), None]

    def at_head(_: Received) -> Reply | None:
        return refusals.pop(0)

    async with (
        FaultServer(play([Reply(headers=ETAG)]), at_head=at_head) as server,
        store_at(server.url) as store,
    ):
        with anyio.fail_after(10):
            assert await store.put("b", bytes(64 << 20)) == '"e0"'
        assert [len(request.body) for request in server.received] == [0, 64 << 20]


@pytest.mark.slow
async def test_an_early_answer_from_a_server_that_stays_is_read() -> None:
    """A refusal that comes while the server neither reads nor closes ends the upload too."""

    def at_head(_: Received) -> Reply | None:
        return Reply(status=403, body=b"<Error><Code>AccessDenied</Code></Error>", end="hang")

    async with FaultServer(play([Reply()]), at_head=at_head) as server, store_at(server.url) as store:
        with anyio.fail_after(5), pytest.raises(AccessDeniedError):
            await store.put("b", bytes(64 << 20))
        assert server.connections == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["get", "put"])
async def test_redirects_are_not_followed(status: int, method: str) -> None:
    """A redirect without a region is an error that says so; nothing is sent anywhere else."""
    async with (
        FaultServer(play([OK])) as elsewhere,
        serving(play([Reply(status=status, headers={"location": elsewhere.url})])) as (store, server),
    ):
        with pytest.raises(StorageError, match="never followed") as caught:
            await (store.get("b") if method == "get" else store.put("b", b"x"))
        assert not caught.value.transient
        assert elsewhere.received == [] and len(server.received) == 1


@pytest.mark.parametrize(
    "answer",
    [
        s3_error(301, "PermanentRedirect", headers={"x-amz-bucket-region": "eu-west-1"}),
        s3_error(400, "AuthorizationHeaderMalformed", extra="<Region>eu-west-1</Region>"),
        Reply(status=400, headers={"x-amz-bucket-region": "eu-west-1"}),
    ],
    ids=["301", "400", "400 without body"],
)
@pytest.mark.parametrize("conditional", [False, True])
async def test_the_region_is_learnt_once(answer: Reply, conditional: bool) -> None:
    """An answer that names the bucket's region makes one more request, signed for it; later ones begin there."""
    async with serving(play([answer, OK])) as (store, server):
        for _ in range(2):
            await store.get("b", if_none_match='"x"' if conditional else None)
        regions = [request.headers["authorization"].split("/")[2] for request in server.received]
    assert regions == ["us-east-1", "eu-west-1", "eu-west-1"]


async def test_a_wrong_region_is_named_when_learning_it_does_not_help() -> None:
    """A store that keeps sending elsewhere gets two requests, and the error names the region."""
    answer = s3_error(
        301,
        "PermanentRedirect",
        extra="<Endpoint>b.s3-eu-west-1.amazonaws.com</Endpoint>",
        headers={"x-amz-bucket-region": "eu-west-1"},
    )
    async with serving(play([answer])) as (store, server):
        with pytest.raises(StorageError, match=r"region eu-west-1.*b\.s3-eu-west-1"):
            await store.get("b")
        assert len(server.received) == 2


NO_REGIONS = ["x@evil.example/", "evil.example/", "[::1", "..", "x:99999", "a b", "r" * 64, "eu\u00e9"]


@pytest.mark.parametrize("region", NO_REGIONS)
@pytest.mark.parametrize("where", ["header", "body"])
async def test_what_is_no_region_leads_nowhere(region: str, where: str) -> None:
    """A region from an answer that cannot be part of a host name is named in the error, and never followed."""
    hosts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        extra = f"<Region>{region}</Region>" if where == "body" else ""
        headers = [(b"x-amz-bucket-region", region.encode("latin-1"))] if where == "header" else []
        body = f"<Error><Code>AuthorizationHeaderMalformed</Code>{extra}</Error>"
        return httpx.Response(400, headers=headers, content=body.encode())

    config = S3Config(bucket="bkt", access_key_id="a", secret_access_key="b")
    store = S3Store(config, transport=httpx.MockTransport(answer))
    for _ in range(2):
        with pytest.raises(StorageError, match="which cannot be one") as caught:
            await store.put("k", b"body")
        assert not caught.value.transient
    assert hosts == ["bkt.s3.us-east-1.amazonaws.com"] * 2
    await store.aclose()


async def test_a_region_is_kept_only_once_it_has_served() -> None:
    """Where the named region refuses too, later requests begin at the configured one; a 404 for a key counts as served."""
    elsewhere = s3_error(301, "PermanentRedirect", headers={"x-amz-bucket-region": "eu-west-1"})
    answers = [elsewhere, s3_error(403, "AccessDenied"), elsewhere, s3_error(404, "NoSuchKey"), OK]
    async with serving(play(answers)) as (store, server):
        with pytest.raises(AccessDeniedError):
            await store.get("b")
        with pytest.raises(NotFoundError):
            await store.get("b")
        await store.get("b")
        regions = [request.headers["authorization"].split("/")[2] for request in server.received]
    assert regions == ["us-east-1", "eu-west-1", "us-east-1", "eu-west-1", "eu-west-1"]


@pytest.mark.parametrize("asked", ["1e300", "86400", "61"])
async def test_nobody_is_sent_away_for_long(asked: str) -> None:
    """An absurd wait is told as a minute at most, so that whoever waits for it comes back."""
    async with serving(play([Reply(status=503, headers={"retry-after": asked})]), max_attempts=1) as (
        store,
        _,
    ):
        with pytest.raises(StorageError) as caught:
            await store.get("b")
    assert caught.value.retry_after == 60.0


async def test_an_outage_is_told_once() -> None:
    """Host, reason and key each appear once in the message of a store that cannot be reached."""
    async with store_at("http://127.0.0.1:1", max_attempts=1) as store:
        with pytest.raises(StorageError) as caught:
            await store.get("some/key")
    assert str(caught.value) == (
        "cannot read from bucket bucket: no connection to 127.0.0.1 port 1: Connection refused [path='some/key']"
    )


async def test_a_closed_store_says_so() -> None:
    """Reading, writing, listing and deleting after the end raise `ClosedError`."""
    async with serving(play([OK])) as (store, server):
        await store.aclose()
        with pytest.raises(ClosedError):
            await store.get("b")
        with pytest.raises(ClosedError):
            await store.put("b", b"x", CREATE)
        with pytest.raises(ClosedError):
            await anext(store.list(""))
        with pytest.raises(ClosedError):
            await store.delete(["b"])
        assert server.received == []


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br"])
async def test_an_encoding_on_the_way_is_an_error(encoding: str) -> None:
    """Bytes that somebody has compressed are not the stored ones; they are neither decoded nor returned."""
    body = gzip.compress(b"stored")
    async with serving(play([Reply(headers=ETAG | {"content-encoding": encoding}, body=body)])) as (
        store,
        server,
    ):
        with pytest.raises(StorageError, match=f"Content-Encoding {encoding}") as caught:
            await store.get("b")
        assert not caught.value.transient
        assert server.received[0].headers["accept-encoding"] == "identity"


async def test_stored_bytes_are_returned_as_they_are() -> None:
    """A gzip body without a header stays one, and `aws-chunked`, left over from an upload, is no encoding."""
    body = gzip.compress(b"stored")
    answers = [
        Reply(headers=ETAG, body=body),
        Reply(headers=ETAG | {"content-encoding": "aws-chunked"}, body=body),
    ]
    async with serving(play(answers)) as (store, _):
        assert (await store.get("b")).body == body
        assert (await store.get("b")).body == body


async def test_what_is_sent_is_what_was_signed() -> None:
    """Keys go over the wire quoted once, with the host as signed, a length, a true hash and no optional checksum."""
    async with serving(play([Reply(headers=ETAG)])) as (store, server):
        await store.put("a b/+%20é~", b"body")
        await store.put("empty", b"")
    request, empty = server.received
    assert request.target == "/bucket/a%20b/%2B%2520%C3%A9~"
    assert "http://" + request.headers["host"] == server.url
    assert request.headers["content-length"] == "4" and empty.headers["content-length"] == "0"
    assert request.headers["x-amz-content-sha256"].startswith(
        "230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc8"
    )
    forbidden = {"transfer-encoding", "content-encoding", "expect"}
    assert not [name for name in request.headers if "checksum" in name or name in forbidden]


async def test_ranges_are_checked() -> None:
    """A part is what was asked for, a whole object cut to it, or an error; never other bytes."""
    ranged = ETAG | {"content-range": "bytes 2-4/10"}
    answers = [
        Reply(status=206, headers=ranged, body=b"234"),
        Reply(status=200, headers=ETAG, body=b"0123456789"),
        Reply(status=206, headers=ETAG | {"content-range": "bytes 7-9/10"}, body=b"789"),
        Reply(status=200, headers=ETAG, body=b"0123456789"),
        Reply(status=206, headers=ETAG | {"content-range": "bytes 0-2/10"}, body=b"012"),
    ]
    async with serving(play(answers), max_attempts=2) as (store, _):
        assert (await store.get("b", part=ByteRange(2, 5))).body == b"234"
        assert (await store.get("b", part=ByteRange(2, 5))).body == b"234"
        assert (await store.get("b", part=Suffix(3))).body == b"789"
        found = await store.get("b", part=Suffix(3))
        assert (found.body, found.size_bytes) == (b"789", 10)
        with pytest.raises(StorageError, match="bytes 0-2/10"):
            await store.get("b", part=ByteRange(2, 5))


async def test_a_connection_lost_during_an_upload_wrote_nothing() -> None:
    """A conditional write that did not leave whole is no unknown outcome: its end never reached the server."""

    def at_head(_: Received) -> Reply | None:
        return Reply(silent=True, end="close")

    async with FaultServer(play([OK]), at_head=at_head) as server, store_at(server.url) as store:
        with pytest.raises(StorageError) as caught:
            await store.put("m", bytes(64 << 20), CREATE)
        assert server.connections == 1
    assert type(caught.value) is StorageError and caught.value.transient


async def test_the_end_of_an_empty_object_is_empty() -> None:
    """Where a store refuses the range, the object itself is asked for; if it has grown since, its end counts."""
    refused = s3_error(416, "InvalidRange")
    answers = [refused, Reply(headers=ETAG), refused, OK, refused, Reply(status=304)]
    async with serving(play(answers)) as (store, _):
        empty = await store.get("b", part=Suffix(4))
        assert (empty.body, empty.etag, empty.size_bytes) == (b"", '"e0"', 0)
        assert (await store.get("b", part=Suffix(4))).body == b"body"
        assert await store.get("b", part=Suffix(4), if_none_match='"x"') is None
        with pytest.raises(InvalidInputError):
            await store.get("b", part=Suffix(0))
        with pytest.raises(InvalidInputError):
            await store.get("b", part=ByteRange(3, 3))


async def test_not_modified_without_a_condition_is_an_error() -> None:
    """A 304 that nobody asked for is not an object."""
    async with serving(play([Reply(status=304)])) as (store, _):
        with pytest.raises(StorageError, match="without a condition"):
            await store.get("b")


async def test_a_store_says_where_it_is_and_no_more() -> None:
    """URL and repr have bucket, prefix and an endpoint that is not Amazon's, and no secret."""
    async with serving(play([OK]), prefix="pre/fix") as (store, server):
        assert store.url == f"s3://bucket/pre/fix?endpoint={server.url}"
        assert store.url in repr(store) and "hidden" not in repr(store) + repr(store.config)


async def test_an_object_that_is_too_large_is_not_read() -> None:
    """A body past the limit is a permanent error; its connection is not used again."""
    async with serving(play([Reply(headers=ETAG, body=bytes(1000))]), max_object_bytes=999) as (
        store,
        server,
    ):
        with pytest.raises(StorageError, match="larger than the 999 bytes") as caught:
            await store.get("b")
        assert not caught.value.transient
        assert len(server.received) == 1 and store.statistics().idle == 0


async def test_ipv6_works() -> None:
    """An endpoint with an IPv6 address is reached, and its host header has the brackets."""
    async with FaultServer(play([OK]), host="::1") as server, store_at(server.url) as store:
        await store.get("b")
        assert "http://" + server.received[0].headers["host"] == server.url


async def test_no_secret_is_in_an_error() -> None:
    """Neither message nor notes nor the chain of causes of a failure show the secret key."""
    async with serving(play([Reply(silent=True, end="reset")]), max_attempts=2) as (store, _):
        with pytest.raises(StorageError) as caught:
            await store.get("b")
    error: BaseException | None = caught.value
    while error is not None:
        assert "hidden" not in str(error) + repr(error) + repr(getattr(error, "__notes__", []))
        error = error.__cause__ or error.__context__
