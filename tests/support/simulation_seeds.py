"""Seeds of the simulation that show a mistake."""

from sparkfleet.lab.simulation.run import simulate

NEVER = float("inf")


def seed_with(words, seeds, *given, **options):
    """The first of these seeds whose run has a violation in these words. Each new fault, cause or rule changes every run, so
    that no seed shows a mistake for ever."""
    for seed in seeds:
        if any(words in found for found in simulate(seed, *given, **options).violations):
            return seed
    raise AssertionError(f"no run of {list(seeds)} has: {words}")
