from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from sparkfleet.errors import FactError, SpecError
from sparkfleet.tiny_models import cache, corpus, recipes


@pytest.fixture
def built(monkeypatch):
    """Replaces training by a file. The list grows with every build."""
    names: list[str] = []

    def train(recipe, directory, on_progress):
        names.append(recipe.name)
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr(cache, "_train", train)
    return names


class TestPath:
    def test_is_below_the_xdg_cache_directory(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.path("tiny").parent == tmp_path / "sparkfleet" / "builtin"

    @pytest.mark.parametrize("value", [None, "", "relative/cache"])
    def test_falls_back_to_the_home_directory(self, monkeypatch, tmp_path, value):
        monkeypatch.setenv("HOME", str(tmp_path))
        if value is None:
            monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache.path("tiny").parent == tmp_path / ".cache" / "sparkfleet" / "builtin"

    def test_without_a_home_says_what_to_set(self, monkeypatch):
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
        with pytest.raises(FactError, match="Set XDG_CACHE_HOME"):
            cache.path("tiny")

    def test_creates_nothing(self, tmp_path):
        cache.path("tiny", tmp_path / "not-there")
        assert not cache.is_built("tiny", tmp_path / "not-there")
        assert list(tmp_path.iterdir()) == []

    def test_names_recipe_and_digest(self, tmp_path):
        assert cache.path("tiny", tmp_path).name == f"tiny-{cache.digest(recipes.TINY)}"

    @pytest.mark.parametrize("function", [cache.path, cache.is_built])
    def test_unknown_recipe(self, function, tmp_path):
        with pytest.raises(SpecError, match='unknown built-in model "huge"'):
            function("huge", tmp_path)


class TestDigest:
    def test_changes_with_the_recipe(self):
        tiny = recipes.TINY
        more = tiny.model_copy(
            update={"budget": tiny.budget.model_copy(update={"steps": tiny.budget.steps + 1})}
        )
        wider = tiny.model_copy(update={"config": {**tiny.config, "hidden_size": 320}})
        assert len({cache.digest(recipe) for recipe in (tiny, more, wider)}) == 3

    @pytest.mark.parametrize("changed", ["chat_template.jinja", "text/spark.txt"])
    def test_changes_with_the_packaged_text(self, monkeypatch, changed):
        before = cache.digest(recipes.TINY)
        shipped = cache._shipped
        monkeypatch.setattr(cache, "_shipped", lambda file: shipped(file) + b"!" * (file == changed))
        assert cache.digest(recipes.TINY) != before

    def test_changes_with_the_builder(self, monkeypatch):
        before = cache.digest(recipes.TINY)
        monkeypatch.setattr(cache, "BUILDER_VERSION", cache.BUILDER_VERSION + 1)
        assert cache.digest(recipes.TINY) != before

    def test_of_a_derived_model_changes_with_its_base(self, monkeypatch):
        before = cache.digest(recipes.CORRUPT)
        other = recipes.TINY.model_copy(update={"vocabulary": 1024})
        monkeypatch.setattr(recipes, "RECIPES", {"tiny": other})
        assert cache.digest(recipes.CORRUPT) != before

    def test_no_two_recipes_share_one(self):
        assert len({cache.digest(recipe) for recipe in recipes.RECIPES.values()}) == len(recipes.RECIPES)

    def test_does_not_change_by_itself(self):
        assert cache.digest(recipes.TINY) == cache.digest(recipes.TINY.model_copy(deep=True))


class TestEnsure:
    def test_builds_once(self, built, tmp_path):
        first = cache.ensure("tiny", cache=tmp_path)
        assert cache.is_built("tiny", tmp_path)
        assert cache.ensure("tiny", cache=tmp_path) == first == cache.path("tiny", tmp_path)
        assert built == ["tiny"]

    def test_builds_again_when_the_recipe_changed(self, built, tmp_path, monkeypatch):
        old = cache.ensure("tiny", cache=tmp_path)
        monkeypatch.setattr(cache, "BUILDER_VERSION", cache.BUILDER_VERSION + 1)
        assert not cache.is_built("tiny", tmp_path)
        assert cache.ensure("tiny", cache=tmp_path) != old
        assert built == ["tiny", "tiny"]

    def test_builds_the_base_of_a_model_first(self, built, tmp_path):
        directory = cache.ensure("tiny-corrupt", cache=tmp_path)
        assert built == ["tiny", "tiny-corrupt"]
        assert directory == cache.path("tiny-corrupt", tmp_path)
        cache.ensure("tiny-eagle3", cache=tmp_path)
        assert built == ["tiny", "tiny-corrupt", "tiny-eagle3"]

    @pytest.mark.parametrize("name", recipes.RECIPES)
    def test_every_recipe_has_a_builder(self, name, tmp_path):
        assert callable(cache._builder(recipes.named(name), tmp_path))

    @pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
    def test_a_failed_build_leaves_nothing(self, monkeypatch, tmp_path, error):
        def fail(recipe, directory, on_progress):
            (directory / "half").write_text("half")
            raise error

        monkeypatch.setattr(cache, "_train", fail)
        with pytest.raises(type(error)):
            cache.ensure("tiny", cache=tmp_path)
        assert not cache.is_built("tiny", tmp_path)
        assert list(tmp_path.glob("*tiny*.unfinished")) == []

    def test_a_full_disk_is_a_clear_error(self, monkeypatch, tmp_path):
        def fail(recipe, directory, on_progress):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(cache, "_train", fail)
        with pytest.raises(FactError, match="No space left on device") as caught:
            cache.ensure("tiny", cache=tmp_path)
        assert "XDG_CACHE_HOME" in caught.value.do

    def test_a_cache_that_is_a_file_is_a_clear_error(self, built, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(FactError, match="cannot be built in"):
            cache.ensure("tiny", cache=tmp_path / "file")
        assert built == []

    def test_missing_libraries_are_named(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "torch", None)
        monkeypatch.delitem(sys.modules, "sparkfleet.tiny_models.training", raising=False)
        monkeypatch.delattr("sparkfleet.tiny_models.training", raising=False)
        with pytest.raises(FactError, match="torch is not installed") as caught:
            cache.ensure("tiny", cache=tmp_path)
        assert "sparkfleet[local]" in caught.value.do
        assert not cache.is_built("tiny", tmp_path)

    def test_others_can_read_the_checkpoint(self, built, tmp_path):
        directory = cache.ensure("tiny", cache=tmp_path)
        assert directory.stat().st_mode & 0o555 == 0o555


class TestManyBuilders:
    def test_a_killed_build_is_cleaned_up(self, builder, built, tmp_path):
        killed = builder()
        assert killed.stdout.readline() == "loading\n"
        assert killed.stdout.readline() == "building\n"
        killed.kill()
        killed.wait()
        (left,) = tmp_path.glob(".*.unfinished")
        assert (left / "half").exists()
        assert not cache.is_built("tiny", tmp_path)

        directory = cache.ensure("tiny", cache=tmp_path)
        assert [file.name for file in directory.iterdir()] == ["config.json"]
        assert list(tmp_path.glob(".*.unfinished")) == []

    def test_remains_of_a_dead_builder_of_another_recipe_are_cleaned_up(self, built, tmp_path):
        left = tmp_path / ".other-0123.unfinished"
        left.mkdir()
        (left / "half").write_text("half")
        cache.ensure("tiny", cache=tmp_path)
        assert not left.exists()

    def test_a_build_that_another_builder_finishes_meanwhile_is_kept(self, built, tmp_path, monkeypatch):
        left = tmp_path / ".other-0123.unfinished"
        left.mkdir()
        flock = cache.fcntl.flock

        def finished(handle, how):
            if handle.name.endswith("other-0123.lock") and left.exists():
                left.rename(tmp_path / "other-0123")
            flock(handle, how)

        monkeypatch.setattr(cache.fcntl, "flock", finished)
        cache.ensure("tiny", cache=tmp_path)
        assert (tmp_path / "other-0123").exists()

    def test_files_of_a_live_builder_of_another_recipe_are_kept(self, builder, built, tmp_path, monkeypatch):
        live = builder()
        assert [live.stdout.readline(), live.stdout.readline()] == ["loading\n", "building\n"]
        monkeypatch.setattr(cache, "BUILDER_VERSION", cache.BUILDER_VERSION + 1)
        mine = cache.ensure("tiny", cache=tmp_path)
        theirs, _ = live.communicate("\n", timeout=30)
        assert theirs.strip() != str(mine)
        assert (Path(theirs.strip()) / "half").exists()

    def test_a_second_builder_waits_reports_it_and_finds_the_model_built(self, builder, tmp_path):
        first = builder()
        assert [first.stdout.readline(), first.stdout.readline()] == ["loading\n", "building\n"]
        second = builder()
        assert second.stdout.readline() == "waiting\n"
        one, _ = first.communicate("\n", timeout=30)
        other, _ = second.communicate("", timeout=30)
        assert one == other == f"{cache.path('tiny', tmp_path)}\n", "the second built nothing"
        assert {file.name for file in Path(one.strip()).iterdir()} == {"half", "whole", cache.FACTS}


def test_every_recipe_ships_its_text():
    for recipe in recipes.RECIPES.values():
        for file in recipes.trained(getattr(recipe, "of", recipe.name)).text:
            assert corpus.read(file)
