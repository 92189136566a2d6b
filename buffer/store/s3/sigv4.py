"""Pure. AWS Signature Version 4 for S3, and the one place where keys and queries become bytes of a URL.

Rules it keeps:

* Path and query are quoted once, by RFC 3986: unreserved characters stay, everything else becomes upper-case
  percent escapes, a space is `%20`, and `/` stays only in paths. S3 neither normalises nor quotes twice.
* The signed path, query and headers are the very strings that are sent, so they cannot differ from them.
* Every header given is signed. Headers that proxies rewrite on their way (Accept-Encoding, User-Agent,
  Content-Length) are not given to it; a condition that is dropped on the way breaks the signature.

Source: "Authenticating Requests (AWS Signature Version 4)" in the Amazon S3 API reference.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from buffer.errors import InvalidInputError

__all__ = ["EMPTY_SHA256", "Credentials", "amz_date", "quote_path", "quote_query", "sign"]

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a signature is made with.

    Attributes:
        access_key_id: Public name of the key.
        secret_access_key: The secret; not in the repr.
        session_token: Token of temporary credentials, or None; not in the repr.
        expires_at_ms: When they end, milliseconds since the Unix epoch, or None for never.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("access_key_id", "session_token"):
            text = getattr(self, name)
            if text is not None and not (text.isascii() and text.isprintable()):
                # Never with the value.
                raise InvalidInputError(f"{name} must be printable ASCII, but has a character that is not")
        try:
            self.secret_access_key.encode()
        except UnicodeEncodeError:
            raise InvalidInputError(
                "secret_access_key must be text that UTF-8 can hold, but has a character that it cannot"
            ) from None


def quote_path(path: str) -> str:
    """Return `path` as it appears in a request line; slashes stay."""
    return quote(path, safe="/~")


def quote_query(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the query string of `pairs`, in the order that signing asks for."""
    return "&".join(
        f"{name}={value}"
        for name, value in sorted((quote(n, safe="~"), quote(v, safe="~")) for n, v in pairs)
    )


def amz_date(now_ms: int) -> str:
    """Return the time in the basic ISO 8601 form of the `x-amz-date` header, UTC."""
    return datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


def sign(
    *,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    payload_sha256: str,
    credentials: Credentials,
    region: str,
    now_ms: int,
) -> dict[str, str]:
    """Return `headers` with the signature's own headers added; nothing else may be added that needs a signature.

    Args:
        method: HTTP method.
        path: Quoted path, beginning with a slash.
        query: Quoted query without the question mark, or an empty string.
        headers: Headers to sign, names in lower case; `host` is one of them.
        payload_sha256: Hexadecimal SHA-256 of the body.
        credentials: Who signs.
        region: Region of the bucket.
        now_ms: Time of the signature, milliseconds since the Unix epoch; S3 allows 15 minutes of difference.
    """
    timestamp = amz_date(now_ms)
    signed = {**headers, "x-amz-content-sha256": payload_sha256, "x-amz-date": timestamp}
    if credentials.session_token is not None:
        signed["x-amz-security-token"] = credentials.session_token
    names = sorted(signed)
    signed_names = ";".join(names)
    canonical_headers = "".join(f"{name}:{' '.join(signed[name].split())}\n" for name in names)
    canonical_request = f"{method}\n{path}\n{query}\n{canonical_headers}\n{signed_names}\n{payload_sha256}"

    scope = f"{timestamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical_request.encode("latin-1")).hexdigest()
    string_to_sign = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{digest}"
    key = _signing_key(credentials.secret_access_key, scope)
    signature = hmac.digest(key, string_to_sign.encode(), "sha256").hex()
    signed["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope}, "
        f"SignedHeaders={signed_names}, Signature={signature}"
    )
    return signed


@functools.lru_cache(maxsize=16)
def _signing_key(secret: str, scope: str) -> bytes:
    """Return the key of one day and region; most of the work of a signature, and the same all day."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
