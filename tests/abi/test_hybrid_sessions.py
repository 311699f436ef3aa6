"""Guards the hybrid's sessions over the C ABI: the last cell, second tenants, lengths, batches.

Long because each of the four is a table of cases of one session, with the same few helpers.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests.abi.hybrid import Judge, export, load, load_recurrent, opened, page, text
from tests.abi.steps import (
    batch,
    call,
    greedy,
    load_page,
    raw,
    refused,
    restore,
    save,
    trim,
    verify,
)

# The last position


def unchanged(session: OpenSession, step: Callable[[], object], *words: str) -> None:
    """The step is refused for lack of room, and the session is as before."""
    before = session.position, export(session)
    with pytest.raises(AbiError) as caught:
        step()
    assert caught.value.status == Status.RUNTIME_ERROR
    for word in (*words, "used", "32 in total"):
        assert word in (caught.value.message or "")
    assert (session.position, export(session)) == before


@pytest.mark.parametrize("n_prompt", [31, 32])
def test_the_last_position_is_reached_and_none_beyond(
    runtime: Host, hybrids: Path, hybrid_judge: Judge, n_prompt: int
) -> None:
    model = opened(runtime, hybrids, ctx=32)
    session = model.session()
    session.prefill(text(n_prompt))
    tokens = text(n_prompt) + [9] * (32 - n_prompt)
    if n_prompt == 31:
        session.decode(9)
    for _ in range(2):
        unchanged(session, lambda: session.decode(1), "1 more wanted")
    assert (session.position, export(session)) == (32, hybrid_judge(tokens)[0])
    session.reset()
    session.prefill(text(5))
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(text(5))
    model.free()


@pytest.mark.parametrize("pieces", [[33], [16, 17], [27, 6], [1, 32]])
def test_one_token_too_many_is_refused_whole(
    runtime: Host, hybrids: Path, hybrid_judge: Judge, pieces: list[int]
) -> None:
    model = opened(runtime, hybrids, ctx=32)
    session, tokens, done = model.session(), text(33), 0
    for n in pieces[:-1]:
        session.prefill(tokens[:n])
        done += n
    unchanged(session, lambda: session.prefill(tokens[done:]), f"{pieces[-1]} more wanted")
    session.prefill(tokens[done:28])
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(tokens[:28])
    model.free()


def test_a_verify_that_does_not_fit_keeps_no_window(
    runtime: Host, hybrids: Path, hybrid_judge: Judge
) -> None:
    model = opened(runtime, hybrids, ctx=32)
    session = model.session()
    session.prefill(text(28))
    unchanged(session, lambda: verify(session, [1, 2, 3, 4, 5]))
    refused(raw(session, "retire_verify_checkpoint", 28, 5), Status.INVALID_ARGUMENT)
    assert greedy(session, 9, 4) == hybrid_judge(text(28))[1]
    model.free()


def test_a_batch_without_room_for_all_moves_nobody(runtime: Host, hybrids: Path) -> None:
    model = opened(runtime, hybrids, n_lanes=2, ctx=32)
    a, b = model.session(), model.session()
    a.prefill(text(20))
    b.prefill(text(11, seed=1))
    for order in ((a, b), (b, a)):
        before = [(s.position, export(s)) for s in (a, b)]
        refused(batch(order, [1, 2])[:2], Status.RUNTIME_ERROR, "32 in total")
        assert [(s.position, export(s)) for s in (a, b)] == before
    b.decode(3)
    model.free()


# Second tenants of a lane


def reset(session: OpenSession) -> OpenSession:
    session.reset()
    return session


def free_create(session: OpenSession) -> OpenSession:
    session.free()
    return session.model.session()


def restore_nothing(session: OpenSession) -> OpenSession:
    restore(session, 8, [])
    return session


def import_nothing(session: OpenSession) -> OpenSession:
    """No bytes are no import: the session stays, and only a reset empties it."""
    before = session.position, export(session)
    for name in ("state", "full_state"):
        assert load(session, b"", name)[0] == Status.OK
    refused(load_recurrent(session, b""), Status.RUNTIME_ERROR, "0 bytes")
    assert (session.position, export(session)) == before
    session.reset()
    return session


def trim_all(session: OpenSession) -> OpenSession:
    trim(session, 0)
    return session


def trim_all_of_a_window(session: OpenSession) -> OpenSession:
    verify(session, [1, 2, 3])
    trim(session, 0)
    return session


def failed_verify(session: OpenSession) -> OpenSession:
    with pytest.raises(AbiError):
        verify(session, [1, 320])
    session.reset()
    return session


def failed_trim(session: OpenSession) -> OpenSession:
    assert raw(session, "trim_session", 7)[0] == Status.RUNTIME_ERROR
    session.reset()
    return session


def half_restored(session: OpenSession) -> OpenSession:
    desc, data = page(session, 0, 20)
    session.reset()
    assert load_page(session, desc, data)[0] == Status.OK
    session.reset()
    return session


LEAVES = [reset, free_create, restore_nothing, import_nothing, trim_all, trim_all_of_a_window,
          failed_verify, failed_trim, half_restored]


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_the_next_tenant_of_a_lane_starts_from_nothing(
    runtime: Host, hybrids: Path, leave: Callable[[OpenSession], OpenSession], length: int
) -> None:
    tokens = text(length, seed=7)
    clean = opened(runtime, hybrids, ctx=128)
    first = clean.session()
    wanted = (first.prefill_sampled(tokens), export(first), greedy(first, 9, 10), export(first))
    clean.free()
    model = opened(runtime, hybrids, ctx=128)
    session = model.session()
    session.prefill(text(50))
    greedy(session, 3, 10)
    session = leave(session)
    assert (session.position, export(session)) == (0, b"")
    found = (session.prefill_sampled(tokens), export(session), greedy(session, 9, 10),
             export(session))
    assert found == wanted
    model.free()


# Lengths and pieces


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128])
def test_pieces_change_no_bit(hybrid_model: OpenModel, hybrid_judge: Judge, length: int) -> None:
    session, tokens = hybrid_model.session(), text(length)
    for n in {1, 2, 3, 7, 16, 64, length}:
        session.reset()
        for start in range(0, length, n):
            session.prefill(tokens[start : start + n])
        assert (export(session), greedy(session, 9, 4)) == hybrid_judge(tokens), n


# Batches


PROMPTS = [1, 2, 3, 4, 5, 17, 33, 64]


class Member:
    """One session of a changing batch, and all that it was fed and answered."""

    def __init__(self, model: OpenModel, prompt: list[int]) -> None:
        self.session = model.session()
        self.fed, self.said = prompt, [self.session.prefill_sampled(prompt)]

    def assert_alone_alike(self, solo: OpenSession) -> None:
        """The state and the answers of a session that was never in a batch of several."""
        solo.reset()
        n_prompt = len(self.fed) - len(self.said) + 1
        said = [solo.prefill_sampled(self.fed[:n_prompt])]
        said += [solo.decode(token) for token in self.fed[n_prompt:]]
        assert said == self.said
        assert export(solo) == export(self.session)


@pytest.mark.parametrize("same", [False, True], ids=["distinct", "identical"])
def test_batches_with_changing_members(runtime: Host, hybrids: Path, same: bool) -> None:
    rng = random.Random(11)
    model, alone = (opened(runtime, hybrids, n_lanes=8, ctx=4096) for _ in range(2))
    solo = alone.session()
    prompts = [text(17) if same else text(n, seed=n) for n in PROMPTS]
    members = [Member(model, prompt) for prompt in prompts]
    for round_ in range(40 if same else 200):
        chosen = rng.sample(members, 8 if same else rng.randint(1, 8))
        tokens = [member.said[-1] for member in chosen]
        status, message, answers = batch([member.session for member in chosen], tokens)
        assert status == Status.OK, message
        for member, token, answer in zip(chosen, tokens, answers, strict=True):
            member.fed = [*member.fed, token]
            member.said.append(answer)
        if round_ % 20 == 19 and not same:
            # One leaves, on which it is compared, and another takes its lane.
            leaving = members.pop(rng.randrange(8))
            leaving.assert_alone_alike(solo)
            leaving.session.free()
            members.append(Member(model, rng.choice(prompts)))
    if same:
        assert len({export(member.session) for member in members}) == 1
    for member in members:
        member.assert_alone_alike(solo)
    model.free()
    alone.free()


def test_a_bad_request_of_a_batch_moves_nobody(hybrid_model: OpenModel) -> None:
    a, b = hybrid_model.session(), hybrid_model.session()
    a.prefill(text(5))
    b.prefill(text(6))
    verify(b, [1, 2])
    before = [export(s) for s in (a, b)]
    refused(batch([a, b], [1, 320])[:2], Status.INVALID_ARGUMENT, "320")
    desc, data = page(a, 0, 5)
    broken = hybrid_model.session()
    assert load_page(broken, desc, data)[0] == Status.OK
    refused(batch([a, broken, b], [1, 1, 1])[:2], Status.RUNTIME_ERROR, "recurrent state")
    assert [export(s) for s in (a, b)] == before
    trim(b, 7)
    call(b, "session_set_position", 7)


def test_saved_prefixes_of_many_sessions_do_not_mix(
    hybrid_model: OpenModel, hybrid_judge: Judge
) -> None:
    sessions = [hybrid_model.session() for _ in range(3)]
    for i, session in enumerate(sessions):
        session.prefill(text(10 + i, seed=i))
        save(session, 6 + i, 10 + i)
    greedy(sessions[0], 5, 3)
    for i, session in enumerate(sessions):
        other = (i + 1) % 3
        restore(session, 6 + other, text(10 + other, seed=other))
        assert export(session) == hybrid_judge(text(10 + other, seed=other))[0]
