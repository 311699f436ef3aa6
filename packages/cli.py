"""Owns the `mesh-specialize` command; those for artifacts are in `cli_artifacts.py`,
those for layer packages in `cli_packages.py`.

`demo` and `generate` go through the C ABI like any host (`skippy_abi/client.py`). Text is on
standard output, everything else on standard error. Sampling options are judged before any model
or library is opened.
"""

import argparse
import json
import secrets
import sys
from pathlib import Path

import build_ffi
from engine.errors import EngineError
from engine.sampling import parse_seed, parse_temperature, plain
from packages import bundle, cli_artifacts, cli_packages
from packages.generation import Generation, Request, open_runtime
from packages.host_profile import load_profile, read_host
from packages.select import select
from packages.smollm2_135m import fetch
from skippy_abi.client import AbiError

DEMO_PROMPT = "Why is the sky blue?"
DEMO_TOKENS = 160
FALLS_THROUGH_CODE = 3


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0, or 1 with one line on standard error, or 2 for bad usage."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (EngineError, AbiError, OSError) as error:
        print(f"mesh-specialize: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mesh-specialize", description="Specialised model runtime for MeshLLM."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="answer one question with SmolLM2-135M")
    demo.add_argument("prompt", nargs="?", default=DEMO_PROMPT)
    demo.add_argument("--model", type=Path, help="the served GGUF file (default: fetched once)")
    demo.add_argument("--max-tokens", type=int, default=DEMO_TOKENS)
    demo.set_defaults(run=_demo)
    generate = commands.add_parser("generate", help="complete or answer a prompt")
    generate.add_argument("--model", type=Path, required=True)
    generate.add_argument("-p", "--prompt", required=True)
    generate.add_argument("--temperature", default="1", metavar="T")
    generate.add_argument("--seed", metavar="S", help="0 to 2^64 - 1; drawn once when absent")
    generate.add_argument("--max-tokens", type=int, default=DEMO_TOKENS)
    generate.add_argument("--stream", action="store_true", help="print text as it comes")
    generate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    generate.add_argument("--raw", action="store_true", help="no chat template")
    generate.set_defaults(run=_generate)
    chosen = commands.add_parser("select", help="say what would serve a model file, or why not")
    chosen.add_argument("--model", required=True)
    chosen.add_argument("--host-json", type=Path, metavar="FILE", help="facts of another host")
    chosen.set_defaults(run=_select)
    out = commands.add_parser("bundle", help="write the folder that MeshLLM installs")
    out.add_argument("--out", type=Path, required=True)
    out.add_argument("--mesh-version", default=bundle.MESH_VERSION)
    out.set_defaults(run=_bundle)
    cli_artifacts.add(commands)
    cli_packages.add(commands)
    return parser


def _demo(options: argparse.Namespace) -> int:
    model = options.model or fetch.locate()
    request = Request(options.prompt, options.max_tokens, temperature=0.0, seed=None)
    generation = _run(model, request, stream=True)
    print(file=sys.stdout)
    _report_timings(generation)
    return 0


def _generate(options: argparse.Namespace) -> int:
    temperature = parse_temperature(options.temperature)
    seed = None if options.seed is None else parse_seed(options.seed)
    if seed is None and temperature > 0 and options.max_tokens > 0:
        seed = secrets.randbits(64)
    request = Request(options.prompt, options.max_tokens, temperature, seed, raw=options.raw)
    print(_sampler_line(temperature, seed), file=sys.stderr)
    if options.max_tokens <= 0:
        generation = Generation.empty()
    else:
        generation = _run(options.model, request, stream=options.stream and not options.json)
    if options.json:
        print(json.dumps(generation.as_json(), ensure_ascii=False))
    elif not options.stream:
        print(generation.text)
    else:
        print()
    _report_timings(generation)
    return 0


def _select(options: argparse.Namespace) -> int:
    """0 for a match, FALLS_THROUGH_CODE without one; the JSON object says all reasons."""
    given = options.host_json
    host = read_host() if given is None else load_profile(given)
    selection = select(options.model, lambda: host)
    print(json.dumps({**selection.as_json(), "host": host.as_json()}, indent=2))
    return 0 if selection.match else FALLS_THROUGH_CODE


def _bundle(options: argparse.Namespace) -> int:
    print(bundle.write_bundle(options.out, mesh_version=options.mesh_version))
    return 0


def _run(model: Path, request: Request, *, stream: bool) -> Generation:
    """Build the libraries if need be, open the model, generate."""
    runtime = open_runtime(build_ffi.default_out())

    def show(piece: str) -> None:
        if stream:
            print(piece, end="", flush=True)

    return runtime.generate(model, request, show)


def _sampler_line(temperature: float, seed: int | None) -> str:
    shown = "none" if seed is None else str(seed)
    unused = " (unused at temperature 0)" if seed is not None and not temperature else ""
    return f"temperature {temperature!r}, seed {shown}{unused}, sampler {plain.VERSION}"


def _report_timings(generation: Generation) -> None:
    print(generation.timings(), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
