from sparkfleet.fleet.plan import missing_keys
from sparkfleet.specs.deployment import Deployment


def deployment(*keys, name="tiny"):
    return Deployment(name=name, model="builtin:tiny", keys=keys or None)


def test_keys_that_nobody_has_are_named_with_the_command_that_makes_one():
    assert missing_keys(
        [deployment("ux", "me"), deployment("me", name="b"), deployment(name="c")], ["me"]
    ) == ("warning: tiny: `keys:` names ux, which nobody has. `sparkfleet keys create ux` makes it.",)
    assert missing_keys([deployment()], []) == ()
