"""Owns the one exception of the oracle: input that it refuses, with the value and the limit.

It knows nothing of models; the command lines turn it into exit code 2.
"""


class OracleError(Exception):
    """Bad checkpoint, dump, configuration or argument; the message names thing, value and limit."""
