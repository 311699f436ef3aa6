"""Owns the rules of the house that a machine can check: tiers, sizes, sources, tools, knowledge."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TIERS = ("ptx", "engine", "skippy_abi", "packages")
OURS = {*TIERS, "abi_stubs", "reference"}
MAX_LINES, EXPLAIN_LINES, MAX_FUNCTION_LINES = 400, 250, 60
TOP_LEVEL = {
    "pyproject.toml", "skippy_abi", "abi_stubs", "engine", "ptx", "packages", "reference",
    "KNOWLEDGE", "AGENTS.md", "tests", "build_ffi.py", "README.md", "LICENSE", ".ci", ".gitignore",
}
C_SUFFIXES = {".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".cuh"}


def tracked() -> list[Path]:
    """Every file that git has or would take, so that build output does not count, nor a virtual
    environment in the checkout, whatever its name."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    homes = tuple(f"{home.parent.name}/" for home in ROOT.glob("*/pyvenv.cfg"))
    names = [n for n in listed.stdout.split("\0") if n and not n.startswith(homes)]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def python_files(*folders: str) -> list[Path]:
    """Tracked Python files below the given folders, or all."""
    found = [path for path in tracked() if path.suffix == ".py"]
    return [p for p in found if not folders or p.relative_to(ROOT).parts[0] in folders]


def imported(path: Path) -> Iterator[str]:
    """Dotted names of every module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def is_test(path: Path) -> bool:
    return path.name.startswith("test_") or "tests" in path.relative_to(ROOT).parts


def test_imports_point_down() -> None:
    for height, tier in enumerate(TIERS):
        banned = {*TIERS[height + 1 :], "reference"}
        if tier != "packages":
            banned.add("abi_stubs")
        for path in python_files(tier):
            if not is_test(path):
                up = banned & {name.partition(".")[0] for name in imported(path)}
                assert not up, f"{path.relative_to(ROOT)} (T{height}) imports {up}"


def test_nothing_but_the_package_tier_and_the_build_imports_the_stubs() -> None:
    for path in python_files("skippy_abi", "engine", "ptx"):
        assert "abi_stubs" not in {name.partition(".")[0] for name in imported(path)}, path


def test_reference_imports_nothing_of_ours() -> None:
    for path in python_files("reference"):
        used = {name.partition(".")[0] for name in imported(path)}
        assert not (OURS - {"reference"}) & used, path


def test_vendor_and_cffi_are_imported_in_their_rooms_only() -> None:
    for path in python_files():
        if is_test(path):
            continue
        names = set(imported(path))
        relative = path.relative_to(ROOT)
        if any(name.startswith(("cuda", "pycuda", "cupy")) for name in names):
            assert relative == Path("ptx/devices/cuda.py"), f"{relative} imports the driver"
        if any(name.partition(".")[0] in {"cffi", "_mesh_specialize_ffi"} for name in names):
            assert relative.parts[0] in {"skippy_abi", "abi_stubs"}, f"{relative} imports cffi"
        heavy = {"torch", "transformers", "llama_cpp", "xllamacpp", "gguf", "triton"}
        assert not heavy & {name.partition(".")[0] for name in names}, relative


def test_files_and_functions_keep_their_lengths() -> None:
    for path in python_files():
        shown = path.relative_to(ROOT)
        text = path.read_text()
        lines = text.splitlines()
        assert len(lines) <= MAX_LINES, f"{shown}: {len(lines)} lines"
        tree = ast.parse(text)
        if len(lines) > EXPLAIN_LINES:
            why = ast.get_docstring(tree) or ""
            assert re.search(r"\blong\b|\bpast 250\b", why, re.I), f"{shown}: say why it is long"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= MAX_FUNCTION_LINES, f"{shown}: {node.name} {length}"


def test_every_python_file_says_what_it_owns() -> None:
    for path in python_files():
        assert ast.get_docstring(ast.parse(path.read_text())), path.relative_to(ROOT)


def test_top_level_and_sources() -> None:
    for path in tracked():
        relative = path.relative_to(ROOT)
        assert relative.parts[0] in TOP_LEVEL, relative
        assert path.suffix not in C_SUFFIXES, f"{relative}: C belongs into the build folder"


def test_no_path_of_one_machine() -> None:
    pattern = re.compile(r"(?<![\w.])/(?:home|root|Users|work|mnt|opt)/[A-Za-z0-9_.]")
    for path in tracked():
        if path.suffix in {".py", ".toml", ".md", ".rs", ".ptx", ""} and path.name != "LICENSE":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if path == Path(__file__).resolve():
                    continue
                assert not pattern.search(line), f"{path}:{number}: {line.strip()}"


def test_one_broad_except() -> None:
    allowed = {Path("skippy_abi/boundary.py"), Path("skippy_abi/generate.py")}
    for path in python_files(*OURS):
        if is_test(path) or path.relative_to(ROOT) in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
            )
            reraises = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            assert not broad or reraises, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_knowledge_entries_have_their_form() -> None:
    for path in tracked():
        relative = path.relative_to(ROOT)
        if relative.parts[0] != "KNOWLEDGE" or len(relative.parts) != 3 or path.suffix != ".md":
            continue
        if relative.parts[1] == "evidence":
            continue
        text = path.read_text()
        assert text.startswith("# "), relative
        for field in ("category", "status", "observed", "rule"):
            assert re.search(rf"^- {field}: \S", text, re.M), f"{relative}: no {field}"


def test_knowledge_references_are_real() -> None:
    for path in tracked():
        if path.suffix not in {".py", ".md", ".toml", ".rs"}:
            continue
        for name in re.findall(r"KNOWLEDGE/[\w./-]+\.md", path.read_text()):
            assert (ROOT / name).is_file(), f"{path.relative_to(ROOT)} points to {name}"


def test_agents_file_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) < 150


def test_extras_of_the_readme_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r'\.\[(\w+)\]', (ROOT / "README.md").read_text()))
    assert named >= {"demo", "test"}
    assert named <= set(extras["optional-dependencies"])


@pytest.mark.parametrize("tool", [["ruff", "check", "."], ["mypy"]], ids=["ruff", "mypy"])
def test_tools_are_content(tool: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *tool], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
