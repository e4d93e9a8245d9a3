"""The policy of rollout and fallback: `decide(state, now)` returns actions with reasons.

Pure: no I/O, no clock, no logging. `state` is a snapshot of the fleet, `actions` are the possible results, `decide` has the
rules in their order, and `after` computes the state after actions. `controlplane/effects.py` carries the actions out.
"""
