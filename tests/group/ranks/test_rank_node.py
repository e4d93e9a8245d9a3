"""Facts of a node that a rank needs. Its command is tested in `test_rank_spec.py`."""

import os
from pathlib import Path

import pytest
from control_values import plan
from group_world import group_launch

from sparkfleet.errors import Cause, NodeError
from sparkfleet.group.group_launch import GroupLaunch, RankPlacement
from sparkfleet.group.ranks import rank_node
from sparkfleet.group.ranks.rank_node import prepare_cache
from sparkfleet.group.ranks.rank_spec import cache_dir
from sparkfleet.runtime.files.fleet_paths import FleetPaths


async def test_a_tool_that_does_not_find_the_staged_image_for_now_is_not_taken_for_one_without_it(
    monkeypatch,
):
    asked = []

    async def tool_for(image):
        asked.append(image)
        raise NodeError("did not answer", because=Cause.TRANSIENT if len(asked) == 1 else Cause.MISSING)

    monkeypatch.setattr(rank_node, "tool_for", tool_for)
    image = "x.example/engine@sha256:" + "0" * 64
    launch = group_launch()
    candidate = launch.candidate.model_copy(update={"runtime": "container", "image": image})
    with pytest.raises(NodeError) as caught:
        await rank_node.container_of(launch.model_copy(update={"candidate": candidate}))
    assert caught.value.because is Cause.TRANSIENT
    assert len(asked) == 1


def container_order(image="i"):
    candidate = plan().groups[0].choice.candidate.model_copy(update={"runtime": "container", "image": image})
    return GroupLaunch(
        deployment="tiny", generation=1, candidate=candidate, placements=(RankPlacement(node="a"),)
    )


def test_caches_of_older_images_are_removed(tmp_path):
    paths = FleetPaths(tmp_path)
    for number in range(6):
        launch = container_order(f"i{number}")
        prepare_cache(paths, launch)
        mine = Path(cache_dir(str(paths.kernels), "tiny", launch.candidate))
        os.utime(mine, (number, number))
        (mine / "code").touch()
    assert len(list((paths.kernels / "tiny").iterdir())) == 4
    assert (mine / "code").exists()


def test_a_cache_that_another_start_has_just_removed_fails_no_start(tmp_path, monkeypatch):
    """Two groups of a deployment on one node start at once, and both remove what is old."""
    paths = FleetPaths(tmp_path)
    (paths.kernels / "tiny").mkdir(parents=True)
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: [*listed(path), path / "gone"])
    prepare_cache(paths, container_order())


def test_a_cache_that_cannot_be_made_is_an_error_in_words(tmp_path):
    paths = FleetPaths(tmp_path)
    paths.kernels.parent.mkdir(parents=True, exist_ok=True)
    paths.kernels.touch()
    with pytest.raises(NodeError, match="compiled kernels cannot be made"):
        prepare_cache(paths, container_order())
