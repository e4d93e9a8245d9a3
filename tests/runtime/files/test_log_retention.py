import os
import shutil

from sparkfleet.runtime.files import log_retention
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.log_retention import KEPT_GONE, prune


def test_the_newest_generations_of_each_rank_are_kept_and_nothing_else_is_touched(tmp_path):
    paths = FleetPaths(tmp_path)
    paths.logs.mkdir()
    for generation in (1, 2, 9, 10, 11):
        for rank in (0, 1):
            slug = f"home-1_a_b_g{generation}_0_{rank}"
            paths.rank_log(slug).write_text("x")
            paths.rank_files(slug).mkdir(parents=True)
    (paths.logs / "home-1_a_b_g1_0_0.log.1").write_text("x")
    (paths.logs / "home-1_other_g1_0_0.log").write_text("x")
    (paths.logs / "boot.log").write_text("x")
    prune(paths)
    assert sorted(path.name for path in paths.logs.iterdir()) == sorted(
        [
            *(f"home-1_a_b_g{generation}_0_{rank}.log" for generation in (9, 10, 11) for rank in (0, 1)),
            "home-1_other_g1_0_0.log",
            "boot.log",
        ]
    )
    assert len(list((tmp_path / "ranks").iterdir())) == 6
    assert prune(paths) == ()


def test_a_group_that_runs_under_the_name_of_an_old_generation_keeps_its_files(tmp_path):
    """Others of its deployment were started since: its log was removed, and the files that its engine began with."""
    paths = FleetPaths(tmp_path)
    paths.logs.mkdir()
    slugs = [f"{paths.label}_a_b_g{generation}_0_0" for generation in (1, 2, 3, 4, 5)]
    for slug in slugs:
        paths.rank_log(slug).write_text("x")
        paths.rank_files(slug).mkdir(parents=True)
    removed = prune(paths, [("a_b", 1, 0), ("a_b", 2, 1), ("a", 2, 0)])
    assert set(removed) == {paths.rank_log(slugs[1]), paths.rank_files(slugs[1])}


def test_without_any_logs_there_is_nothing_to_do(tmp_path):
    assert prune(FleetPaths(tmp_path)) == ()


def deployed(paths, name, at, generations=(1, 2)):
    """Files of a deployment that changed last at this time."""
    kernels = paths.kernels / name / "image"
    kernels.mkdir(parents=True)
    (kernels / "compiled").write_text("x")
    made = [kernels, kernels.parent]
    for generation in generations:
        slug = f"{paths.label}_{name}_g{generation}_0_0"
        paths.rank_files(slug).mkdir(parents=True)
        paths.rank_log(slug).write_text("x")
        made += [paths.rank_files(slug), paths.rank_log(slug)]
    for path in made:
        os.utime(path, (at, at))


def named(paths):
    """Names of deployments that have a log, a directory of a rank, or compiled kernels."""
    slugs = [path.name for path in (*paths.logs.iterdir(), *paths.ranks.iterdir())]
    return [
        {slug.removeprefix(f"{paths.label}_").partition("_g")[0] for slug in slugs},
        {path.name for path in paths.kernels.iterdir()},
    ]


def test_of_deployments_that_are_gone_the_last_ones_keep_their_files(tmp_path):
    """200 names left 1,800 logs, 17.6 GiB, and as many caches of compiled kernels."""
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    deployed(paths, "runs_on", 1.0)
    for n in range(KEPT_GONE + 3):
        deployed(paths, f"try-{n}", 100.0 + n)
    deployed(paths, "just-started", 1e12)
    (paths.logs / "boot.log").write_text("x")
    left = {"runs_on", "just-started", *(f"try-{n}" for n in range(4, KEPT_GONE + 3))}
    removed = prune(paths, [("runs_on", 2, 0)])
    assert removed
    assert named(paths) == [{*left, "boot.log"}, left]
    assert prune(paths, [("runs_on", 2, 0)]) == ()


def test_while_nothing_is_to_run_no_deployment_counts_as_gone(tmp_path):
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    for n in range(KEPT_GONE + 3):
        deployed(paths, f"try-{n}", 100.0 + n)
    assert prune(paths, []) == ()


def test_one_that_is_started_again_while_the_others_are_removed_keeps_its_files(tmp_path, monkeypatch):
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    for n in range(KEPT_GONE + 2):
        deployed(paths, f"try-{n}", 100.0 + n)
    remove = log_retention._remove

    def starts(path):
        os.utime(paths.kernels / "try-0" / "image")
        remove(path)

    monkeypatch.setattr(log_retention, "_remove", starts)
    prune(paths, [("other", 1, 0)])
    assert (paths.kernels / "try-0" / "image" / "compiled").exists()
    assert not (paths.kernels / "try-1").exists()


def test_what_cannot_be_removed_drives_out_no_files_of_others(tmp_path, monkeypatch):
    """Kernels that a container compiled are root's: a part of theirs went, and made them the newest at each sweep."""
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    for n in range(KEPT_GONE + 2):
        deployed(paths, f"try-{n}", 100.0 + n)
        (paths.kernels / f"try-{n}" / "empty").mkdir()
        os.utime(paths.kernels / f"try-{n}", (100.0 + n, 100.0 + n))
        os.utime(paths.kernels / f"try-{n}" / "empty", (100.0 + n, 100.0 + n))
    remove = log_retention._remove

    def roots(path):
        if paths.kernels in path.parents:
            shutil.rmtree(path / "empty", ignore_errors=True)
        else:
            remove(path)

    monkeypatch.setattr(log_retention, "_remove", roots)
    for _ in range(3):
        removed = prune(paths, [("other", 1, 0)])
        assert not any(paths.kernels in path.parents for path in removed if path.name != "empty")
    logs, kernels = named(paths)
    assert logs == {f"try-{n}" for n in range(2, KEPT_GONE + 2)}
    assert len(kernels) == KEPT_GONE + 2
