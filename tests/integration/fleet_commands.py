"""The command line against a fleet, as both kinds of fleets in these tests run it."""

import time

from sparkfleet.engines.startup_phases import step_of


class FleetCommands:
    """A fleet driven by its command line; a class of fleets has `directory`, `run`, `deployments` and `diagnosis`."""

    every_s = 0.3
    """Pause between two looks at a condition."""

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def ok(self, *args, **limits):
        """Run a verb that must end with 0; its standard output."""
        code, out, err = self.run(*args, **limits)
        assert code == 0, f"{args}: exit {code}\n{out}\n{err}\n{self.diagnosis()}"
        return out

    def deployment(self, name="tiny"):
        """One deployment's status, or None."""
        return next((d for d in self.deployments() if d["name"] == name), None)

    def start_phases(self, name="tiny"):
        """Phases of the start in the engine's log. The line of progress has those that a look each second finds."""
        lines = self.ok("logs", name, "--tail", "2000").splitlines()
        return {step.phase for line in lines if (step := step_of(line)) is not None}

    def until(self, condition, timeout=240, every=None):
        """Wait for something to become true; fails with the fleet's state if it does not."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(every or self.every_s)
        raise AssertionError(f"did not happen in {timeout} s\n{self.diagnosis()}")
