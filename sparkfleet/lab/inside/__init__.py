"""Programs inside a simulated node: its first process and its device commands.

Copied into the lab and run there by the system's python3, so: standard library only, and no import from elsewhere in
sparkfleet. `knobs` is the one module that both sides read.
"""
