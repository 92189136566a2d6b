"""Listings are whole or an error, and a bulk delete says what became of every key."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import parse_qs, quote, quote_plus
from xml.sax.saxutils import escape, unescape

import anyio
import pytest

from buffer.errors import StorageError
from buffer.store.base import ObjectMeta
from buffer.store.s3 import S3Store
from buffer.testing.fault_server import Received, Reply, play
from tests.s3.scripted import has_received, s3_error, serving

LISTING = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
MODIFIED = "2026-01-02T03:04:05.678Z"


def page(
    keys: Sequence[str] = (),
    *,
    token: str | None = None,
    truncated: str | None = None,
    modified: str = MODIFIED,
) -> Reply:
    """Return a page of a listing in the url encoding."""
    contents = "".join(
        f"<Contents><Key>{escape(quote_plus(key, safe='/'))}</Key><LastModified>{modified}</LastModified>"
        f"<Size>7</Size></Contents>"
        for key in keys
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token is not None else ""
    said = truncated or ("true" if token is not None else "false")
    return Reply(
        body=f"{LISTING}<EncodingType>url</EncodingType><IsTruncated>{said}</IsTruncated>{more}{contents}"
        "</ListBucketResult>".encode()
    )


async def everything(store: S3Store, prefix: str = "") -> list[ObjectMeta]:
    return [meta async for found in store.list(prefix) for meta in found.objects]


async def test_a_listing_goes_on_to_its_end() -> None:
    """2,501 keys come in three pages, an empty page in between ends nothing, and tokens go back as they came."""
    keys = [f"ingest/{number:04d}" for number in range(2501)]
    tokens = ["1o1f/+==", "a b&amp;c", "%2B"]
    pages = [
        page(keys[:1000], token=tokens[0]),
        page(token=tokens[1]),
        page(keys[1000:2000], token=tokens[2]),
        page(keys[2000:]),
    ]
    async with serving(play(pages)) as (store, server):
        found = await everything(store, "ingest/")
    assert [meta.key for meta in found] == keys
    queries = [parse_qs(request.target.partition("?")[2]) for request in server.received]
    assert [query.get("continuation-token") for query in queries] == [None, ["1o1f/+=="], ["a b&c"], ["%2B"]]
    assert all(query["prefix"] == ["ingest/"] and query["encoding-type"] == ["url"] for query in queries)


async def test_listed_keys_are_decoded_once() -> None:
    """Blanks, plus and percent signs, XML's own characters and controls come back as they are, in any order."""
    keys = ["é", "a b", "a+b", "a%20b", "a&b", "a<b>", "\x10", "日本/x", "b/", "a"]
    async with serving(play([page(keys)])) as (store, _):
        assert [meta.key for meta in await everything(store)] == keys


async def test_keys_are_not_decoded_unless_the_answer_says_that_they_are_encoded() -> None:
    """A store that ignores the encoding lists keys as they are."""
    body = f"{LISTING}<IsTruncated>false</IsTruncated><Contents><Key>a%20b+c</Key><LastModified>{MODIFIED}</LastModified><Size>0</Size></Contents></ListBucketResult>"
    async with serving(play([Reply(body=body.encode())])) as (store, _):
        assert [meta.key for meta in await everything(store)] == ["a%20b+c"]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("2026-01-02T03:04:05.678Z", 678), ("2026-01-02T03:04:05Z", 0), ("2026-01-02T03:04:05.123456789Z", 123)],
)
async def test_times_are_read_with_and_without_fractions(text: str, milliseconds: int) -> None:
    """The time of last modification has millisecond precision at most, and the page has the store's own clock."""
    second = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * 1000
    answer = page(["a"], modified=text)
    dated = Reply(body=answer.body, headers={"date": "Fri, 02 Jan 2026 03:04:06 GMT"})
    async with serving(play([dated])) as (store, _):
        pages = [found async for found in store.list("")]
    assert [meta.last_modified_ms for meta in pages[0].objects] == [second + milliseconds]
    assert pages[0].now_ms == second + 1000


