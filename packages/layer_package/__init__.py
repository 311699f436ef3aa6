"""Layer package repositories, schema version 1: read, validate, write, resolve, transfer.

A package is a folder with `model-package.json` and GGUF fragments, one for each layer.
"""
