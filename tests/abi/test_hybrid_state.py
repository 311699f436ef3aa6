"""Guards the hybrid's state in and out over the C ABI: a whole matching set, or nothing.

Long because every way of bringing parts together is here once, right and wrong side by side.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import Status
from skippy_abi.client import Host, OpenModel, OpenSession
from tests.abi.c_host import Libraries
from tests.abi.hybrid import (
    ALL,
    Judge,
    export,
    load,
    load_recurrent,
    opened,
    page,
    parts_of,
    recurrent,
    restore_parts,
    text,
)
from tests.abi.steps import (
    batch,
    call,
    greedy,
    load_page,
    raw,
    refused,
    restore,
    save,
)

ROOT = Path(__file__).resolve().parents[2]
TOKENS, OTHER = text(30), text(30, seed=1)


# Right imports


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "used"])
def test_the_hosts_restore_goes_on_like_the_run(
    filled: OpenSession, target: OpenSession, hybrid_judge: Judge, fresh: bool
) -> None:
    """KV page from 0, recurrent state, set_position; beside neighbours, in another lane."""
    neighbour = filled.model.session()
    neighbour.prefill(OTHER)
    parts = parts_of(filled, 30)
    if fresh:
        target.reset()
    restore_parts(target, parts)
    for session in (target, filled):
        found = session.position, export(session), greedy(session, 9, 4)
        assert found == (30, *hybrid_judge(TOKENS))
    assert (export(neighbour), greedy(neighbour, 9, 4)) == hybrid_judge(OTHER)


def test_the_mid_prefill_checkpoint_is_a_prefix_of_the_run(
    hybrid_model: OpenModel, hybrid_judge: Judge
) -> None:
    """As the host does it: prefill to a border, export, go on; later a prompt starts there."""
    session = hybrid_model.session()
    session.prefill(TOKENS[:20])
    parts = parts_of(session, 20)
    session.prefill(TOKENS[20:])
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(TOKENS)
    session.reset()
    restore_parts(session, parts)
    session.prefill(OTHER[20:])
    wanted = hybrid_judge(TOKENS[:20] + OTHER[20:])
    assert (export(session), greedy(session, 9, 4)) == wanted
    # And a page restored in pieces is the same.
    session.reset()
    session.prefill(TOKENS)
    pieces, state = [page(session, start, 10) for start in (0, 10, 20)], recurrent(session)
    session.reset()
    for piece in pieces:
        assert load_page(session, *piece)[0] == Status.OK
    assert load_recurrent(session, state)[0] == Status.OK
    assert (session.position, export(session)) == (30, hybrid_judge(TOKENS)[0])


@pytest.mark.parametrize("first", ["page", "recurrent"])
def test_the_order_of_the_parts_does_not_matter(
    filled: OpenSession, hybrid_judge: Judge, first: str
) -> None:
    session, (desc, cells, state) = filled.model.session(), parts_of(filled, 30)
    steps: list[Callable[[], tuple[int, str | None]]] = [
        lambda: load_page(session, desc, cells), lambda: load_recurrent(session, state),
    ]
    for step in steps if first == "page" else steps[::-1]:
        assert step()[0] == Status.OK
    assert (session.position, export(session), greedy(session, 9, 4)) == (
        30, *hybrid_judge(TOKENS))


def test_exports_are_the_same_from_every_lane_and_way(filled: OpenSession) -> None:
    """Equal blocks are stored once."""
    session = filled.model.session()
    for token in TOKENS:
        session.prefill([token])
    assert export(session) == export(filled)
    assert recurrent(session) == recurrent(filled)
    assert page(session, 0, 30)[1] == page(filled, 0, 30)[1]
    assert bytes(session.host.sized("skippy_export_state", session.handle, *ALL)) == (
        recurrent(filled))


def test_another_context_size_with_room_takes_it(
    filled: OpenSession, runtime: Host, hybrids: Path, hybrid_judge: Judge
) -> None:
    parts, whole = parts_of(filled, 30), export(filled)
    for ctx in (31, 34, 300):
        model = opened(runtime, hybrids, ctx=ctx)
        session = model.session()
        restore_parts(session, parts)
        n = min(ctx - 30, 4)
        assert greedy(session, 9, n) == hybrid_judge(TOKENS)[1][:n]
        session.reset()
        assert load(session, whole)[0] == Status.OK
        assert (session.position, export(session)) == (30, whole)
        model.free()


def test_another_cache_type_takes_it(
    filled: OpenSession, runtime: Host, hybrids: Path, hybrid_judge: Judge
) -> None:
    """Cache types are hints: cells are float32 whatever they say."""
    model = OpenModel(runtime, hybrids / "golden.mspec", cache_type_k=8, cache_type_v=2)
    session = model.session()
    restore_parts(session, parts_of(filled, 30))
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(TOKENS)
    model.free()


# The child restores what files hold and goes on.
RESTORE = """
import json, sys
from pathlib import Path
from skippy_abi.client import Host
from tests.abi.hybrid import export, load, load_recurrent, opened
from tests.abi.steps import call, greedy, load_page

