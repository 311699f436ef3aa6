"""Owns what ptxas says of the variants: on architectures that have them, and on targets that lack
them. It must not know families.
"""

import re

from ptx.assemble import Report, assemble_all
from ptx.feasibility.families import Variant

# ptxas 13 has no older chip; of a text that declares an older target it says the same.
OLDEST = "sm_75"
COMPLAINT = re.compile(r"(not supported on|requires) \.target|cannot be compiled for architecture")


def assembled(variant: Variant) -> dict[str, Report]:
    """What ptxas makes of the variant on each architecture of the gate that has it."""
    targets = {arch: variant.target_for(arch) for arch in variant.archs()}
    jobs = [(variant.text(target), arch) for arch, target in targets.items() if target]
    return dict(zip(targets, assemble_all(jobs), strict=True))


def refused(variant: Variant) -> dict[str, Report]:
    """What ptxas says of the same kernel when it declares a target that lacks the instruction."""
    jobs = [
        (variant.text(target), OLDEST if target == "sm_70" else target)
        for target in variant.lacking
    ]
    return dict(zip(variant.lacking, assemble_all(jobs), strict=True))


def for_want_of_it(report: Report) -> bool:
    """Whether a text was refused, and only for what its target does not have."""
    complaints = [line for line in report.error.splitlines() if " error " in line]
    return bool(complaints) and all(COMPLAINT.search(line) for line in complaints)
