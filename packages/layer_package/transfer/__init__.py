"""Peer artifact transfer: a stage worker fetches missing package files from its coordinator.

An optimisation of a split that is already chosen, never a way to find packages: every failure
means that the caller resolves the package as if there were no peer.
"""
