"""Guards the ABI table: what the pinned version has, and that every row can be generated from."""

import re

import pytest

from engine.errors import IoFailure, ModelError, Status
from skippy_abi import table
from skippy_abi.table import Abi, Symbol

PLAIN = {
    "void", "bool", "char", "unsigned char", "float", "double", "int", "int32_t", "int64_t",
    "uint16_t", "uint32_t", "uint64_t", "size_t",
}


@pytest.fixture(scope="module")
def abi() -> Abi:
    return table.load()


def test_pinned_version_has_the_symbols_the_host_asks_for(abi: Abi) -> None:
    required = [symbol.name for symbol in abi.needed("required")]
    prefixes = [name.split("_")[0] for name in required]
    assert abi.version == (0, 1, 39)
    assert (prefixes.count("skippy"), prefixes.count("mtmd")) == (64, 22)
    assert prefixes.count("llama") + prefixes.count("ggml") == 4
    assert len(abi.needed("optional")) == 7
    assert [symbol.name for symbol in abi.needed("version")] == ["skippy_abi_version"]
    assert len({symbol.name for symbol in abi.symbols}) == len(abi.symbols) == 98
    assert (required[0], required[4], required[-1]) == (
        "llama_log_set", "skippy_error_free", "mtmd_helper_eval_chunk_single",
    )


def test_libraries_share_the_symbols_without_rest(abi: Abi) -> None:
    assert (len(abi.of("skippy")), len(abi.of("stubs"))) == (72, 26)
    assert all(s.name.startswith("skippy_") for s in abi.of("skippy"))


def test_every_type_is_plain_or_declared(abi: Abi) -> None:
    declared = PLAIN | {f"struct {name}" for name in abi.handles}
    declared |= {f"struct {s.name}" for s in abi.structs} | {f"union {u.name}" for u in abi.unions}
    declared |= {e.name if e.is_typedef else f"enum {e.name}" for e in abi.enums}
    declared |= {c.name for c in abi.callbacks}
    used = {p.c_type for s in (*abi.symbols, *abi.callbacks) for p in s.params}
    used |= {s.returns for s in abi.symbols} | {f.c_type for s in abi.structs for f in s.fields}
    bare = {" ".join(re.sub(r"\bconst\b|\*", " ", text).split()) for text in used}
    assert bare - declared == set()


def reports(symbol: Symbol) -> bool:
    return symbol.params != () and symbol.params[-1].c_type == "struct skippy_error **"


def test_every_served_symbol_can_fail_in_a_way_its_caller_knows(abi: Abi) -> None:
    for symbol in abi.served:
        if symbol.is_status:
            assert reports(symbol), symbol.name
            assert symbol.params[-1].name == "out_error"
        else:
            assert symbol.neutral or symbol.returns == "void", symbol.name


def test_only_the_ngram_calls_leave_the_error_alone(abi: Abi) -> None:
    silent = {s.name for s in abi.symbols if s.leaves_out_error}
    assert silent == {
        f"skippy_ngram_cache_{verb}" for verb in ("create", "reset", "append", "draft")
    }


def test_every_free_function_accepts_null(abi: Abi) -> None:
    frees = [s for s in abi.served if s.name.endswith("_free")]
    assert len(frees) == 5
    assert all(s.null_ok == s.params[0].name for s in frees)


def test_status_numbers_are_the_engines(abi: Abi) -> None:
    values = next(e.values for e in abi.enums if e.name == "skippy_status")
    short = {name.removeprefix("SKIPPY_STATUS_"): value for name, value in values.items()}
    assert short == {status.name: status.value for status in Status}


def test_announced_features_are_defined_and_leave_out_what_is_not_served(abi: Abi) -> None:
    assert set(abi.served_features) <= set(abi.feature_bits)
    for name in ("LAYER_PACKAGE", "ARTIFACT_SLICE", "EXTERNAL_MEDIA_PREFILL", "NATIVE_MTP_N1"):
        assert not abi.features_mask >> abi.feature_bits[f"SKIPPY_FEATURE_{name}"] & 1
    assert abi.features_mask >> 24 & 1, "the host opens models with events only by this bit"


@pytest.mark.parametrize(
    "text",
    ["version = [0, 1", "", "version = [0, 1]", "version = 3", "symbols = [3]", "\0"],
    ids=["syntax", "empty", "short version", "number", "rows of numbers", "control character"],
)
def test_text_outside_the_schema_is_a_model_error(text: str) -> None:
    with pytest.raises(ModelError, match="ABI table"):
        table.parse(text)


def test_a_declaration_that_is_not_c_is_named(abi: Abi) -> None:
    text = table.path_of(abi.version).read_text(encoding="utf-8")
    with pytest.raises(ModelError, match="'char'"):
        table.parse(text.replace('"const char * path"', '"char"', 1))


def test_unknown_version_is_refused_by_number() -> None:
    with pytest.raises(IoFailure, match=r"\(9, 8, 7\)"):
        table.load((9, 8, 7))
