"""The fleets that the integration tests share. One runs at a time in each process of pytest."""

import shutil

import pytest
from fleet_guard import FleetGuard
from live_fleet import Fleet
from pair_fleet import Pair


class Standing:
    """The fleet that stands, by its name."""

    def __init__(self):
        self._name, self._one = "", None

    def get(self, name, make):
        """The one of this name; where another stands it is ended first."""
        if self._name != name:
            self.end()
            self._one, self._name = make(), name
        return self._one

    def has(self, name):
        """True if that one stands: the tests of one file may use several."""
        return self._name == name

    def choose_engines(self, real):
        """Engines that are started from now on are real, or fake ones."""
        if self._one is not None:
            self._one.fleet.real = real

    def end(self):
        """None stands."""
        one = self._taken()
        if one is not None:
            one.end()

    def abandon(self):
        """Take away a fleet that a failed test has left as nobody expects it: the next file of tests gets another."""
        one = self._taken()
        if one is not None:
            one.abandon()

    def _taken(self):
        one, self._name, self._one = self._one, "", None
        return one


class Live:
    """A fleet of one node, from its first use to its end."""

    def __init__(self, directory, real):
        self.fleet = Fleet(directory, real)
        self._guard = FleetGuard(self.fleet)
        try:
            self.fleet.ok("up")
        except BaseException:
            self.end()
            raise

    def end(self):
        """Down, and nothing is left."""
        code, out, err = self.fleet.run("down")
        self._guard.dismiss()
        left = self.fleet.everything()
        shutil.rmtree(self.fleet.paths.run, ignore_errors=True)
        assert code == 0, f"{out}\n{err}"
        assert left == [], left


@pytest.fixture(scope="session")
def standing():
    """Whatever fleet stands; ended with the session."""
    standing = Standing()
    yield standing
    standing.end()


@pytest.fixture(scope="module")
def fleet(standing, tmp_path_factory, request):
    """A fleet of this machine, which files of tests share. Each serves on it what it needs."""
    real = request.config.getoption("--real")
    fleet = standing.get("live", lambda: Live(tmp_path_factory.mktemp("fleet"), real)).fleet
    fleet.real = _is_real(request)
    return fleet


@pytest.fixture(scope="module")
def pair(standing, tmp_path_factory, request):
    """Two Sparks with a fleet that serves nothing; see `pair_fleet`."""
    real = request.config.getoption("--real")
    fleet = standing.get("pair", lambda: Pair(tmp_path_factory.mktemp("pair"), real)).fleet
    fleet.real = _is_real(request)
    yield fleet
    if not standing.has("pair"):
        return  # a later test of the same file has had another one
    try:
        fleet.clear()
    except BaseException:
        standing.abandon()
        raise


@pytest.fixture(autouse=True)
def _engines(request):
    """A test that is marked `any_engine` has a fake engine also in a file whose others have real ones."""
    if "standing" in request.fixturenames:
        request.getfixturevalue("standing").choose_engines(_is_real(request))


def _is_real(request):
    """True if engines are real for a file of tests, or for one test."""
    return request.config.getoption("--real") and request.node.get_closest_marker("any_engine") is None
