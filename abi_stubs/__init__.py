"""The 26 foreign symbols the host's loader insists on, as a library of their own.

Owns their inert or failing answers. Knows nothing of the engine; only the build command imports
it, the engine library builds and runs without it, and a host that no longer asks for the symbols
can leave the second library out.
"""
