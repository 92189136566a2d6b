"""Tools for tests of what is built on this library: stores that fail or wait on demand, and checks of stores."""

from __future__ import annotations

from buffer.testing.calls import Call, Operation
from buffer.testing.conformance import CHECKS, Check, ConformanceError, Profile, StoreFactory
from buffer.testing.fault_kinds import (
    ApplyLate,
    Chaos,
    CutBody,
    Delay,
    FailAfter,
    FailBefore,
    Fault,
    IgnoreCondition,
    ListShape,
    MissingAs,
    RefuseKeys,
    StaleRead,
    conflict,
    lost_answer,
    lost_request,
    own_write_refused,
    unavailable,
)
from buffer.testing.faults import FaultStore, Injection
from buffer.testing.gates import GatedStore, HeldCall, Side

__all__ = [
    "CHECKS",
    "ApplyLate",
    "Call",
    "Chaos",
    "Check",
    "ConformanceError",
    "CutBody",
    "Delay",
    "FailAfter",
    "FailBefore",
    "Fault",
    "FaultStore",
    "GatedStore",
    "HeldCall",
    "IgnoreCondition",
    "Injection",
    "ListShape",
    "MissingAs",
    "Operation",
    "Profile",
    "RefuseKeys",
    "Side",
    "StaleRead",
    "StoreFactory",
    "conflict",
    "lost_answer",
    "lost_request",
    "own_write_refused",
    "unavailable",
]
