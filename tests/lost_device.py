"""Owns a device that is lost in the middle of its work, as a card is after an illegal access."""

from typing import Any

from ptx.device import DeviceError, MemoryInfo
from ptx.devices.host import HostDevice
from ptx.op import Op


class LostDevice(HostDevice):
    """A device that is lost at its n-th launch from `arm` on."""

    def __init__(self) -> None:
        super().__init__(poison=True)
        self._left: int | None = None
        self.lost = False

    def arm(self, n_launches: int) -> None:
        self._left = n_launches

    def launch(self, op: Op, **args: Any) -> None:
        """As the host device, until the fault."""
        self._check()
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self.lost = True
                raise DeviceError(f"{op.name}: CUDA_ERROR_ILLEGAL_ADDRESS (700): injected")
        super().launch(op, **args)

    def upload(self, buffer: Any, array: Any) -> None:
        self._check()
        super().upload(buffer, array)

    def download(self, buffer: Any) -> Any:
        self._check()
        return super().download(buffer)

    def memory_info(self) -> MemoryInfo:
        self._check()
        return super().memory_info()

    def _check(self) -> None:
        if self.lost:
            raise DeviceError("the device is unusable since CUDA_ERROR_ILLEGAL_ADDRESS (700)")
