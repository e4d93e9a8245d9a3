"""The policy of rollout and fallback: `decide(state, now)` returns actions with reasons.

Pure: no I/O, no clock, no logging. `state` holds what is known at one moment, `actions` what may be done about it, `decide`
the rules in their order, and `after` what the actions leave behind. Carrying actions out is `controlplane/effects.py`'s.
"""
