"""Owns random schedules over the hybrid's sessions, and what must hold behind each of them.

The machine keeps each session's tokens and live checkpoints, so it knows which calls must be
refused. It drives sessions through `Driver`, at engine level or through the ABI; a refused call is
`Refused`, whatever raised it. At the end every session holds and says what a straight run does.
Long because each kind of call is one action here.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

PREFIX_IDS = (6, 7, 8)
N_STEPS = 10
Straight = tuple[bytes, list[int]]


class Refused(Exception):
    """A call that answered an error; its text is the message."""


def lacks_room(refused: Refused) -> bool:
    return "in total" in str(refused)


class Driver(Protocol):
    """Calls on opaque sessions of one model with three lanes."""

    def create(self) -> Any: ...
    def free(self, session: Any) -> None: ...
    def reset(self, session: Any) -> None: ...
    def prefill(self, session: Any, tokens: Sequence[int]) -> None: ...
    def batch(self, sessions: Sequence[Any], tokens: Sequence[int]) -> list[int]: ...
    def verify(self, session: Any, tokens: Sequence[int]) -> list[int]: ...
    def trim(self, session: Any, n_tokens: int) -> None: ...
    def retire(self, session: Any, start: int, count: int) -> None: ...
    def save(self, session: Any, sequence_id: int, n_tokens: int) -> None: ...
    def restore(self, session: Any, sequence_id: int, tokens: Sequence[int]) -> None: ...
    def create_from(self, sequence_id: int, tokens: Sequence[int]) -> Any: ...
    def drop(self, session: Any, sequence_id: int) -> None: ...
    def set_position(self, session: Any, position: int) -> None: ...
    def position(self, session: Any) -> int: ...
    def export(self, session: Any) -> bytes: ...
    def load(self, session: Any, data: bytes) -> None: ...
    def parts(self, session: Any) -> Any: ...
    def load_cells(self, session: Any, parts: Any) -> None: ...
    def load_recurrent(self, session: Any, parts: Any) -> None: ...


@dataclass(eq=False)
class Lane:
    """A session, the tokens that it should hold, and its windows (start, count)."""

    session: Any
    tokens: list[int] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)

    def become(self, tokens: Sequence[int]) -> None:
        self.tokens, self.windows = list(tokens), []

    def reaches(self, n_tokens: int) -> bool:
        """Whether a trim to `n_tokens` has a state to come from."""
        covered = any(start <= n_tokens < start + count for start, count in self.windows)
        return covered or n_tokens in (0, len(self.tokens))


class Machine:
    """One schedule: `random` decides everything."""

    def __init__(self, driver: Driver, rng: random.Random) -> None:
        self.driver, self.rng = driver, rng
        self.lanes = [Lane(driver.create())]
        self.prefixes: dict[int, list[int]] = {}
        self.stored: list[tuple[list[int], bytes, Any]] = []
        self.trace: list[str] = []

    def run(self, straight: Callable[[Sequence[int]], Straight]) -> None:
        """All steps, then the comparison with straight runs."""
        for _ in range(N_STEPS):
            action = self.rng.choice(ACTIONS)
            self.trace.append(action.__name__)
            action(self)
        for lane in self.lanes:
            state, following = straight(lane.tokens)
            assert self.driver.position(lane.session) == len(lane.tokens), self.trace
            assert self.driver.export(lane.session) == state, self.trace
            said = self._says(lane, len(following))
            assert said == following[: len(said)], self.trace
            self.driver.reset(lane.session)

    def _says(self, lane: Lane, n: int) -> list[int]:
        """Greedy tokens behind token 9, as many as there is room for."""
        said: list[int] = []
        token = 9
        for _ in range(n):
            try:
                token = self.driver.batch([lane.session], [token])[0]
            except Refused as refused:
                self.check(lacks_room(refused), refused)
                break
            said.append(token)
        return said

    # What the actions share

    def text(self, n: int) -> list[int]:
        return [self.rng.randrange(320) for _ in range(n)]

    def pick(self) -> Lane:
        return self.rng.choice(self.lanes)

    def fits(self, call: Callable[[], Any]) -> bool:
        """Whether the call found room; any other refusal is a failure."""
        try:
            call()
        except Refused as refused:
            self.check(lacks_room(refused), refused)
            return False
        return True

    def check(self, holds: bool, what: object = "") -> None:
        assert holds, (self.trace, str(what))

    def refused(self, lane: Lane, call: Callable[[], Any]) -> None:
        """The call is refused and the session is as before."""
        before = self.driver.position(lane.session), self.driver.export(lane.session)
        try:
            call()
        except Refused:
            after = self.driver.position(lane.session), self.driver.export(lane.session)
            assert after == before, self.trace
        else:
            raise AssertionError(f"not refused: {self.trace}")


def do_create(m: Machine) -> None:
    if len(m.lanes) < 3:
        m.lanes.append(Lane(m.driver.create()))


def do_create_from(m: Machine) -> None:
    if len(m.lanes) < 3 and m.prefixes:
        sequence_id = m.rng.choice(list(m.prefixes))
        tokens = m.prefixes[sequence_id] if m.rng.random() < 0.8 else []
        m.lanes.append(Lane(m.driver.create_from(sequence_id, tokens), list(tokens)))


def do_free(m: Machine) -> None:
    if len(m.lanes) > 1:
        lane = m.pick()
        m.lanes.remove(lane)
        m.driver.free(lane.session)


def do_reset(m: Machine) -> None:
    lane = m.pick()
    m.driver.reset(lane.session)
    lane.become([])


def do_prefill(m: Machine) -> None:
    """A prompt in random pieces, one of which may find no room."""
    lane, tokens = m.pick(), m.text(m.rng.choice([1, 2, 3, 5, 16, 17, 24]))
    while tokens:
        n = m.rng.randint(1, len(tokens))
        piece, tokens = tokens[:n], tokens[n:]
        if not m.fits(lambda piece=piece: m.driver.prefill(lane.session, piece)):
            return
        lane.tokens += piece


def do_batch(m: Machine) -> None:
    lanes = m.rng.sample(m.lanes, m.rng.randint(1, len(m.lanes)))
    tokens = m.text(len(lanes))
    if m.fits(lambda: m.driver.batch([lane.session for lane in lanes], tokens)):
        for lane, token in zip(lanes, tokens, strict=True):
            lane.tokens.append(token)


def do_verify(m: Machine) -> None:
    lane, tokens = m.pick(), m.text(m.rng.randint(1, 8))
    if m.fits(lambda: m.driver.verify(lane.session, tokens)):
        lane.windows.append((len(lane.tokens), len(tokens)))
        lane.tokens += tokens


def do_verify_and_settle(m: Machine) -> None:
    """As the host does: all accepted and given up, or trimmed into the window."""
    lane, tokens = m.pick(), m.text(m.rng.randint(1, 8))
    start = len(lane.tokens)
    if not m.fits(lambda: m.driver.verify(lane.session, tokens)):
        return
    lane.tokens += tokens
    n_kept = m.rng.randint(0, len(tokens))
    if n_kept == len(tokens):
        m.driver.retire(lane.session, start, n_kept)
    else:
        m.driver.trim(lane.session, start + n_kept)
        lane.become(lane.tokens[: start + n_kept])


def do_trim(m: Machine) -> None:
    lane = m.pick()
    near = [start + m.rng.randint(0, count) for start, count in lane.windows]
    n = m.rng.choice([0, len(lane.tokens), m.rng.randint(0, len(lane.tokens)), *near, *near])
    if lane.reaches(n):
        m.driver.trim(lane.session, n)
        lane.become(lane.tokens[:n])
    else:
        m.refused(lane, lambda: m.driver.trim(lane.session, n))


def do_retire(m: Machine) -> None:
    lane = m.pick()
    if lane.windows and m.rng.random() < 0.8:
        window = m.rng.choice(lane.windows)
        m.driver.retire(lane.session, *window)
        lane.windows.remove(window)
    else:
        m.refused(lane, lambda: m.driver.retire(lane.session, len(lane.tokens), 3))


def do_save(m: Machine) -> None:
    lane, sequence_id = m.pick(), m.rng.choice(PREFIX_IDS)
    n = m.rng.choice([0, len(lane.tokens), len(lane.tokens), m.rng.randint(0, len(lane.tokens))])
    if n in (0, len(lane.tokens)):
        m.driver.save(lane.session, sequence_id, n)
        m.prefixes[sequence_id] = lane.tokens[:n]
    else:
        m.refused(lane, lambda: m.driver.save(lane.session, sequence_id, n))


def do_restore(m: Machine) -> None:
    if not m.prefixes:
        return
    lane, sequence_id = m.pick(), m.rng.choice(list(m.prefixes))
    saved = m.prefixes[sequence_id]
    n = m.rng.choice([0, len(saved), len(saved), m.rng.randint(0, len(saved))])
    if n in (0, len(saved)):
        m.driver.restore(lane.session, sequence_id, saved[:n])
        lane.become(saved[:n])
    else:
        m.refused(lane, lambda: m.driver.restore(lane.session, sequence_id, saved[:n]))


def do_drop(m: Machine) -> None:
    sequence_id = m.rng.choice(PREFIX_IDS)
    m.driver.drop(m.pick().session, sequence_id)
    m.prefixes.pop(sequence_id, None)


def do_store(m: Machine) -> None:
    lane = m.pick()
    if lane.tokens:
        parts = m.driver.parts(lane.session)
        m.stored.append((list(lane.tokens), m.driver.export(lane.session), parts))


def do_load(m: Machine) -> None:
    """A whole sequence over whatever the session holds."""
    if m.stored:
        lane, (tokens, data, _) = m.pick(), m.rng.choice(m.stored)
        if m.fits(lambda: m.driver.load(lane.session, data)):
            m.driver.set_position(lane.session, len(tokens))
            lane.become(tokens)


def do_load_parts(m: Machine) -> None:
    """The host's restore: cells, recurrent state, position; without room the first one says so."""
    if m.stored:
        lane, (tokens, _, parts) = m.pick(), m.rng.choice(m.stored)
        if m.fits(lambda: m.driver.load_cells(lane.session, parts)):
            m.driver.load_recurrent(lane.session, parts)
            m.driver.set_position(lane.session, len(tokens))
            lane.become(tokens)


def do_load_half(m: Machine) -> None:
    """Cells without their state, or with another sequence's, never run."""
    if not m.stored:
        return
    lane, (tokens, _, parts) = m.pick(), m.rng.choice(m.stored)
    others = [entry for entry in m.stored if entry[0] != tokens and len(entry[0]) <= len(tokens)]
    if lane.tokens[: len(tokens)] == tokens or not m.fits(
        lambda: m.driver.load_cells(lane.session, parts)
    ):
        return
    if others:
        other = m.rng.choice(others)
        if tokens[: len(other[0])] != other[0]:
            _refusal(m, lambda: m.driver.load_recurrent(lane.session, other[2]))
    m.driver.set_position(lane.session, len(tokens))
    _refusal(m, lambda: m.driver.batch([lane.session], [1]))
    m.driver.reset(lane.session)
    lane.become([])


def _refusal(m: Machine, call: Callable[[], Any]) -> None:
    try:
        call()
    except Refused as refused:
        m.check(not lacks_room(refused), refused)
    else:
        raise AssertionError(f"not refused: {m.trace}")


ACTIONS = [value for name, value in list(globals().items()) if name.startswith("do_")]
