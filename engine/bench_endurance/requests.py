"""Owns the mixed requests of an endurance run: made from a seed, and carried out on a model.

A request opens its own sessions and leaves none behind, so its output is its own: neither the
requests beside it nor the lane, the slots and the pages that it gets may change a bit of it. It
must not know what is done with outputs.
"""

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine import prefixes, rollback
from engine.model import Model
from engine.sampling import SamplingConfig
from engine.session import Session

# Lengths at which a page, a small pass or a chunk of a prompt ends.
EDGES = (1, 15, 16, 17, 32, 33, 512, 2047, 2048, 2049)
# Rows of a verified window, and how often one is verified and cut in a request.
WINDOWS, ROUNDS = (2, 3, 4, 8), 4


@dataclass(frozen=True)
class Request:
    """What to do, with prompts of these lengths: `n_steps` tokens are decoded behind each."""

    name: str
    kind: str
    seed: int
    lengths: tuple[int, ...]
    n_steps: int


@dataclass(frozen=True)
class Output:
    """The tokens of a request's sessions, and a digest of the last logits of each, bit for bit."""

    tokens: tuple[tuple[int, ...], ...]
    digest: str


def mixed(
    seed: int, n_requests: int, max_prompt: int, n_steps: int, max_batch: int
) -> tuple[Request, ...]:
    """So many requests, of every kind by turns; the same for the same arguments."""
    rng = random.Random(seed)
    kinds, found = list(KINDS), []
    for index in range(n_requests):
        kind = kinds[index % len(kinds)]
        n_sessions = rng.randint(2, max_batch) if kind == "batch" else 1 + (kind == "reset")
        lengths = tuple(_length(rng, max_prompt) for _ in range(n_sessions))
        shown = "+".join(map(str, lengths))
        found.append(Request(
            f"{index:02} {kind} {shown}", kind, rng.getrandbits(32), lengths, n_steps
        ))
    return tuple(found)


def _length(rng: random.Random, most: int) -> int:
    """A border, or a length whose logarithm is even."""
    edges = [edge for edge in EDGES if edge <= most]
    return rng.choice(edges) if rng.random() < 0.5 else round(math.exp(
        rng.uniform(0.0, math.log(most))
    ))


def cells_for(max_prompt: int, n_steps: int, n_lanes: int) -> int:
    """KV cells with which no request runs out, whatever its lengths."""
    return n_lanes * (max_prompt + n_steps + ROUNDS * (max(WINDOWS) + ROUNDS) + 16)


def carry_out(model: Model, request: Request) -> Output:
    """Run a request; every session of it is free again, whatever happens."""
    with _sessions(model) as create:
        return KINDS[request.kind](model, request, create)


@contextmanager
def _sessions(model: Model) -> Iterator[Callable[[], Session]]:
    made: list[Session] = []

    def create() -> Session:
        made.append(model.create_session())
        return made[-1]

    try:
        yield create
    finally:
        for session in made:
            session.free()


def ids_of(request: Request, n_vocab: int) -> list[list[int]]:
    """The prompts of a request."""
    rng = random.Random(request.seed)
    return [[rng.randrange(n_vocab) for _ in range(n)] for n in request.lengths]


def _output(tokens: Sequence[Sequence[int]], sessions: Sequence[Session]) -> Output:
    digest = hashlib.blake2b(digest_size=16)
    for session in sessions:
        if session.last_row is not None:
            digest.update(session.last_row.array().tobytes())
    return Output(tuple(tuple(one) for one in tokens), digest.hexdigest())


def _decoded(
    session: Session, token: int, n_steps: int, config: SamplingConfig | None = None
) -> list[int]:
    found = [token]
    for _ in range(n_steps):
        found.append(session.decode(found[-1], config))
    return found


def _prompt(model: Model, request: Request, create: Callable[[], Session]) -> Output:
    session = create()
    (ids,) = ids_of(request, model.plan.n_vocab)
    tokens = _decoded(session, session.prefill_sampled(ids, None), request.n_steps)
    return _output([tokens], [session])


