"""Pure. From an answer of the store to what it means: one table for status, code and cause.

`diagnose` turns an answer that is not a success into a `Diagnosis`: the remedy, if there is one, and whether
the request was certainly not carried out. `Diagnosis.error` makes the library's error of it, with the facts,
and for the usual causes with what to do about them.

An answer outside the table is judged by its status alone; bodies that are no S3 error (a proxy's HTML) do so too.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from buffer.errors import (
    AccessDeniedError,
    NotFoundError,
    PreconditionError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.store.s3.config import is_region
from buffer.store.s3.messages import Answer, Subject
from buffer.store.s3.xml import ErrorBody, parse_error

__all__ = [
    "MAX_RETRY_AFTER",
    "THROTTLING_CODES",
    "TRANSIENT_CODES",
    "Diagnosis",
    "Remedy",
    "diagnose",
    "server_time_ms",
]


MAX_RETRY_AFTER = 60.0
"""Seconds past which nobody need believe a wait that is asked for: it is looked again before."""


class Remedy(enum.Enum):
    """What may make the same request succeed."""

    NONE = "nothing"
    RETRY = "another attempt"
    SLOW_DOWN = "another attempt, later"
    CLOCK = "a signature with the server's time"
    REGION = "a signature for the bucket's region"
    CREDENTIALS = "fresh credentials"


THROTTLING_CODES = frozenset(
    {
        "BandwidthLimitExceeded", "EC2ThrottledException", "LimitExceededException", "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException", "RequestLimitExceeded", "RequestThrottled",
        "RequestThrottledException", "SlowDown", "Throttling", "ThrottlingException", "ThrottledException",
        "TooManyRequests", "TooManyRequestsException", "TransactionInProgressException",
    }
)  # fmt: skip
TRANSIENT_CODES = frozenset(
    {
        "BadDigest",
        "IncompleteBody",
        "InternalError",
        "RequestTimeout",
        "ServiceUnavailable",
        "XAmzContentSHA256Mismatch",
    }
)
_COMPETING_CODES = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_CLOCK_CODES = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture"})
_CREDENTIAL_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})

_HINTS = {
    "AccessDenied": "check the policy; without s3:ListBucket a missing object is answered like this too",
    "AllAccessDisabled": "access to this bucket has been disabled",
    "AuthorizationHeaderMalformed": "the signature names another region than the bucket's; set the region",
    "InvalidAccessKeyId": "the store does not know this access key id",
    "SignatureDoesNotMatch": "check the secret key, and that no proxy on the way changes host, path or headers",
    "ExpiredToken": "the temporary credentials have expired",
    "InvalidToken": "the session token does not belong to this store or key",
    "RequestTimeTooSkewed": "the clock of this machine differs too much from the store's",
    "NoSuchBucket": "the bucket does not exist, or not in this region or at this endpoint",
    "NotImplemented": "the store does not support this request or one of its headers",
    "InvalidObjectState": "the object is archived and cannot be read",
    "PermanentRedirect": "the bucket is in another region; set the region, or the endpoint",
    "TemporaryRedirect": "the bucket is reached through another endpoint; set the endpoint",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What an answer means.

    Attributes:
        remedy: What may help.
        refused: Whether the request was certainly not carried out.
        region: Region the store named.
        no_region: What it named instead of a region, which must never become part of a host name.
        retry_after: Seconds it asked to wait, at most `MAX_RETRY_AFTER`.
    """

    subject: Subject
    status: int
    body: ErrorBody
    request_id: str | None
    remedy: Remedy
    refused: bool
    region: str | None
    no_region: str | None
    retry_after: float | None

    def error(self) -> StorageError:
        """Return the error that a caller sees when no remedy is left."""
        code, status = self.body.code, self.status
        transient = self.remedy in {Remedy.RETRY, Remedy.SLOW_DOWN}
        if self.subject.write and not self.refused:
            kind: type[StorageError] = UnknownOutcomeError
        elif self.subject.conditional and (
            status == 412 or code in _COMPETING_CODES or (status == 404 and code == "NoSuchKey")
        ):
            kind, transient = PreconditionError, True
        elif status == 404 and code == "NoSuchKey":
            kind = NotFoundError
        elif status in {401, 403} or self.remedy is Remedy.CREDENTIALS or code in {"InvalidToken"}:
            kind = AccessDeniedError
        else:
            kind = StorageError
        return kind(
            f"{self.subject}: {self._reason()}",
            path=self.subject.key,
            status=status,
            code=code,
            request_id=self.request_id,
            transient=transient,
            retry_after=self.retry_after,
        )

    def _reason(self) -> str:
        code = self.body.code
        if code is None:
            reason = _without_code(self.status)
        else:
            reason = f"{code}: {self.body.message}" if self.body.message else code
        if self.subject.write and not self.refused:
            reason = f"{reason}; the write may have been applied"
        hint = _HINTS.get(code or ("AccessDenied" if self.status in {401, 403} else ""))
        if self.status == 404 and code is None:
            hint = (
                "this says nothing about the key: a proxy, or another server than expected, may have answered"
            )
        region = (
            f"the bucket is in region {self.region}" if self.region and self.remedy is Remedy.REGION else None
        )
        if self.no_region is not None:
            region = f"the store names the region {self.no_region[:60]!r}, which cannot be one"
        endpoint = f"the store names the endpoint {self.body.endpoint}" if self.body.endpoint else None
        return "; ".join(part for part in (reason, hint, region, endpoint) if part)


