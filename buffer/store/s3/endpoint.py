"""Pure. Where requests for a bucket go: scheme, host and path.

The `Host` header is computed here, once, and the same string is signed and sent: lower case, brackets around
an IPv6 address, no default port.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from buffer.errors import InvalidInputError
from buffer.store.s3.config import S3Config
from buffer.store.s3.sigv4 import quote_path

__all__ = ["DEFAULT_REGION", "Endpoint", "locate"]

DEFAULT_REGION = "us-east-1"

_DEFAULT_PORTS = {"http": 80, "https": 443}
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{1,61}[a-z0-9])")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one bucket is reached.

    Attributes:
        scheme: `http` or `https`.
        host: Value of the `Host` header.
        bucket_path: Quoted path of the bucket itself, without a slash at its end.
    """

    scheme: str
    host: str
    bucket_path: str

    @property
    def origin(self) -> str:
        """URL of the server."""
        return f"{self.scheme}://{self.host}"

    def path(self, key: str | None) -> str:
        """Return the quoted path of an object, or of the bucket itself."""
        if key is None:
            return self.bucket_path or "/"
        return f"{self.bucket_path}/{quote_path(key)}"


def locate(config: S3Config, region: str) -> Endpoint:
    """Return the endpoint of the configured bucket if it lies in `region`.

    Raises:
        InvalidInputError: The endpoint is no plain http(s) URL, or the bucket cannot be addressed as asked.
    """
    if config.endpoint is None:
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        scheme, host, base = "https", f"s3.{region}.{domain}", ""
    else:
        scheme, host, base = _split(config.endpoint)
    is_label = _DNS_LABEL.fullmatch(config.bucket) is not None
    addressing = config.addressing
    if addressing == "auto":
        # A certificate for *.host does not cover a bucket with dots, and other names are no host names at all.
        addressing = "virtual" if config.endpoint is None and is_label else "path"
    if addressing == "path":
        return Endpoint(scheme, host, f"{base}/{quote_path(config.bucket)}")
    dotted = all(_DNS_LABEL.fullmatch(part) or part.isalnum() for part in config.bucket.split("."))
    if _is_address(host) or not (is_label or (dotted and config.bucket.islower() and scheme == "http")):
        raise InvalidInputError(
            f"bucket {config.bucket!r} cannot be part of a host name below {host}; use addressing=path"
        )
    return Endpoint(scheme, f"{config.bucket}.{host}", base)


def _split(endpoint: str) -> tuple[str, str, str]:
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as exc:
        raise InvalidInputError("endpoint is not a URL") from exc
    if parts.username is not None or parts.password is not None:
        raise InvalidInputError("endpoint must not hold a user name or password")
    name = parts.hostname
    if parts.scheme not in _DEFAULT_PORTS or not name or not name.isascii() or parts.query or parts.fragment:
        raise InvalidInputError(
            f"endpoint must look like https://host[:port][/path], in ASCII and without a query, but is {endpoint!r}"
        )
    host = f"[{name}]" if ":" in name else name
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        host = f"{host}:{port}"
    return parts.scheme, host, quote_path(parts.path.rstrip("/"))


def _is_address(host: str) -> bool:
    name = host.rpartition("]")[0].lstrip("[") or host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
