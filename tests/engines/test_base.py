from sparkfleet.engines.base import Mount, cache_mounts, checkpoint_mounts, with_users


def test_the_users_flag_replaces_ours_and_comes_last():
    ours = ("--max-model-len", "512", "--enforce-eager", "--port", "1")
    assert with_users(ours, ("--max-model-len=99",)) == (
        "--enforce-eager",
        "--port",
        "1",
        "--max-model-len=99",
    )


def test_a_flag_and_its_opposite_are_one():
    assert with_users(("--enforce-eager", "--port", "1"), ("--no-enforce-eager",)) == (
        "--port", "1", "--no-enforce-eager"
    )  # fmt: skip


def test_underscores_are_dashes():
    assert with_users(("--max_batch_size", "1"), ("--max-batch-size", "4")) == ("--max-batch-size", "4")


def test_words_that_belong_to_no_flag_stay():
    assert with_users(("serve", "/m", "--port", "1"), ("--x",)) == ("serve", "/m", "--port", "1", "--x")


def test_checkpoints_are_read_only_and_at_the_same_path(context):
    where = context(draft_path="/models/d", cache_dir="/kernels")
    assert checkpoint_mounts(where) == (
        Mount(source="/models/m", target="/models/m"),
        Mount(source="/models/d", target="/models/d"),
    )
    assert cache_mounts(where) == (Mount(source="/kernels", target="/kernels", read_only=False),)
    assert cache_mounts(context()) == ()


def test_a_cache_of_links_is_seen_whole(context):
    where = context(
        model_path="/hub/models--o--m/snapshots/c", roots=("/hub/models--o--m", "/hub/models--o--m")
    )
    assert checkpoint_mounts(where) == (Mount(source="/hub/models--o--m", target="/hub/models--o--m"),)
