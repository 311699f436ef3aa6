"""A PTX interpreter in numpy, stricter than a GPU: parse a text, launch an entry on a Memory."""

from ptx.emulator.errors import CollectedErrors, EmulatorError
from ptx.emulator.machine import Machine
from ptx.emulator.memory import Memory
from ptx.emulator.outputs import Output
from ptx.emulator.parse import parse

__all__ = ["CollectedErrors", "EmulatorError", "Machine", "Memory", "Output", "parse"]
