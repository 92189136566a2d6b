"""Pure. A call of a store, as a value: what the test stores select by, hold, count and show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from buffer.store.base import ByteRange, PutMode, Suffix

__all__ = ["Call", "Operation"]

Operation: TypeAlias = Literal["get", "put", "list", "delete"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store's method.

    Attributes:
        operation: Name of the method.
        keys: The key of a `get` or `put`, the prefix of a `list`, all keys of a `delete`.
        mode: Condition of a `put`.
        part: Part that a `get` asks for.
        if_none_match: ETag that a `get` names.
    """

    operation: Operation
    keys: tuple[str, ...]
    mode: PutMode | None = None
    part: ByteRange | Suffix | None = None
    if_none_match: str | None = None

    def concerns(self, operation: Operation | None, key: str | None) -> bool:
        """Tell whether this is a call of the operation on the key; None stands for any."""
        return operation in {None, self.operation} and (key is None or key in self.keys)
