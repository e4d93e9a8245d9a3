from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.log_retention import prune


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
