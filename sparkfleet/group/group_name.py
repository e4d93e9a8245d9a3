"""The key of a group and its name: `<deployment>/g<generation>/<replica>`."""

from __future__ import annotations

import re
from functools import cached_property

from sparkfleet.errors import ControlError
from sparkfleet.specs.fields import quote
from sparkfleet.values import Value

GroupKey = tuple[str, int, int]
"""A group: its deployment's name, the generation that first started it, and its index in that."""


class GroupValue(Value):
    """A value that belongs to one group."""

    deployment: str
    generation: int
    replica: int = 0
    """Index of the group in its deployment, from 0, in the order of the plan."""

    @cached_property
    def group(self) -> GroupKey:
        """The key."""
        return self.deployment, self.generation, self.replica


class NamedGroupValue(GroupValue):
    """A value that has the name of its group."""

    @property
    def name(self) -> str:
        """The group's name."""
        return name_of(self.group)


def name_of(group: GroupKey) -> str:
    """The group's name."""
    return "{}/g{}/{}".format(*group)


def short_name(group: GroupKey) -> str:
    """The group's name within its deployment: `g<generation>/<replica>`."""
    return "g{}/{}".format(*group[1:])


def required_group(name: str) -> GroupKey:
    """The group of this name. Raises ControlError if it is none."""
    found = re.fullmatch(r"([a-z0-9][a-z0-9._-]{0,62})/g([0-9]{1,9})/([0-9]{1,5})", name)
    if found is None:
        raise ControlError(
            f"{quote(name)} is no group's name.", do="Groups are named DEPLOYMENT/gN/N: tiny/g1/0."
        )
    return found[1], int(found[2]), int(found[3])
