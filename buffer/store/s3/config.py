"""Pure. Settings of the S3 store: plain data, from keywords, from a URL, from environment variables.

What is given in code wins over the URL, the URL over the environment. A URL carries no secret. Durations are
seconds, sizes are bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from buffer.errors import InvalidInputError
from buffer.store.s3.sigv4 import Credentials
from buffer.suggestion import did_you_mean

__all__ = ["Addressing", "S3Config", "is_region"]

MIB = 1024 * 1024

Addressing = Literal["auto", "path", "virtual"]

# A region becomes part of a host name.
_REGION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")

_URL_OPTIONS = ("region", "endpoint", "addressing", "profile", "ca_bundle")
_ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "profile": ("AWS_PROFILE",),
    "ca_bundle": ("AWS_CA_BUNDLE",),
}
_CREDENTIALS: dict[str, str] = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """Which bucket, how to reach it, and how much patience to have."""

    bucket: str
    """Name of the bucket."""

    prefix: str = ""
    """What every key of the store begins with, without a slash at either end; keys are relative to it."""

    region: str | None = None
    """Region of the bucket. None takes `us-east-1` and learns the right one from the first answer."""

    endpoint: str | None = None
    """`http(s)://host[:port][/path]` of a store other than Amazon's."""

    addressing: Addressing = "auto"
    """`path` puts the bucket in the path, `virtual` in the host name. `auto`: path for a given endpoint and
    for names that are no DNS label, virtual otherwise."""

    access_key_id: str | None = None
    """Static credentials; None looks for them where the AWS tools do."""

    secret_access_key: str | None = field(default=None, repr=False)
    """Secret of `access_key_id`."""

    session_token: str | None = field(default=None, repr=False)
    """Token of temporary credentials."""

    profile: str | None = None
    """Profile of the AWS configuration files; needs the extra `aws`."""

    ca_bundle: str | None = None
    """Path of a PEM file with the certificate authorities to trust; None trusts the system's."""

    max_connections: int = 32
    """Requests at the same time, and so open connections. More callers wait their turn."""

    reserved_connections: int = 4
    """How many of them are kept for manifests, listings and deletes, which bulk transfers must not hold up."""

    connect_timeout: float = 5.0
    """Seconds until a connection is up, TLS included."""

    request_timeout: float = 30.0
    """Seconds for one attempt, answer included; `slowest_transfer` adds to it what its bytes may take."""

    slowest_transfer: int = MIB
    """Bytes per second below which a transfer is given up."""

    call_timeout: float = 120.0
    """Seconds within which retries of one call may begin; waiting for a free connection does not count."""

    idle_timeout: float = 5.0
    """Seconds after which an unused connection is not used again; below what servers allow."""

    max_attempts: int = 8
    """Attempts of one idempotent request, the first included."""

    retry_base: float = 0.05
    """Longest wait before the first retry; doubles with each, up to `retry_cap`."""

    throttle_base: float = 1.0
    """The same after the store has asked to slow down."""

    retry_cap: float = 20.0
    """Longest wait between two attempts, on top of what the store asks for, of which 30 s are honoured at most."""

    max_object_bytes: int = 1024 * MIB
    """Size past which an object is not read into memory."""

    def __post_init__(self) -> None:
        if (
            not self.bucket
            or "/" in self.bucket
            or not self.bucket.isascii()
            or not self.bucket.isprintable()
        ):
            raise InvalidInputError(f"bucket must be the name of an S3 bucket, but is {self.bucket!r}")
        if self.prefix.startswith("/") or self.prefix.endswith("/"):
            raise InvalidInputError(f"prefix must not begin or end with a slash, but is {self.prefix!r}")
        if self.addressing not in {"auto", "path", "virtual"}:
            raise InvalidInputError(f"addressing must be auto, path or virtual, but is {self.addressing!r}")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise InvalidInputError("access_key_id and secret_access_key must be given together")
        if self.access_key_id is not None and self.secret_access_key is not None:
            Credentials(self.access_key_id, self.secret_access_key, self.session_token)
        if self.region is not None and not is_region(self.region):
            raise InvalidInputError(f"region must be a name like eu-west-1, but is {self.region!r}")
        for name in (
            "max_connections",
            "reserved_connections",
            "slowest_transfer",
            "max_attempts",
            "max_object_bytes",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidInputError(f"{name} must be a whole number of at least 1, but is {value!r}")
        if self.reserved_connections >= self.max_connections:
            raise InvalidInputError(
                f"reserved_connections must leave room for other requests: {self.reserved_connections} of "
                f"{self.max_connections} are reserved"
            )
        for name in (
            "connect_timeout", "request_timeout", "call_timeout", "idle_timeout",
            "retry_base", "throttle_base", "retry_cap",
        ):  # fmt: skip
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or math.isnan(seconds) or seconds <= 0:
                raise InvalidInputError(f"{name} must be a number of seconds above 0, but is {seconds!r}")

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str], **settings: Any) -> S3Config:
        """Read `s3://bucket/prefix?region=...&endpoint=...&addressing=...&profile=...&ca_bundle=...`.

        Args:
            url: The URL; it has no user name, password or port, and unknown options are refused.
            environ: Environment variables that fill what the URL does not say: `AWS_REGION`,
                `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_PROFILE`, `AWS_CA_BUNDLE`,
                `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`.
            settings: Fields of `S3Config` that win over both.

        Raises:
            InvalidInputError: The URL or a setting cannot be used.
        """
        parts = urlsplit(url)
        # The URL is not repeated in these messages: it may hold a password by mistake.
        if parts.scheme != "s3" or not parts.netloc:
            raise InvalidInputError("an S3 URL must look like s3://bucket/optional/prefix")
        if "@" in parts.netloc or ":" in parts.netloc:
            raise InvalidInputError("an S3 URL names a bucket only: no user, password or port")
        if parts.fragment:
            raise InvalidInputError("an S3 URL has no fragment; write # in a prefix as %23")
        known = {item.name for item in fields(cls)}
        unknown = sorted(settings.keys() - known)
        if unknown:
            raise InvalidInputError(
                f"unknown S3 settings {', '.join(name + did_you_mean(name, known) for name in unknown)}; "
                f"known are {', '.join(sorted(known))}"
            )
        values: dict[str, Any] = {"bucket": parts.netloc, "prefix": unquote(parts.path).strip("/")}
        values |= _from_environment(environ, static_keys=settings.get("access_key_id") is None)
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in _URL_OPTIONS:
                raise InvalidInputError(
                    f"unknown option {name} in an S3 URL{did_you_mean(name, _URL_OPTIONS)}; "
                    f"known are {', '.join(_URL_OPTIONS)}"
                )
            values[name] = value
        return cls(**(values | settings))


def is_region(name: str) -> bool:
    """Return whether `name` may be the name of a region, whoever it comes from."""
    return _REGION.fullmatch(name) is not None


def _from_environment(environ: Mapping[str, str], *, static_keys: bool) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, variables in _ENVIRONMENT.items():
        found = next((environ[variable] for variable in variables if environ.get(variable)), None)
        if found:
            values[name] = found
    if static_keys and environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        values |= {
            name: environ[variable] for name, variable in _CREDENTIALS.items() if environ.get(variable)
        }
    return values
