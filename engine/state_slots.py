"""Owns reading and writing slots of recurrent state on a device: what every program does alike.

Who holds which slot is in `recurrent.py`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.chunk import refuses
from ptx.device import Device

F32 = npt.NDArray[np.float32]


class StateSlots:
    """A program's recurrent state arrays by name, each [n_slots, ...] on its device."""

    _device: Device
    states: dict[str, Any]

    @refuses
    def read_slot(self, slot: int) -> dict[str, F32]:
        """A copy of one slot of every recurrent state array."""
        return {name: self._device.download(state[slot]) for name, state in self.states.items()}

    @refuses
    def write_slot(self, slot: int, arrays: Mapping[str, F32]) -> None:
        """Store one slot of every recurrent state array."""
        for name, state in self.states.items():
            self._device.upload(state[slot], arrays[name])