def _batch(model: Model, request: Request, create: Callable[[], Session]) -> Output:
    """Sessions of several lengths that decode together."""
    prompts = ids_of(request, model.plan.n_vocab)
    sessions = [create() for _ in prompts]
    pairs = zip(sessions, prompts, strict=True)
    tokens = [[session.prefill_sampled(ids, None)] for session, ids in pairs]
    for _ in range(request.n_steps):
        following = model.decode_batch(
            sessions, [one[-1] for one in tokens], [None] * len(sessions)
        )
        for one, token in zip(tokens, following, strict=True):
            one.append(token)
    return _output(tokens, sessions)


def _verify(model: Model, request: Request, create: Callable[[], Session]) -> Output:
    """Windows of guesses, verified, cut somewhere, and decoded on from there."""
    session, rng = create(), random.Random(request.seed + 1)
    (ids,) = ids_of(request, model.plan.n_vocab)
    tokens, n_window = [session.prefill_sampled(ids, None)], rng.choice(WINDOWS)
    for turn in range(ROUNDS):
        guesses = [rng.randrange(model.plan.n_vocab) for _ in range(n_window - 1)]
        start, n_kept = session.position, rng.randint(1, n_window)
        chosen = session.verify([tokens[-1], *guesses])
        rollback.trim(session, start + n_kept)
        tokens += chosen
        # One more each time: what comes by turns meets every window in every place.
        tokens += _decoded(session, chosen[n_kept - 1], turn + 1)
    return _output([tokens], [session])


def _sampled(model: Model, request: Request, create: Callable[[], Session]) -> Output:
    """A seeded chain of samplers, with a window of penalties in about every other request."""
    session = create()
    config = SamplingConfig(
        version=1, flags=1, seed=request.seed or 1, temperature=0.8, top_k=40, top_p=0.95,
        repeat_penalty=1.1 if request.seed % 2 else 1.0, penalty_last_n=64,
    )
    (ids,) = ids_of(request, model.plan.n_vocab)
    first = session.prefill_sampled(ids, config)
    return _output([_decoded(session, first, request.n_steps, config)], [session])


def _reset(model: Model, request: Request, create: Callable[[], Session]) -> Output:
    """One session that is emptied and used again."""
    session, tokens = create(), []
    for ids in ids_of(request, model.plan.n_vocab):
        session.reset()
        tokens.append(_decoded(session, session.prefill_sampled(ids, None), request.n_steps))
    return _output(tokens, [session])


def _prefix(model: Model, request: Request, create: Callable[[], Session]) -> Output:
    """A prompt that is kept, its session freed, and two that start from it and decode apart."""
    first = create()
    (ids,) = ids_of(request, model.plan.n_vocab)
    token, kept = first.prefill_sampled(ids, None), 2 * model.options.n_lanes
    try:
        prefixes.save(first, kept, len(ids))
        first.free()
        others, tokens = [create(), create()], []
        for index, session in enumerate(others):
            prefixes.restore(session, kept, ids)
            tokens.append(_decoded(session, (token + index) % model.plan.n_vocab, request.n_steps))
        return _output(tokens, others)
    finally:
        prefixes.drop(first if not first.closed else others[0], kept)


Carrier = Callable[[Model, Request, Callable[[], Session]], Output]
KINDS: dict[str, Carrier] = {
    "prompt": _prompt, "batch": _batch, "verify": _verify, "sampled": _sampled,
    "reset": _reset, "prefix": _prefix,
}


def to_json(output: Output) -> dict[str, Any]:
    """An output as a state file holds it."""
    return {"tokens": [list(one) for one in output.tokens], "digest": output.digest}


def difference(held: dict[str, Any], found: dict[str, Any]) -> str:
    """Where an output first leaves the one that is held, "" where every bit is equal."""
    pairs = zip(held["tokens"], found["tokens"], strict=False)
    for index, (before, now) in enumerate(pairs):
        for at, (old, new) in enumerate(zip(before, now, strict=False)):
            if old != new:
                return f"token {at} of session {index} is {new}, was {old}"
    if held["tokens"] != found["tokens"]:
        return "it has another number of tokens"
    if held["digest"] != found["digest"]:
        return "its tokens are equal, the bits of its last logits are not"
    return ""
