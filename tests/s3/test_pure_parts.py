"""The pure parts on any input: documents, quoting, waits and budgets."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from itertools import pairwise
from urllib.parse import unquote, unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.store.s3.errors import server_time_ms
from buffer.store.s3.retry import RetryBudget, RetryPolicy
from buffer.store.s3.sigv4 import quote_path, quote_query
from buffer.store.s3.xml import (
    ErrorBody,
    MalformedXML,
    delete_body,
    in_xml,
    parse_delete,
    parse_error,
    parse_listing,
)

POLICY = RetryPolicy(max_attempts=8, base=0.05, throttle_base=1.0, cap=20.0)

# Pieces that bring random documents near the real ones.
FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *(
                b"<ListBucketResult>",
                b"</ListBucketResult>",
                b"<Contents>",
                b"</Contents>",
                b"<Key>",
                b"</Key>",
            ),
            *(b"<IsTruncated>", b"true", b"false", b"</IsTruncated>", b"<Size>", b"7", b"-1", b"</Size>"),
            *(b"<DeleteResult>", b"</DeleteResult>", b"<Deleted>", b"</Deleted>", b"<Error>", b"</Error>"),
            *(
                b"<Code>",
                b"</Code>",
                b"%ff",
                b"%zz",
                b"&amp;",
                b"&#0;",
                b"&x;",
                b"<!DOCTYPE x>",
                b"<![CDATA[",
                b"]]>",
            ),
            *(
                b"\x00",
                b"\xff",
                b"<?xml version='1.0' encoding='utf-16'?>",
                b"<?xml version='1.0' encoding='nope'?>",
            ),
        ]
    )
    | st.binary(max_size=8),
    max_size=25,
).map(b"".join)


@given(FRAGMENTS | st.binary(max_size=200))
def test_any_bytes_are_a_document_or_malformed(body: bytes) -> None:
    """Whatever a server sends, the parsers give a value or say that it is none."""
    assert isinstance(parse_error(body), ErrorBody)
    for parse in (parse_listing, parse_delete):
        try:
            parse(body)
        except MalformedXML:
            continue


def test_documents_are_bounded() -> None:
    """A document with too many elements is refused, however well-formed, and depth costs no stack."""
    with pytest.raises(MalformedXML, match="elements"):
        parse_listing(b"<ListBucketResult>" + b"<a/>" * 60_000 + b"</ListBucketResult>")
    with pytest.raises(MalformedXML):
        parse_listing(b"<a>" * 40_000 + b"</a>" * 40_000)


def test_prefixes_and_namespaces_do_not_matter() -> None:
    """Stores write the same document with and without a namespace, and with a prefix for it."""
    plain = b"<DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>"
    spaced = plain.replace(
        b"<DeleteResult>", b'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    )
    prefixed = b'<s:DeleteResult xmlns:s="x"><s:Deleted><s:Key>k</s:Key></s:Deleted></s:DeleteResult>'
    assert parse_delete(plain) == parse_delete(spaced) == parse_delete(prefixed)


def test_an_error_inside_an_error_response_is_found() -> None:
    """The wrapped form that some services use has the same facts."""
    assert (
        parse_error(b"<ErrorResponse><Error><Code>SlowDown</Code></Error></ErrorResponse>").code == "SlowDown"
    )


@given(st.lists(st.text().filter(in_xml), max_size=5))
def test_keys_survive_the_body_of_a_delete(keys: list[str]) -> None:
    """A key that XML can hold is read by another parser exactly as it was written."""
    root = ET.fromstring(delete_body(keys))  # noqa: S314 - made here
    assert [
        element.text or "" for element in root.iter("{http://s3.amazonaws.com/doc/2006-03-01/}Key")
    ] == keys


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_quoting_is_undone_by_unquoting(text: str) -> None:
    """A quoted path or query is plain ASCII without blanks, and means what it was made from."""
    path, query = quote_path(text), quote_query([("name", text)])
    assert unquote(path) == text and unquote_plus(query.partition("=")[2]) == text
    assert path.isascii() and query.isascii()
    assert not set(path + query) & set(' ?#+"<>\\^`{|}')


@given(st.integers(1, 10_000), st.booleans(), st.none() | st.floats(0, 100), st.integers())
def test_waits_are_jittered_capped_and_never_too_short(
    attempt: int, throttled: bool, retry_after: float | None, seed: int
) -> None:
    """A wait lies between what the store asked for, half a minute at most, and the attempt's ceiling on top of it."""
    base = POLICY.throttle_base if throttled else POLICY.base
    delay = POLICY.delay(attempt, random.Random(seed), throttled=throttled, retry_after=retry_after)
    ceiling = min(POLICY.cap, base * 2 ** min(attempt - 1, 50))
    asked = min(retry_after or 0.0, 30.0)
    assert asked <= delay <= asked + ceiling


def test_callers_that_failed_together_do_not_come_back_together() -> None:
    """With full jitter, waits of many callers spread over the whole range."""
    rng = random.Random(1)
    waits = sorted(POLICY.delay(1, rng, throttled=True, retry_after=None) for _ in range(100))
    assert waits[0] < 0.05 and waits[-1] > 0.95
    assert max(later - earlier for earlier, later in pairwise(waits)) < 0.1


def test_the_budget_runs_dry_and_fills_again() -> None:
    """Retries cost, successes earn, and neither goes past its bound."""
    budget = RetryBudget(capacity=10, cost=5)
    assert budget.spend() and budget.spend() and not budget.spend()
    budget.earn(0)
    assert budget.tokens == 1 and not budget.spend()
    budget.earn(1)
    assert budget.tokens == 6 and budget.spend()
    for _ in range(100):
        budget.earn(3)
    assert budget.tokens == 10


@pytest.mark.parametrize("date", [None, "", "yesterday", "Fri, 99 Jan 2026 03:04:06 GMT", "-1"])
def test_a_date_that_is_none_is_ignored(date: str | None) -> None:
    """A missing or broken `Date` header tells no time."""
    assert server_time_ms(date) is None
