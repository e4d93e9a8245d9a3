"""NVIDIA's launch lines against those of plans for the same checkpoint, Sparks, context and concurrency."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.engines.launch_recipes import RECIPES, Difference, LaunchRecipe

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
INVENTORIES = {1: "inventory-one-spark", 2: "inventory-two-sparks", 4: "inventory-eight-on-a-switch"}
BOOK = RECIPES.content
MOST_CONTEXT = 262144
"""Of a recipe that leaves it to the engine."""
NO_PLAN = {"plan": "a plan"}
DRAFTS_OF_VLLM = {"dflash2": "dflash"}
"""Method → vLLM's word in --speculative-config, if it has another one."""

_found: dict[str, dict[str, str]] = {}


@pytest.fixture
def differing(sparkfleet, tmp_path, monkeypatch):
    """The recipe's settings that rank 0 of a plan for it lacks, or has otherwise."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def launched(recipe: LaunchRecipe) -> dict[str, str] | None:
        file = tmp_path / "recipe.yaml"
        lines = [
            "name: recipe", f"model: {recipe.model}", "engine: vllm", f"parallel: {{tp: {recipe.nodes}}}",
            f"context: {recipe.context or MOST_CONTEXT}", f"concurrency: {recipe.concurrency or 8}",
            "license: any",
        ]  # fmt: skip
        file.write_text("\n".join(lines))
        inventory = EXAMPLES / f"{INVENTORIES[recipe.nodes]}.yaml"
        code, out, _ = sparkfleet(
            "apply", file, "--dry-run", "--json", "--assume", "dgx-spark", "-i", inventory
        )
        if code != 0:
            return None
        (group,) = json.loads(out)["deployments"][0]["groups"]
        rank = group["ranks"][0]
        env = dict(one.split("=", 1) for one in rank["argv"] if "=" in one and not one.startswith("-"))
        return settings_of(group["image"], rank["argv"], env | rank["env"])

    def differing(recipe: LaunchRecipe) -> dict[str, str]:
        if recipe.id not in _found:
            ours = launched(recipe)
            theirs = settings_in(recipe)
            _found[recipe.id] = (
                NO_PLAN if ours is None else {k: v for k, v in theirs.items() if not same(k, v, ours)}
            )
        return _found[recipe.id]

    return differing


@pytest.mark.parametrize("recipe", BOOK.recipes, ids=lambda recipe: recipe.id)
def test_a_plan_launches_as_nvidia_does_or_the_reason_is_listed(differing, recipe):
    unexplained = {
        setting: value for setting, value in differing(recipe).items() if not explained(recipe.id, setting)
    }
    assert unexplained == {}


def test_every_listed_difference_is_one(differing):
    """A reason for what plans no longer do would hide the next difference."""
    shown = {(one.id, setting) for one in BOOK.recipes for setting in differing(one)}
    for one in BOOK.differences:
        stale = [recipe for recipe in one.recipes if (recipe, one.setting) not in shown]
        assert stale == [], f"{one.setting}: {one.reason}"
        assert one.recipes or any(setting == one.setting for _, setting in shown), one.setting


def test_what_the_recipes_show_to_be_better_is_in_the_plan(differing):
    """The kernels of the image that NVIDIA names; before, Marlin was required on it, for releases that it is none of."""
    (flash_next,) = (one for one in BOOK.recipes if one.id == "qwen3.8-flash-next-2")
    taken = settings_in(flash_next).keys() - differing(flash_next).keys()
    assert {"image", "--moe-backend", "--linear-backend", "--load-format", "--gdn-decode-kernel"} <= taken
    assert {
        "speculation.method",
        "speculation.num_speculative_tokens",
        "$VLLM_ENABLE_ROCE_ALLREDUCE",
    } <= taken
    assert {"--tool-call-parser", "--reasoning-parser"} <= taken


def same(setting: str, theirs: str, ours: dict[str, str]) -> bool:
    """True if both launch alike. A draft is a path of the same name; the letter case of a backend is ignored."""
    value = ours.get(setting)
    if value is None:
        return False
    if setting == "speculation.model":
        return theirs.replace("/", "--") in value
    return value.lower() == theirs.lower()


def test_a_difference_of_an_unknown_recipe_is_refused():
    wrong = RECIPES.text.replace("recipes: [deepseek-v4-flash-2]", "recipes: [deepseek-v9-2]", 1)
    with pytest.raises(SpecError, match="deepseek-v9-2 is no recipe"):
        RECIPES.read(wrong)


def settings_in(recipe: LaunchRecipe) -> dict[str, str]:
    """Every setting by its name: a flag, a variable as `$NAME`, a key of the speculation as `speculation.key`."""
    found = {"image": recipe.image, "--gpu-memory-utilization": f"{recipe.memory:g}"}
    found |= {flag.partition("=")[0]: flag.partition("=")[2] for flag in recipe.flags}
    found |= {f"${name}": value for name, value in recipe.env}
    if recipe.method == "none":
        return found | {"speculation.method": "none"}
    found["speculation.method"] = DRAFTS_OF_VLLM.get(recipe.method, recipe.method)
    found["speculation.num_speculative_tokens"] = str(recipe.tokens)
    if recipe.draft:
        found["speculation.model"] = recipe.draft
    return found | {f"speculation.{key}": str(value) for key, value in recipe.speculation}


def settings_of(image: str, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The settings of a vLLM command line, by the names of `settings_in`."""
    found = {"image": image.partition("@")[0], "speculation.method": "none"}
    found |= {f"${name}": value for name, value in env.items()}
    for flag, value in flags_in(argv):
        if flag == "--speculative-config":
            found |= {f"speculation.{key}": str(one) for key, one in json.loads(value).items()}
        else:
            found[flag] = value
    return found


def flags_in(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with its value; "" if it has none."""
    for at, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        flag, given, value = word.partition("=")
        following = argv[at + 1] if at + 1 < len(argv) else ""
        yield flag, value if given else "" if following.startswith("--") else following


def explained(recipe: str, setting: str) -> tuple[Difference, ...]:
    """The entries that explain a difference."""
    return tuple(
        one
        for one in BOOK.differences
        if one.setting == setting and (not one.recipes or recipe in one.recipes)
    )
