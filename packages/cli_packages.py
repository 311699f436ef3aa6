"""Owns the group `mesh-specialize package`: its commands are in the `cli_package_*` files.

Exit codes: 0 valid or done, 1 not valid, 2 wrong usage or a machine that refuses.
"""

from typing import Any

from packages import (
    cli_package_checks,
    cli_package_inspect,
    cli_package_make,
    cli_package_transfer,
)


def add(commands: Any) -> None:
    """Add the group to an argument parser's subcommands."""
    group = commands.add_parser(
        "package", help="write, check, find and transfer layer packages"
    ).add_subparsers(required=True, metavar="COMMAND")
    parts = (cli_package_make, cli_package_checks, cli_package_inspect, cli_package_transfer)
    for part in parts:
        part.add(group)