@pytest.mark.parametrize(
    "bad",
    [
        s3_error(200, "InternalError"),
        s3_error(200, "SlowDown"),
        Reply(body=b""),
        Reply(body=b'<?xml version="1.0" encoding="UTF-8"?>'),
        Reply(body=page(["a", "b"]).body[:-30]),
        Reply(body=b"<html><body>please log in</body></html>"),
        Reply(body=b"<!DOCTYPE html><html></html>"),
        Reply(body=page(["a"]).body, framing="close", end="close"),
        page(["a"], truncated="maybe"),
        page(["a"], modified="yesterday"),
        s3_error(503, "SlowDown"),
    ],
    ids=[
        "error",
        "slow down",
        "empty",
        "preamble",
        "cut",
        "html",
        "doctype",
        "no length",
        "maybe",
        "time",
        "503",
    ],
)
async def test_what_is_no_listing_is_tried_again(bad: Reply) -> None:
    """A 200 that is an error, empty, cut or another document is a failed attempt, and never an empty listing."""
    async with serving(play([bad, page(["a"])])) as (store, _):
        assert [meta.key for meta in await everything(store)] == ["a"]
    async with serving(play([bad]), max_attempts=2) as (store, server):
        with pytest.raises(StorageError):
            await everything(store)
        assert len(server.received) == 2


async def test_white_space_before_the_document_is_nothing() -> None:
    """Stores that keep a connection alive with blanks before the answer are understood."""
    async with serving(play([Reply(body=b"\n  \n" + page(["a"]).body)])) as (store, _):
        assert [meta.key for meta in await everything(store)] == ["a"]


async def test_a_listing_that_does_not_lead_on_is_an_error() -> None:
    """A page that goes on without a token, and a token that comes twice, end with an error, not with a listing."""
    async with serving(play([page(["a"], truncated="true")]), max_attempts=2) as (store, _):
        with pytest.raises(StorageError, match="NextContinuationToken"):
            await everything(store)
    async with serving(play([page(["a"], token="t")])) as (store, server):
        with pytest.raises(StorageError, match="same continuation token"):
            await everything(store)
        assert len(server.received) == 2


async def test_a_store_that_ignores_the_prefix_is_an_error() -> None:
    """Keys that were not asked for are never given to a collector."""
    async with serving(play([page(["ingest/x", "ingest-old/x"])])) as (store, _):
        with pytest.raises(StorageError, match="ingest-old/x"):
            await everything(store, "ingest/")


async def test_entities_are_not_expanded() -> None:
    """A document that defines entities is refused before it can grow."""
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>' + page(["a"]).body
    async with serving(play([Reply(body=bomb)]), max_attempts=1) as (store, _):
        with pytest.raises(StorageError, match="document type"):
            await everything(store)


def keys_in(request: Received) -> list[str]:
    found = re.findall("<Key>(.*?)</Key>", request.body.decode())
    return [unescape(key, {"&quot;": '"', "&apos;": "'"}) for key in found]


def deleted(request: Received, errors: dict[str, str] | None = None) -> Reply:
    errors = errors or {}
    items = "".join(
        f"<Error><Key>{escape(key)}</Key><Code>{errors[key]}</Code><Message>no</Message></Error>"
        if key in errors
        else f"<Deleted><Key>{escape(key)}</Key></Deleted>"
        for key in keys_in(request)
    )
    return Reply(body=f"<DeleteResult>{items}</DeleteResult>".encode())


async def test_deletes_go_out_in_thousands_with_a_checksum() -> None:
    """1,001 keys are two requests, each with the MD5 that some stores demand."""
    keys = [f"k{number}" for number in range(1001)]
    async with serving(deleted) as (store, server):
        assert await store.delete(keys) == {}
    assert [len(keys_in(request)) for request in server.received] == [1000, 1]
    for request in server.received:
        digest = base64.b64encode(hashlib.md5(request.body, usedforsecurity=False).digest()).decode()
        assert request.headers["content-md5"] == digest
        assert (request.method, request.target) == ("POST", "/bucket?delete=")


