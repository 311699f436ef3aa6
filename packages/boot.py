"""Composition root of the shared library: the one import that the embedded start-up makes.

Importing the groups registers their functions; `finish` makes sure that none is missing, and only
then does the library say that it is alive.
"""

import logging
import os

from packages.select import open_plan
from packages.selection import FALLS_THROUGH
from skippy_abi import (  # noqa: F401  (imported to register their functions)
    discovery,
    execute,
    files,
    frames,
    model,
    ngram,
    session,
    state,
    text,
)
from skippy_abi.registry import finish

LOG_VARIABLE = "MESH_SPECIALIZE_LOG"

level = os.environ.get(LOG_VARIABLE)
if level:
    # A misspelt level must not cost the host its runtime.
    known = logging.getLevelNamesMapping().get(level.upper())
    logging.basicConfig(level=logging.INFO if known is None else known)
    if known is None:
        logging.warning("%s: %r is no level, INFO is used", LOG_VARIABLE, level)
model.use_opener(open_plan, FALLS_THROUGH)
finish()
