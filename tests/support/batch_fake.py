"""A fake node that also answers batches: each command in them as if it had been run by itself."""

import base64

from fake_channel import Call, FakeChannel, program_request, program_result

from sparkfleet.errors import NodeError
from sparkfleet.remote.batch import PROGRAM
from sparkfleet.remote.channel import Completed


class BatchFake(FakeChannel):
    """`responses` as in `FakeChannel`; a command without one is a program that is not there."""

    async def run(self, argv, *, env=None, stdin=b"", timeout_s=60.0, on_output=None):
        if argv != PROGRAM.argv:
            return await super().run(argv, env=env, stdin=stdin, timeout_s=timeout_s, on_output=on_output)
        self.batches = getattr(self, "batches", 0) + 1
        answers = [await self._one(one) for one in program_request(Call(argv, stdin=stdin))["argvs"]]
        stdout = program_result(answers)
        on_output(stdout.encode())
        return Completed(argv=argv, exit_code=0, stdout=stdout, stderr="")

    async def _one(self, argv):
        try:
            done = await super().run(argv)
        except NodeError as error:
            if "has no response" in error.what:
                return {"missing": True}
            return {"late": True}
        return {
            "exit_code": done.exit_code,
            "outputs": [[base64.b64encode(text.encode()).decode(), 0] for text in (done.stdout, done.stderr)],
        }
