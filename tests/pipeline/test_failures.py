"""Of several failures one leaves, and tells of the others."""

from __future__ import annotations

from buffer import FencedError, StorageError
from buffer.pipeline.failures import foremost, leaves, sole

FENCED = "another consumer has taken over"


def test_the_programs_end_comes_before_a_fence_before_the_librarys_errors_before_others() -> None:
    """What the caller must react to first is raised first, whatever the order of the failures."""
    errors = [ValueError("bug"), StorageError("down"), FencedError(FENCED), KeyboardInterrupt()]
    while errors:
        expected = errors[-1]
        assert foremost(errors) is expected
        expected.__cause__ = None
        assert foremost(list(reversed(errors))) is expected
        errors.pop()


def test_of_equals_the_first_leaves() -> None:
    """Two storage errors: the one that happened first is more likely the reason."""
    first, second = StorageError("first"), StorageError("second")
    assert foremost([first, second]) is first


def test_the_others_are_the_cause() -> None:
    """They show in the traceback, as one group."""
    fence, down, bug = FencedError(FENCED), StorageError("down"), ValueError("bug")
    assert foremost([bug, down, fence]) is fence
    assert isinstance(fence.__cause__, ExceptionGroup)
    assert fence.__cause__.exceptions == (down, bug)


def test_a_cause_is_kept_and_the_others_become_notes() -> None:
    """Why the foremost error happened matters more than what else did."""
    down, other, reason = StorageError("down"), StorageError("other"), OSError("no route")
    down.__cause__ = reason
    assert foremost([down, other]) is down
    assert down.__cause__ is reason
    assert down.__notes__ == [f"failed at the same time: {other!r}"]


def test_one_error_met_by_several_tasks_is_one_error() -> None:
    """It does not become its own cause."""
    fence = FencedError(FENCED)
    assert foremost([fence, fence, fence]) is fence
    assert fence.__cause__ is None


def test_groups_are_taken_apart() -> None:
    """However deep they are nested, what counts are the exceptions in them."""
    a, b, c = ValueError("a"), StorageError("b"), TypeError("c")
    assert leaves(ExceptionGroup("", [a, ExceptionGroup("", [b, ExceptionGroup("", [c])])])) == [a, b, c]


def test_a_group_of_one_is_that_one() -> None:
    """A group leaves only if it holds several."""
    end, error = SystemExit(3), ValueError()
    assert sole(BaseExceptionGroup("", [BaseExceptionGroup("", [end])])) is end
    assert sole(error) is error
    both = BaseExceptionGroup("", [end, error])
    assert sole(both) is both
