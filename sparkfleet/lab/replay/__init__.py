"""Labs that are made of a bundle: as many nodes, rails and outputs of commands as the captured fleet has.

A bundle comes from a stranger. It is read as a stream within stated limits, nothing of it is unpacked or executed, and what
redaction removed (addresses, names, MACs, keys) is filled with the lab's own.
"""
