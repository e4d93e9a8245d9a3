"""A fake engine: speaks the OpenAI and Anthropic APIs at a chosen pace, computes nothing, fails on demand.

For tests, for measuring the path between a client and an engine, for trying sparkfleet without a model:

    python -m sparkfleet.engines.fake --port 8001 --model tiny --ttft-ms 50 --itl-ms 10 --tokens 64

Its tokens are words without meaning, and its pace is the configured one under any load. Faults are set with
`--fault`, or while it runs with `PUT /fake/fault {"kind": "die", "after": 3}` (`DELETE` clears it).
"""

from sparkfleet.engines.fake.apis import APIS, Api, Job
from sparkfleet.engines.fake.engine import FakeEngine
from sparkfleet.engines.fake.pace import InjectedFault, Pace
from sparkfleet.engines.fake.program import main

__all__ = ["APIS", "Api", "FakeEngine", "InjectedFault", "Job", "Pace", "main"]
