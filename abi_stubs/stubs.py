"""Owns the stubs library: plain C made from the ABI's table and the answers in `symbols.toml`.

No Python runs inside it. Every symbol says its name once, on the first call, through the log
callback of its prefix; without one, and again after a NULL callback, the line goes to standard
error. The engine does not log here: the host opens both libraries with local symbols, so neither
can see the other.
"""

import tomllib
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from skippy_abi import generate, table, toolchain

LIBRARY = "libmesh_specialize_abi_stubs.so"

LOG_C = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

struct log_target {
    ggml_log_callback callback;
    void *user_data;
};

/* Callback and user data belong together, so they change and are read under one lock. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void log_store(struct log_target *target, ggml_log_callback callback, void *user_data)
{
    pthread_mutex_lock(&log_lock);
    *target = (struct log_target){callback, user_data};
    pthread_mutex_unlock(&log_lock);
}

/* The callback runs outside the lock: it may set another one. */
static void log_once(atomic_flag *said, struct log_target *target, const char *line)
{
    if (atomic_flag_test_and_set(said))
        return;
    pthread_mutex_lock(&log_lock);
    struct log_target now = *target;
    pthread_mutex_unlock(&log_lock);
    if (now.callback != NULL)
        now.callback(GGML_LOG_LEVEL_INFO, line, now.user_data);
    else
        fputs(line, stderr);
}
"""


def answers() -> dict[str, dict[str, Any]]:
    """The rows of `symbols.toml` by symbol name."""
    text = Path(__file__).with_name("symbols.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _statements(symbol: table.Symbol, row: dict[str, Any], struct: bool) -> list[str]:
    target = f"log_{symbol.name.split('_')[0]}"
    lines = ["static atomic_flag said = ATOMIC_FLAG_INIT;"]
    if "stores" in row:
        callback, user_data = (p.name for p in symbol.params)
        lines.append(f"log_store(&log_{row['stores']}, {callback}, {user_data});")
    text = f'"mesh-specialize: {symbol.name} is a stub\\n"'
    lines.append(f"log_once(&said, &{target}, {text});")
    lines += [f"if ({name}) *{name} = {value};" for name, value in row.get("writes", {}).items()]
    if struct:
        fields = ", ".join(f".{name} = {value}" for name, value in row["fields"].items())
        lines.append(f"return ({symbol.returns}){{{fields}}};")
    elif symbol.returns != "void":
        lines.append(f"return {row['returns']};")
    return lines


def source(abi: table.Abi) -> str:
    """The whole C source. Raises ModelError unless every foreign symbol has exactly one row."""
    rows, symbols = answers(), abi.of("stubs")
    odd = set(rows) ^ {symbol.name for symbol in symbols}
    if odd:
        raise ModelError(f"stubs and ABI table disagree about: {', '.join(sorted(odd))}")
    prefixes = dict.fromkeys(symbol.name.split("_")[0] for symbol in symbols)
    lines = [f"static struct log_target log_{prefix};" for prefix in prefixes]
    for symbol in symbols:
        struct = symbol.returns.startswith("struct ") and not symbol.returns.endswith("*")
        body = _statements(symbol, rows[symbol.name], struct)
        lines.append(f'__attribute__((visibility("default"))) {symbol.returns} {symbol.prototype}')
        lines += ["{", *(f"    {line}" for line in body), "}"]
    return "\n".join([generate.INCLUDES, generate.types(abi), generate.layout_checks(abi), LOG_C,
                      *lines, ""])


def build(out: Path, abi: table.Abi | None = None) -> Path:
    """Builds the stubs library in the folder `out` and returns its path."""
    abi = abi or table.load()
    exports = generate.version_script(generate.exported_names(abi, "stubs"))
    return toolchain.link(Path(out).resolve() / LIBRARY, source(abi), exports)