async def test_every_key_has_its_own_result() -> None:
    """Errors of single keys are theirs alone, and say whether trying again makes sense; missing is deleted."""
    errors = {"denied": "AccessDenied", "broken": "InternalError", "slow": "SlowDown", "absent": "NoSuchKey"}
    async with serving(lambda request: deleted(request, errors)) as (store, _):
        failed = await store.delete([*errors, "fine"])
    assert {key: (error.path, error.code, error.transient) for key, error in failed.items()} == {
        "denied": ("denied", "AccessDenied", False),
        "broken": ("broken", "InternalError", True),
        "slow": ("slow", "SlowDown", True),
    }


async def test_a_key_without_a_result_has_failed() -> None:
    """An answer that names fewer keys than were asked for is no success for the others."""
    async with serving(
        play([Reply(body=b"<DeleteResult><Deleted><Key>a</Key></Deleted></DeleteResult>")])
    ) as (store, _):
        failed = await store.delete(["a", "b"])
    assert list(failed) == ["b"] and failed["b"].transient


async def test_odd_keys_reach_the_store_unharmed() -> None:
    """XML's characters are escaped; keys that XML would change or cannot hold are deleted one by one."""
    odd = ["a&b", "<c>", "'d'", '"e"', "é"]
    alone = ["\x10", "f\rg", "h\ni"]

    def script(request: Received) -> Reply:
        return deleted(request) if request.method == "POST" else Reply(status=204)

    async with serving(script) as (store, server):
        assert await store.delete([*odd, *alone]) == {}
    assert keys_in(server.received[0]) == odd
    assert {request.target for request in server.received[1:]} == {f"/bucket/{quote(key)}" for key in alone}


@pytest.mark.parametrize("status", [405, 501])
async def test_a_store_without_bulk_delete_gets_single_ones(status: int) -> None:
    """501 and 405 to the bulk form fall back to one request a key, each with its own result."""

    def script(request: Received) -> Reply:
        if request.method == "POST":
            return Reply(status=status)
        return s3_error(403, "AccessDenied") if request.target.endswith("/b") else Reply(status=204)

    async with serving(script) as (store, _):
        failed = await store.delete(["a", "b", "c"])
    assert {key: error.code for key, error in failed.items()} == {"b": "AccessDenied"}


async def test_nothing_known_is_an_error() -> None:
    """If the one request fails for good, so does the call; if a later one does, its keys have the error."""
    async with serving(play([s3_error(403, "AccessDenied")])) as (store, _):
        with pytest.raises(StorageError, match="AccessDenied"):
            await store.delete(["a"])

    def second_fails(request: Received) -> Reply:
        return deleted(request) if len(keys_in(request)) == 1000 else s3_error(403, "AccessDenied")

    async with serving(second_fails) as (store, _):
        failed = await store.delete([f"k{number}" for number in range(1001)])
    assert {key: error.code for key, error in failed.items()} == {"k1000": "AccessDenied"}


async def test_a_200_that_is_an_error_deletes_nothing() -> None:
    """An error document in a 200 is tried again like a 500."""
    replies = [
        s3_error(200, "InternalError"),
        Reply(body=b""),
        Reply(body=b"<DeleteResult><Deleted><Key>a</Key></Deleted></DeleteResult>"),
    ]
    async with serving(play(replies)) as (store, server):
        assert await store.delete(["a"]) == {}
        assert len(server.received) == 3


async def test_a_prefix_of_the_store_is_not_part_of_its_keys() -> None:
    """A store below a prefix lists, deletes and reports keys relative to it."""

    def script(request: Received) -> Reply:
        if request.method == "POST":
            return deleted(request, {"pre/fix/b": "AccessDenied"})
        assert "prefix=pre%2Ffix%2Fx" in request.target
        return page(["pre/fix/x/1"])

    async with serving(script, prefix="pre/fix") as (store, _):
        assert [meta.key for meta in await everything(store, "x")] == ["x/1"]
        failed = await store.delete(["a", "b"])
    assert [(key, error.path) for key, error in failed.items()] == [("b", "b")]


async def test_cancelling_a_listing_leaves_nothing_behind() -> None:
    """A listing given up half-way holds no connection."""
    script = play([page(["a"], token="t"), Reply(silent=True, end="hang")])
    async with serving(script) as (store, server):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(everything, store)
            await has_received(server, 2)
            tasks.cancel_scope.cancel()
        assert store.statistics().in_use == 0
