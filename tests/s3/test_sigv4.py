"""Signatures are those of Amazon's own examples, and those that botocore makes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore import auth, awsrequest, credentials

from buffer.store.s3.config import S3Config
from buffer.store.s3.endpoint import locate
from buffer.store.s3.sigv4 import EMPTY_SHA256, Credentials, quote_path, quote_query, sign

EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
EXAMPLE_HOST = {"host": "examplebucket.s3.amazonaws.com"}
EXAMPLE_MS = int(datetime(2013, 5, 24, tzinfo=UTC).timestamp() * 1000)

KEYS = [
    "a b",
    "a+b",
    "a%20b",
    "a%b",
    "a~b",
    "a=b",
    "a@b",
    "a'()!*b",
    "a:b;c,d$e&f",
    "é",
    "日本",
    "a//b",
    "/a",
    "a?b",
    "a#b",
    "a\\b",
    'a[b]{c}|^`<>"',
    "\x10\x7f",
    "x" * 1024,
]


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "payload", "signature"),
    [
        (
            "GET",
            "/test.txt",
            [],
            {"range": "bytes=0-9"},
            EMPTY_SHA256,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test$file.text",
            [],
            {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            hashlib.sha256(b"Welcome to Amazon S3.").hexdigest(),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "/",
            [("lifecycle", "")],
            {},
            EMPTY_SHA256,
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "/",
            [("prefix", "J"), ("max-keys", "2")],
            {},
            EMPTY_SHA256,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
    ids=["get object", "put object", "get lifecycle", "list objects"],
)
def test_published_examples(  # noqa: PLR0917 - pytest passes by name
    method: str,
    path: str,
    query: list[tuple[str, str]],
    headers: dict[str, str],
    payload: str,
    signature: str,
) -> None:
    """The four examples of the S3 API reference come out to the last digit."""
    signed = sign(
        method=method,
        path=quote_path(path),
        query=quote_query(query),
        headers=EXAMPLE_HOST | headers,
        payload_sha256=payload,
        credentials=EXAMPLE,
        region="us-east-1",
        now_ms=EXAMPLE_MS,
    )
    assert signed["authorization"].endswith(f"Signature={signature}")


def botocore_authorization(
    method: str, url: str, headers: dict[str, str], body: bytes, *, token: str | None, region: str
) -> str:
    """Return what botocore signs for the same URL and headers, `x-amz-date` included."""
    request = awsrequest.AWSRequest(method=method, url=url, headers=headers, data=body)
    request.context["timestamp"] = headers["x-amz-date"]
    signer: Any = auth.S3SigV4Auth(credentials.Credentials("key-id", "secret", token), "s3", region)
    canonical = signer.canonical_request(request)
    to_sign = signer.string_to_sign(request, canonical)
    signature = signer.signature(to_sign, request)
    names = signer.signed_headers(signer.headers_to_sign(request))
    scope = signer.scope(request)
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("addressing", ["path", "virtual"])
def test_hostile_keys_are_signed_as_botocore_does(key: str, addressing: Any) -> None:
    """For keys that clients have got wrong before, the signature is botocore's for the same request line."""
    endpoint = locate(S3Config(bucket="bucket", region="eu-west-1", addressing=addressing), "eu-west-1")
    assert signed_by_us_and_botocore(endpoint.origin, endpoint.host, endpoint.path(key), "") is None


@pytest.mark.parametrize(
    "endpoint_url",
    [
        "http://[::1]:9000",
        "https://s3.x:443",
        "http://h:80",
        "http://H.Example:9000/",
        "http://h:9000/base/",
        "http://h:9000/a b/c",
        "https://127.0.0.1:8443",
    ],
)
def test_endpoints_are_signed_as_botocore_does(endpoint_url: str) -> None:
    """Default ports, capitals, IPv6 and a path in the endpoint change nothing about the agreement."""
    endpoint = locate(S3Config(bucket="My_Bucket.x", endpoint=endpoint_url), "us-east-1")
    assert signed_by_us_and_botocore(endpoint.origin, endpoint.host, endpoint.path("a b/é"), "") is None


@pytest.mark.parametrize(
    "query",
    [
        [("delete", "")],
        [("list-type", "2"), ("prefix", "ingest x+y/"), ("encoding-type", "url")],
        [("list-type", "2"), ("continuation-token", "1o1f/+=="), ("prefix", "é~*'%20")],
    ],
)
def test_queries_are_signed_as_botocore_does(query: list[tuple[str, str]]) -> None:
    """Prefixes with blanks and plus signs and opaque tokens go into the signature as they go over the wire."""
    endpoint = locate(S3Config(bucket="bucket", endpoint="http://h:9000"), "us-east-1")
    assert (
        signed_by_us_and_botocore(endpoint.origin, endpoint.host, endpoint.path(None), quote_query(query))
        is None
    )


def signed_by_us_and_botocore(origin: str, host: str, path: str, query: str) -> str | None:
    """Return the difference between both signatures, or None."""
    body = b"some bytes"
    headers = {"host": host, "if-match": '"0123-4"', "content-md5": "abc=="}
    ours = sign(
        method="PUT",
        path=path,
        query=query,
        headers=headers,
        payload_sha256=hashlib.sha256(body).hexdigest(),
        credentials=Credentials("key-id", "secret", "session/token+=="),
        region="eu-west-1",
        now_ms=EXAMPLE_MS,
    )
    authorization = ours.pop("authorization")
    del ours["host"]
    url = f"{origin}{path}?{query}" if query else f"{origin}{path}"
    theirs = botocore_authorization("PUT", url, ours, body, token="session/token+==", region="eu-west-1")
    return None if theirs == authorization else f"{authorization} != {theirs}"


def test_the_session_token_is_signed() -> None:
    """Temporary credentials send their token, and the signature covers it."""
    signed = sign(
        method="GET",
        path="/",
        query="",
        headers=EXAMPLE_HOST,
        payload_sha256=EMPTY_SHA256,
        credentials=Credentials("key-id", "secret", "token"),
        region="us-east-1",
        now_ms=EXAMPLE_MS,
    )
    assert signed["x-amz-security-token"] == "token"
    assert "x-amz-security-token," in signed["authorization"].replace(";", ",")


def test_secrets_are_not_shown() -> None:
    """Neither credentials nor settings show a secret in their repr."""
    config = S3Config(bucket="b", access_key_id="key-id", secret_access_key="hidden", session_token="hidden")
    shown = repr(Credentials("key-id", "hidden", "hidden")) + repr(config)
    assert "hidden" not in shown and "key-id" in shown