stubs, engine, hybrids, folder = map(Path, sys.argv[1:])
host = Host([stubs, engine])
model = opened(host, hybrids, n_lanes=2)
model.session()
session = model.session()
desc = host.ffi.new("struct skippy_kv_page_desc *")
host.ffi.buffer(desc)[:] = (folder / "desc").read_bytes()
said = []
for whole in (False, True):
    session.reset()
    if whole:
        said += load(session, (folder / "whole").read_bytes())[:1]
    else:
        said += load_page(session, desc, (folder / "cells").read_bytes())[:1]
        said += load_recurrent(session, (folder / "state").read_bytes())[:1]
        call(session, "session_set_position", 30)
    said += [session.position, export(session).hex(), greedy(session, 9, 4)]
print(json.dumps(said))
"""


def test_parts_outlive_the_process(
    filled: OpenSession, built_libraries: Libraries, hybrids: Path, hybrid_judge: Judge,
    tmp_path: Path,
) -> None:
    desc, cells, state = parts_of(filled, 30)
    named = {"desc": bytes(filled.host.ffi.buffer(desc)), "cells": cells, "state": state,
             "whole": export(filled)}
    for name, data in named.items():
        (tmp_path / name).write_bytes(data)
    words = [built_libraries.stubs, built_libraries.engine, hybrids, tmp_path]
    done = subprocess.run(
        [sys.executable, "-c", RESTORE, *map(str, words)], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    whole, following = hybrid_judge(TOKENS)
    assert json.loads(done.stdout) == [0, 0, 30, whole.hex(), following, 0, 30, whole.hex(),
                                       following]


# Incomplete sets


def cannot_run(session: OpenSession, *words: str) -> None:
    """Every call that runs or keeps tokens refuses."""
    refused(batch([session], [1])[:2], Status.RUNTIME_ERROR, *words)
    before = session.position
    size = session.host.ffi.new("size_t *")
    refused(raw(session, "export_full_state", *ALL, session.host.ffi.NULL, 0, size),
            Status.RUNTIME_ERROR)
    if before:
        assert raw(session, "session_save_prefix", 8, before)[0] != Status.OK
    assert session.position == before


def test_a_page_without_its_state_cannot_run(filled: OpenSession, target: OpenSession) -> None:
    desc, cells, _ = parts_of(filled, 30)
    assert load_page(target, desc, cells)[0] == Status.OK
    cannot_run(target, "recurrent state: of 7 tokens")
    call(target, "session_set_position", 30)
    cannot_run(target, "recurrent state: of 7 tokens")
    call(target, "session_set_position", 7)
    cannot_run(target, "not those of the KV cells")


def test_a_state_without_its_cells_cannot_run(filled: OpenSession, target: OpenSession) -> None:
    for session in (target, filled.model.session()):
        assert load_recurrent(session, recurrent(filled))[0] == Status.OK
        cannot_run(session)
        call(session, "session_set_position", 30)
        cannot_run(session, "KV for")


def test_no_bytes_are_no_recurrent_state(target: OpenSession, untouched: None) -> None:
    for pointer in (target.host.ffi.NULL, target.host.ffi.new("char[1]")):
        refused(raw(target, "import_recurrent_state", pointer, 0), Status.RUNTIME_ERROR, "0 bytes")


def test_an_empty_session_exports_nothing(hybrid_model: OpenModel) -> None:
    session = hybrid_model.session()
    assert (export(session), recurrent(session)) == (b"", b"")


@pytest.mark.parametrize("n_other", [30, 20])
def test_parts_of_two_sessions_are_refused(
    filled: OpenSession, target: OpenSession, n_other: int
) -> None:
    other = filled.model.session()
    other.prefill(OTHER[:n_other])
    foreign = recurrent(other)
    desc, cells, state = parts_of(filled, 30)
    assert load_page(target, desc, cells)[0] == Status.OK
    refused(load_recurrent(target, foreign), Status.RUNTIME_ERROR, f"{n_other} tokens are not")
    # The right one is still welcome.
    assert load_recurrent(target, state)[0] == Status.OK
    assert target.position == 30
    # The other way round, where the cells may yet come, the step refuses.
    target.reset()
    assert load_recurrent(target, foreign)[0] == Status.OK
    assert load_page(target, desc, cells)[0] == Status.OK
    call(target, "session_set_position", n_other)
    cannot_run(target, "not those of the KV cells")


def test_whole_sequences_of_two_halves_are_refused(
    filled: OpenSession, target: OpenSession, untouched: None
) -> None:
    other = filled.model.session()
    other.prefill(OTHER)
    state_bytes = len(recurrent(filled))
    mixed = export(filled)[:-state_bytes] + recurrent(other)
    refused(load(target, mixed), Status.RUNTIME_ERROR, "not of the same ones")
    other.reset()
    other.prefill(TOKENS[:29])
    mixed = export(filled)[:-state_bytes] + recurrent(other)
    refused(load(target, mixed), Status.RUNTIME_ERROR, "30 cells", "29 tokens")
    refused(load(target, export(filled)[:-state_bytes]), Status.RUNTIME_ERROR, "0 bytes")


def test_a_page_of_some_layers_is_no_restore(
    filled: OpenSession, target: OpenSession, untouched: None
) -> None:
    for layers in ((0, 4), (4, 8), (3, 4)):
        desc, cells = page(filled, 0, 30, layers)
        refused(load_page(target, desc, cells), Status.RUNTIME_ERROR, "layers")
    # Layers without KV rows make no page.
    ffi, counter = target.host.ffi, target.host.ffi.new("size_t *")
    refused(raw(filled, "export_kv_page", 0, 3, 0, 30, ffi.new("struct skippy_kv_page_desc *"),
                ffi.NULL, 0, counter), Status.RUNTIME_ERROR, "no KV rows")


def test_a_page_in_the_middle_of_the_session_ends_the_rest(
    filled: OpenSession, hybrid_judge: Judge
) -> None:
    other = filled.model.session()
    other.prefill(TOKENS[:10] + OTHER[:5])
    assert load_page(filled, *page(other, 10, 5))[0] == Status.OK
    cannot_run(filled, "KV for 15 tokens")
    assert load_recurrent(filled, recurrent(other))[0] == Status.OK
    call(filled, "session_set_position", 15)
    wanted = hybrid_judge(TOKENS[:10] + OTHER[:5])
    assert (export(filled), greedy(filled, 9, 4)) == wanted


def test_its_own_page_changes_nothing(filled: OpenSession, hybrid_judge: Judge) -> None:
    assert load_page(filled, *page(filled, 5, 10))[0] == Status.OK
    assert load_page(filled, *page(filled, 5, 10, (0, 4)))[0] == Status.OK
    assert (filled.position, export(filled), greedy(filled, 9, 4)) == (30, *hybrid_judge(TOKENS))


def test_imports_into_a_session_that_shares_cells(
    filled: OpenSession, target: OpenSession, hybrid_judge: Judge
) -> None:
    """A prefix keeps its rows and its state whatever its saver imports."""
    save(filled, 8, 30)
    other = filled.model.session()
    other.prefill(OTHER)
    restore_parts(filled, parts_of(other, 30))
    restore(target, 8, TOKENS)
    assert (export(target), greedy(target, 9, 4)) == hybrid_judge(TOKENS)
    assert (export(filled), greedy(filled, 9, 4)) == hybrid_judge(OTHER)
