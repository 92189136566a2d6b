"""The choices in a state of the model, what each of them makes of it, and whether that may be.

A choice lets one party's request take effect and be answered, or loses its answer: then the party hears at once
that nobody knows, and the request itself may land at any later time, or never. Time is a choice too.

Time passes in steps that are shorter than the difference between the collector's grace period and the producers'
enqueue deadline, and no write of the manifest is on its way for longer than one of them: that is the bound on
delays that the library asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

from buffer.format import ManifestView, NewEntry
from buffer.store.base import Create, Match
from buffer.testing.model.parties import BEGAN_MS, MANIFEST, collector, consumer, name_at, producer
from buffer.testing.model.requests import Answer, Delete, Get, List, Put, Request
from buffer.testing.model.state import Book, Flight, Setup, State
from buffer.testing.model.stepper import Note, Party, Position
from buffer.testing.world.changes import EMPTY, change_between
from buffer.testing.world.reference import ManifestBytes, read_manifest

__all__ = ["BrokenRuleError", "Choice", "Model"]

_TICK_MS: Final = 40_000
_OLD_MS: Final = BEGAN_MS - 1_000_000


Choice: TypeAlias = tuple[Literal["answer", "lose", "land", "tick"], int]


class BrokenRuleError(Exception):
    """A choice led to where no correct implementation can come."""


class Model:
    """Parties, and the rules by which their world moves.

    Args:
        setup: What there is.

    Attributes:
        parties: In the order in which states count them.
        steps_of_code: How many lists of answers were run through real code.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.parties: list[Party] = [
            *(producer(number, setup.appends) for number in range(setup.producers)),
            *(consumer(number, setup.rounds) for number in range(setup.consumers)),
            *(collector() for _ in range(setup.collectors)),
        ]
        # For each party: the lists of answers seen so far with where they lead, and how each goes on.
        self._lists: list[list[tuple[tuple[tuple[Answer, int], ...], Position]]] = []
        self._following: list[dict[tuple[int, Answer, int], int]] = [{} for _ in self.parties]
        self.steps_of_code = 0
        for party in self.parties:
            self._lists.append([((), party.position(BEGAN_MS, ()))])

    def begin(self) -> State:
        """Return the state in which everything starts."""
        old, orphan = name_at(_OLD_MS, 1), name_at(_OLD_MS, 2)
        manifest = None if self._setup.fresh else ManifestView.empty().append([NewEntry(old, ())]).data
        parties = len(self.parties)
        return State(
            manifest=manifest,
            objects=tuple(sorted(((old, _OLD_MS), (orphan, _OLD_MS)))),
            ticks=0,
            lost=self._setup.lost_answers,
            flights=(),
            standing=(0,) * parties,
            waiting=(0,) * parties,
            book=Book(enqueued=() if manifest is None else (old,)),
        )

    def request_of(self, state: State, party: int) -> Request | None:
        """Return what a party asks for, or None if it has ended."""
        return self._lists[party][state.standing[party]][1].request

    def choices(self, state: State) -> Iterator[Choice]:
        """Yield everything that can happen next, less what makes no difference to when it happens."""
        requests = [self.request_of(state, party) for party in range(len(self.parties))]
        unseen = not self._setup.lost_uploads and state.ticks == self._setup.ticks
        if unseen and not any(
            isinstance(request, List) or self._will_list(state, party)
            for party, request in enumerate(requests)
        ):
            for party, request in enumerate(requests):
                if isinstance(request, Put) and request.key != MANIFEST:
                    # Nobody looks at the objects any more: every other order leads through the same states.
                    yield "answer", party
                    return
        for party, request in enumerate(requests):
            if request is None:
                continue
            yield "answer", party
            if state.lost and self._may_lose(request):
                yield "lose", party
        for number in range(len(state.flights)):
            yield "land", number
        if state.ticks < self._setup.ticks and self._may_tick(state):
            yield "tick", 0

    def _may_lose(self, request: Request) -> bool:
        return isinstance(request, Delete) or (
            isinstance(request, Put) and (request.key == MANIFEST or self._setup.lost_uploads)
        )

    def _will_list(self, state: State, party: int) -> bool:
        """Whether a collector has not come to its listing yet."""
        answers, position = self._lists[party][state.standing[party]]
        return self.parties[party].role == "collector" and position.request is not None and not answers

    def _may_tick(self, state: State) -> bool:
        waits = [
            state.waiting[party]
            for party in range(len(self.parties))
            if _is_enqueue(self.request_of(state, party))
        ]
        flights = [flight.age for flight in state.flights if _is_enqueue(flight.request)]
        return max([0, *waits, *flights]) == 0

    def choose(self, state: State, choice: Choice) -> State:
        """Return the state that a choice leads to.

        Raises:
            BrokenRuleError: It broke a rule.
        """
        kind, number = choice
        match kind:
            case "answer":
                request = self.request_of(state, number)
                answer, after = self._apply(state, number, request)
                return self._answer(after, number, answer)
            case "lose":
                request = self.request_of(state, number)
                assert isinstance(request, Put | Delete)  # noqa: S101 - nothing else is offered
                flight = Flight(number, request, state.waiting[number])
                after = state._replace(lost=state.lost - 1, flights=(*state.flights, flight))
                return self._answer(after, number, Answer(error="unknown"))
            case "land":
                flight = state.flights[number]
                rest = state.flights[:number] + state.flights[number + 1 :]
                _, after = self._apply(state._replace(flights=rest), flight.party, flight.request)
                return after
            case _:
                return state._replace(
                    ticks=state.ticks + 1,
                    waiting=tuple(wait + 1 for wait in state.waiting),
                    flights=tuple(flight._replace(age=flight.age + 1) for flight in state.flights),
                )

    def _apply(self, state: State, party: int, request: Request | None) -> tuple[Answer, State]:
        now_ms = BEGAN_MS + state.ticks * _TICK_MS
        match request:
            case Get(if_none_match=known):
                if state.manifest is None:
                    return Answer(error="not found"), state
                etag = _etag(state.manifest)
                return Answer(None if etag == known else (state.manifest, etag)), state
            case Put(key=key, body=body, mode=mode) if key == MANIFEST:
                current = None if state.manifest is None else _etag(state.manifest)
                if (isinstance(mode, Create) and current is not None) or (
                    isinstance(mode, Match) and mode.etag != current
                ):
                    return Answer(error="conflict"), state
                return Answer(_etag(body)), self._write(state, party, body)
            case Put(key=key):
                objects = tuple(sorted({**dict(state.objects), key: now_ms}.items()))
                return Answer("stored"), state._replace(objects=objects)
            case List():
                return Answer((now_ms, state.objects)), state
            case Delete(keys=keys):
                objects = tuple(found for found in state.objects if found[0] not in keys)
                after = state._replace(objects=objects)
                _check_references(after, self.parties[party].name)
                return Answer(), after
            case _:
                raise AssertionError(f"{request} cannot be answered")

    def _write(self, state: State, party: int, body: bytes) -> State:
        """Put a manifest in the place of the one before, if the rules allow it."""
        who, book = self.parties[party].name, state.book
        before = EMPTY if state.manifest is None else _read(state.manifest)
        change = change_between(before, _read(body))
        for rule, text in change.faults():
            raise BrokenRuleError(f"{rule}: {who}: {text}")
        for entry in change.added:
            if entry.location in book.enqueued:
                raise BrokenRuleError(f"no location twice: {who} appended {entry.location} again")
            if entry.location in book.failed:
                raise BrokenRuleError(f"a failed call leaves nothing behind: {who} appended {entry.location}")
            book = book._replace(enqueued=(*book.enqueued, entry.location))
        if change.takes_over:
            owners = (*book.owners, (change.after.epoch, party))
            book = book._replace(holder=party, owners=owners)
        if change.removed and book.holder != party:
            raise BrokenRuleError(f"only the holder of the queue dequeues: {who} is not")
        undone = [entry.sequence for entry in change.removed if entry.sequence not in book.processed]
        if undone:
            raise BrokenRuleError(f"nothing is acked that was not done: {who} dequeued {undone}")
        after = state._replace(manifest=body, book=book)
        _check_references(after, who)
        return after

    def _answer(self, state: State, party: int, answer: Answer) -> State:
        """Let a party go on with its answer."""
        now_ms = BEGAN_MS + state.ticks * _TICK_MS if self.parties[party].watches_time else BEGAN_MS
        standing = state.standing[party]
        step = (standing, answer, now_ms)
        lists, following = self._lists[party], self._following[party]
        if step not in following:
            answers = (*lists[standing][0], (answer, now_ms))
            self.steps_of_code += 1
            lists.append((answers, self.parties[party].position(BEGAN_MS, answers)))
            following[step] = len(lists) - 1
        reached = following[step]
        after = state._replace(
            standing=_with(state.standing, party, reached), waiting=_with(state.waiting, party, 0)
        )
        return self._told(after, party, lists[reached][1].notes)

    def _told(self, state: State, party: int, notes: Sequence[Note]) -> State:
        """Compare what a party says with what is so."""
        who, book = self.parties[party].name, state.book
        for note in notes:
            match note:
                case ("appended", (str(location), int(sequence))):
                    if not (sequence < len(book.enqueued) and book.enqueued[sequence] == location):
                        raise BrokenRuleError(f"a receipt is true: {who} believes {location} is {sequence}")
                case ("failed", str(location)):
                    if location in book.enqueued:
                        raise BrokenRuleError(f"a failed call leaves nothing behind: {location} of {who}")
                    book = book._replace(failed=book.failed | {location})
                case ("took", int(epoch)):
                    if dict(book.owners).get(epoch) != party:
                        raise BrokenRuleError(f"one owner of each epoch: {who} believes it has {epoch}")
                case ("processed", (int(sequence), str(location))):
                    if not (sequence < len(book.enqueued) and book.enqueued[sequence] == location):
                        raise BrokenRuleError(f"descriptors are entries: {who} saw {location} as {sequence}")
                    book = book._replace(processed=book.processed | {sequence})
                case ("acked", int(sequence)):
                    first = len(book.enqueued) - len(_read(state.manifest or b"").entries)
                    if first <= sequence:
                        raise BrokenRuleError(f"a written ack is in the manifest: {who} acked {sequence}")
        return state._replace(book=book)


def _is_enqueue(request: Request | None) -> bool:
    return isinstance(request, Put) and request.key == MANIFEST


def _check_references(state: State, who: str) -> None:
    if state.manifest is None:
        return
    keys = dict(state.objects)
    missing = [e.sequence for e in _read(state.manifest).entries if e.location not in keys]
    if missing:
        raise BrokenRuleError(f"what the queue names is there: after {who}, the objects of {missing} are not")


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


@lru_cache(maxsize=1 << 16)
def _read(body: bytes) -> ManifestBytes:
    return read_manifest(body)


@lru_cache(maxsize=1 << 16)
def _etag(body: bytes) -> str:
    # As with a store whose ETags are hashes: if a manifest ever came back, an old condition would hold again.
    return blake2b(body, digest_size=8).hexdigest()