def diagnose(answer: Answer, subject: Subject) -> Diagnosis:
    """Return what an answer other than a success means."""
    body = parse_error(answer.body)
    headers = answer.headers
    named = headers.get("x-amz-bucket-region") or body.region
    region = named if named and is_region(named) else None
    remedy = _remedy(answer.status, body.code, region)
    return Diagnosis(
        subject=subject,
        status=answer.status,
        body=body,
        request_id=headers.get("x-amz-request-id") or body.request_id,
        remedy=remedy,
        refused=answer.status < 500 and answer.status != 408,
        region=region,
        no_region=named if region is None else None,
        retry_after=_retry_after(headers.get("retry-after"), headers.get("x-amz-retry-after")),
    )


def server_time_ms(date: str | None) -> int | None:
    """Return the time of a `Date` header in milliseconds since the Unix epoch, or None if there is none."""
    if date is None:
        return None
    try:
        return int(parsedate_to_datetime(date).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _remedy(status: int, code: str | None, region: str | None) -> Remedy:
    if code in THROTTLING_CODES or status == 429:
        return Remedy.SLOW_DOWN
    if code in _CLOCK_CODES:
        return Remedy.CLOCK
    if code in _CREDENTIAL_CODES:
        return Remedy.CREDENTIALS
    if region and (
        300 <= status < 400
        or (
            status == 400
            and code in {"AuthorizationHeaderMalformed", None, "IllegalLocationConstraintException"}
        )
    ):
        return Remedy.REGION
    if code in TRANSIENT_CODES or code in _COMPETING_CODES or status in {408, 500, 502, 503, 504}:
        return Remedy.RETRY
    # Some gateways have statuses of their own from 520 on; 501 and 505 are final.
    return Remedy.RETRY if status >= 506 else Remedy.NONE


def _without_code(status: int) -> str:
    if 300 <= status < 400:
        return f"the server redirects elsewhere (HTTP {status}), which is never followed"
    return f"HTTP {status} without an S3 error code"


def _retry_after(seconds: str | None, milliseconds: str | None) -> float | None:
    """Return the wait asked for; an HTTP date is not supported, and nonsense is no wait."""
    for text, unit in ((seconds, 1.0), (milliseconds, 0.001)):
        try:
            value = float(text or "") * unit
        except ValueError:
            continue
        if math.isfinite(value) and value >= 0:
            return min(value, MAX_RETRY_AFTER)
    return None
