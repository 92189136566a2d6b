"""S3 and what speaks like it: signed requests over httpx, nothing else between the store and the socket."""

from __future__ import annotations

from buffer.store.s3.config import S3Config
from buffer.store.s3.credentials import CredentialProvider, RefreshingCredentials, StaticCredentials
from buffer.store.s3.sigv4 import Credentials
from buffer.store.s3.store import S3Store

__all__ = [
    "CredentialProvider",
    "Credentials",
    "RefreshingCredentials",
    "S3Config",
    "S3Store",
    "StaticCredentials",
]
