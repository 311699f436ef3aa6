"""The devices an op can run on, one file each, behind the protocol of `ptx/device.py`."""
