"""Owns the text of a parity report. It must not know how its numbers were made."""

from collections.abc import Iterator

from engine.parity.judge import FACTOR, NEARER, ROW_FACTOR, ROW_NEARER, TIE_FACTOR
from engine.parity.records import Report

MARKS = {True: "ok", False: "**fails**"}
COLUMNS = (
    "error", "floor", "row_error", "row_floor", "error_to_float32", "peer_to_float32",
    "alone_error", "alone_floor",
)
VERDICTS = {0: "within every bound", 1: "**outside**", 2: "not judged, or not all of it"}


def markdown(report: Report) -> str:
    """The report as Markdown, every part under its heading."""
    parts = (_head, _activations, _layers, _greedy, _nll, _not_run, _seconds)
    return "\n".join(line for part in parts for line in part(report)) + "\n"


def _head(report: Report) -> Iterator[str]:
    yield f"# Parity of {report['package']}, recipe {report['recipe']}"
    yield ""
    yield f"- verdict: {VERDICTS[report['code']]}"
    yield f"- weights: {report['weights']}"
    yield f"- device: {report['device']}"
    yield f"- peer: {report['peer'] or 'none'}"
    yield ""


def _activations(report: Report) -> Iterator[str]:
    seen = report["activations"]
    stream, leads = seen["stream"], seen["lead_percentiles"]
    yield "## Activations and logits"
    yield ""
    yield (f"Residual stream: rms {stream[0]['rms']:.3g} after the embedding,"
           f" {stream[-1]['rms']:.3g} after {stream[-1]['place']};"
           f" largest cell {max(place['largest'] for place in stream):.3g}.")
    shown = ", ".join(f"{value:.3g} ({at} %)" for at, value in leads.items())
    yield (f"Logits: standard deviation {seen['logit_deviation']:.3g}, largest"
           f" {seen['largest_logit']:.3g}, entropy {seen['entropy_nats']:.3g} nats;"
           f" lead of the best: {shown}.")
    yield ""


def _layers(report: Report) -> Iterator[str]:
    yield "## Layers and logits"
    yield ""
    if "layers" not in report:
        yield "Not run."
        yield ""
        return
    yield (f"Relative L2 error to the peer's plain run. Floor: the peer against itself, in parts by"
           f" other kernels, and in float32. Bounds: {FACTOR:g} floors, of the worst row"
           f" {ROW_FACTOR:g}; and ours is to be as near to the peer's float32 run as its plain one"
           f" is ({NEARER:g}, of the worst row {ROW_NEARER:g}). Alone: what one layer adds to our"
           " own rows before it, against what the peer's adds in float32; floor: the peer's in"
           " bf16, with the same bounds.")
    yield ""
    yield ("| place | error | floor | worst row | its floor | to float32 | peer to float32"
           " | alone | its floor | |")
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in (*report["layers"], report["logits"]):
        shown = " | ".join(f"{row[key]:.2e}" if key in row else "" for key in COLUMNS)
        yield f"| {row['place']} | {shown} | {MARKS[row['passed']]} |"
    yield ""


def _greedy(report: Report) -> Iterator[str]:
    yield "## Greedy ids"
    yield ""
    found = report.get("greedy")
    if found is None:
        yield "Not run."
        yield ""
        return
    noise = report["logits"]["noise_of_a_logit"]
    yield (f"{found['ids']} ids, the peer forced along ours: {found['equal']} are its best,"
           f" {found['near_ties']} are near ties, {found['wrong']} are wrong:"
           f" {MARKS[found['passed']]}.")
    yield (f"A near tie is a lead below {TIE_FACTOR * noise:.3g}, which is {TIE_FACTOR:g} times the"
           f" peer's noise in a logit, and 2^-7 of the best logit. {found['sure']} choices are"
           f" surer than that{'' if found['enough_sure'] else ', too few to say anything'}. The"
           f" peer itself chooses {found['peer_differs_in_float32']} otherwise in float32.")
    for entry in found["first_wrong"]:
        yield (f"- prompt {entry['prompt']}, step {entry['step']}: {entry['ours']}, the peer's"
               f" {entry['theirs']} is {entry['lead']:.3g} above (near tie"
               f" {entry['near_tie']:.3g})")
    yield ""


def _nll(report: Report) -> Iterator[str]:
    yield "## NLL"
    yield ""
    found = report.get("nll")
    if found is None:
        yield "Not run."
        yield ""
        return
    yield (f"{found['windows']} texts of {found['tokens']} tokens that {found['drawn_by']} drew at"
           f" temperature 1: of such texts NLL rises with every error, on random ids it would not.")
    yield ""
    yield f"- ours {found['ours']:.5f} nats a token"
    if "difference" in found:
        yield (f"- ours in bf16 {found['ours_bf16']:.5f}; difference {found['difference']:.5f}"
               f" +- {found['difference_standard_error']:.5f}")
    if "passed" in found:
        yield (f"- the peer on the same numbers {found['peer']:.5f}, in float32"
               f" {found['peer_float32']:.5f}; ours is off by {found['mean_off']:.5f} (limit"
               f" {found['mean_limit']:.5f}), a token by rms {found['rms']:.4f} (floor"
               f" {found['rms_floor']:.4f}, limit {found['rms_limit']:.4f}):"
               f" {MARKS[found['passed']]}")
    else:
        yield "- against a peer: not run"
    yield ""


def _not_run(report: Report) -> Iterator[str]:
    yield "## Not run"
    yield ""
    yield from (f"- {reason}" for reason in report["not_run"] or ["nothing was left out"])
    yield ""


def _seconds(report: Report) -> Iterator[str]:
    yield "## Seconds"
    yield ""
    yield from (f"- {what}: {seconds:g}" for what, seconds in report["seconds"].items())
