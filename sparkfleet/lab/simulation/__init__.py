"""Simulation of a fleet: the real controller, its policy and its store under a simulated clock, Serve, nodes and network.

`fleet.SimulatedFleet` is the machines and what runs on them, `serve.SimulatedServe` the applications, `faults.Faults` draws
events from a seed, `checks` has what holds after every step, and `run.simulate` puts them together. A seed replays
exactly: there is no other source of chance, and nothing reads the machine's clock.

Not simulated: the inside of a group (its actor, its ranks' supervisors), Ray itself, SSH, and HTTP. `scripts/soak` covers
those on real processes.
"""
