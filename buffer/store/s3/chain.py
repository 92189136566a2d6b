"""The whole chain of credential sources that the AWS tools have, through botocore (the extra `aws`).

Profiles, SSO, assumed roles, web identity, container and instance metadata. botocore blocks, and is imported
and asked in worker threads only. It keeps track of expiry and refreshes in time by itself; so what it gives is
taken for `_LOOK_AGAIN_MS` and then asked for again, which costs it nothing while its credentials hold.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import AccessDeniedError
from buffer.store.s3.config import S3Config
from buffer.store.s3.credentials import (
    ADVISORY_REFRESH_MS,
    CredentialProvider,
    RefreshingCredentials,
    StaticCredentials,
)
from buffer.store.s3.sigv4 import Credentials

__all__ = ["BotocoreSource", "provider_for"]

_LOOK_AGAIN_MS = 60 * 1000


def provider_for(config: S3Config, *, clock: Clock = SYSTEM_CLOCK) -> CredentialProvider:
    """Return the provider of the configured credentials: static ones if given, botocore's chain otherwise."""
    if config.access_key_id is not None and config.secret_access_key is not None:
        return StaticCredentials(
            Credentials(config.access_key_id, config.secret_access_key, config.session_token)
        )
    return RefreshingCredentials(BotocoreSource(config.profile, clock=clock), clock=clock)


class BotocoreSource:
    """Loads credentials through botocore; blocking, for worker threads.

    Args:
        profile: Profile of the AWS configuration files, or None for the default.
        clock: Wall clock.
        new_session: Makes the botocore session; imports botocore by default.
    """

    def __init__(
        self,
        profile: str | None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        new_session: Callable[[str | None], Any] | None = None,
    ) -> None:
        self._profile = profile
        self._clock = clock
        self._new_session = new_session or _botocore_session
        self._found: Any = None

    def __call__(self, rejected: Credentials | None) -> Credentials:
        """Return what the chain gives now; walk it anew if it gave `rejected`.

        Raises:
            AccessDeniedError: botocore is not installed, or finds nothing.
        """
        if self._found is None or rejected is not None:
            self._found = self._new_session(self._profile).get_credentials()
        if self._found is None:
            raise AccessDeniedError(
                "no credentials found in settings, environment, AWS profiles, container or instance metadata"
            )
        frozen = self._found.get_frozen_credentials()
        return Credentials(
            frozen.access_key,
            frozen.secret_key,
            frozen.token,
            self._clock.now_ms() + ADVISORY_REFRESH_MS + _LOOK_AGAIN_MS,
        )


def _botocore_session(profile: str | None) -> Any:
    try:
        session = importlib.import_module("botocore.session")
    except ImportError as exc:
        raise AccessDeniedError(
            "no credentials: give access_key_id and secret_access_key, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or install opendata-buffer[aws] for profiles, SSO, roles and metadata"
        ) from exc
    return session.Session(profile=profile)
