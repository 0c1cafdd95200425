"""Overrides to checked objects: spelling, trust, types, and errors that say what was meant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hushbot import composition
from hushbot.errors import ConfigError, DataError
from hushbot.recipes.turn_level import TurnLevel
from hushbot.run import RunDirectory
from hushbot.training.fit import TrainerSettings


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """A component with every kind of field, for the checks below."""

    rate: float
    names: tuple[str, ...] = ()
    inner: TurnLevel | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate={self.rate} is outside [0, 1]")


def node(**arguments: object) -> dict[str, object]:
    return {"_target_": f"{__name__}.Knobs", **arguments}


@pytest.mark.parametrize(
    ("override", "spelled"),
    [
        ("recipe=a+b", "recipe=[a,b]"),
        ("recipe=turn_level", "recipe=[turn_level]"),
        ("attack=membership", "attack=[membership]"),
        ("recipe=[a,b]", "recipe=[a,b]"),
        ("data=sgd", "data=sgd"),
        ("recipe.turn_level.x=1", "recipe.turn_level.x=1"),
    ],
)
def test_stacks_are_spelled_with_plus(override: str, spelled: str) -> None:
    assert composition.spell_stack(override) == spelled


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("recipe=value_copy+value_copy", r"recipe=value_copy\+value_copy names value_copy more than once"),
        ("recipe=[dialogue_level, dialogue_level]", "names dialogue_level more than once"),
        ("attack=membership+membership", "names membership more than once"),
        ("recipe=value_copy+", r"recipe=value_copy\+: a name is missing"),
        ("recipe=+value_copy", "a name is missing"),
        ("recipe=", "a name is missing"),
        ("recipe=[]", r"recipe=\[\]: `hushbot train` needs at least one"),
        ("recipe=null", "a name is missing"),
        ("~recipe.turn_level", r"recipe=\[\]: `hushbot train` needs at least one"),
    ],
)
def test_a_stack_names_each_option_once_and_none_is_missing(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        composition.compose("train", [override])


def test_a_bot_may_be_trained_without_attacks_and_an_audit_has_some() -> None:
    config = composition.compose("train", ["attack=[]"])
    assert config["attack"] == {}
    assert composition.find_problems(config) == []
    with pytest.raises(ConfigError, match=r"attack=\[\]: `hushbot audit` needs at least one"):
        composition.compose("audit", ["attack=[]"])


def test_settings_of_an_option_that_was_not_chosen_are_told() -> None:
    config = composition.compose("compare", ["experiment=demo", "attack=membership"])
    (problem,) = composition.find_problems(config)
    settings = config["attack"]["untargeted_extraction"]
    assert problem.startswith(f"attack.untargeted_extraction={settings!r} is no component")
    assert "choose the option with attack=" in problem
    assert composition.find_problems({"recipe": 3}) == [
        "recipe=3 must be a mapping of components; choose options with recipe=NAME"
    ]


def test_composed_configuration_is_plain_and_complete() -> None:
    config = composition.compose("train", ["seed=3", "attack=membership"])
    assert config["seed"] == 3
    assert list(config["attack"]) == ["membership"]
    assert config["recipe"] == {"turn_level": {"_target_": "hushbot.recipes.turn_level.TurnLevel"}}


def test_base_trains_nothing() -> None:
    assert composition.compose("train", ["recipe=base"])["fit"] is False
    assert composition.compose("train", [])["fit"] is True


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("recipe=turn_levle", "did you mean `recipe/turn_level`"),
        ("trainer.max_epoch=3", "did you mean `trainer.max_epochs`"),
        ("recipes=turn_level", "did you mean `recipe`"),
        ("seed", "missing EQUAL"),
    ],
)
def test_errors_say_what_was_meant(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        composition.compose("train", [override])
    assert "append" not in str(caught.value)


def test_missing_path_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data\.path"):
        composition.compose("train", ["data=multiwoz21"])


def test_all_problems_are_found_at_once() -> None:
    config = {
        "a": {"_target_": "os.system", "command": "true"},
        "b": {"_target_": "hushbot.recipes.turn_level.Missing"},
        "c": [node(rate="fast", colour="red")],
        "d": node(names=["x"]),
    }
    problems = composition.find_problems(config, trust=[__name__.split(".")[0], __name__])
    assert len(problems) == 5
    text = "\n".join(problems)
    for said in (
        "--trust os",
        "b: _target_=",
        "c[0].colour is not a setting",
        "c[0].rate='fast'",
        "d.rate is missing",
    ):
        assert said in text


def test_untrusted_target_is_refused_without_importing_it() -> None:
    (problem,) = composition.find_problems({"x": {"_target_": "no_such_package.Thing"}})
    assert "lies outside hushbot" in problem
    assert composition.find_problems({"x": {"_target_": "hushbotter.Thing"}})[0].endswith("`--trust hushbotter`")


@pytest.mark.parametrize(
    "target",
    [
        "hushbot.cli.main",  # can be told to trust anything
        "hushbot.composition.build",
        "hushbot.storage.write_atomically",
        "hushbot.launching.grid.Path",  # a class, but not ours
        "hushbot.corpora.split.sha256",
    ],
)
def test_what_is_no_component_of_ours_is_refused(target: str) -> None:
    (problem,) = composition.find_problems({"x": {"_target_": target}})
    assert problem.startswith(f"x: _target_={target!r} is no component")


def test_checking_runs_nothing_that_is_not_allowed(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    evil = {"_target_": "os.mkdir", "path": str(trap)}
    inner = {"_target_": f"{__name__}.Knobs", "rate": 1, "inner": evil}
    shadowed = {"a.b": inner, "a": {"b": {"inner": node(rate=0)}}}  # two nodes under one dotted key
    for config in ({"x": inner}, shadowed):
        problems = composition.find_problems(config, [__name__])
        assert any("'os.mkdir' lies outside hushbot" in problem for problem in problems)
    assert not trap.exists()


def test_build_converts_and_nests() -> None:
    built = composition.build(
        node(rate=1, names=["a"], inner={"_target_": "hushbot.recipes.turn_level.TurnLevel"}), "k"
    )
    assert built == Knobs(rate=1.0, names=("a",), inner=TurnLevel())


def test_build_names_the_key_of_a_value_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"k: rate=2.0 is outside"):
        composition.build(node(rate=2), "k")


def test_what_only_moves_a_run_does_not_change_its_hash() -> None:
    first = composition.decisive(composition.compose("train", ["runs_dir=a"]))
    assert first == composition.decisive(composition.compose("train", ["runs_dir=b"]))
    assert first != composition.decisive(composition.compose("train", ["seed=1"]))


def test_own_groups_come_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text("mine:\n  _target_: my_package.Mine\n")
    config = composition.compose("train", ["recipe=turn_level+mine"], config_dir=tmp_path)
    assert list(config["recipe"]) == ["turn_level", "mine"]


def test_plain_settings_are_checked_strictly() -> None:
    config = composition.compose("compare", ["seeds=[0,1]", "run=here"])
    assert composition.plain_problems(config) == []
    wrong = config | {
        "seed": True,
        "seeds": [0, -1],
        "arms": "base",
        "fit": 1,
        "reveal": "no",
        "run": 7,
    }
    problems = composition.plain_problems(wrong)
    assert [problem.split(": ")[0] for problem in problems] == [
        "seed=True",
        "seeds.1=-1",
        "arms='base'",
        "fit=1",
        "reveal='no'",
        "run=7",
    ]
    assert composition.find_problems(wrong)[: len(problems)] == problems


def test_settings_without_effect_are_not_hashed_and_may_differ_in_a_resumed_run(tmp_path: Path) -> None:
    first, other, noisier = (
        composition.compose("train", ["recipe=dp_sgd", *more])
        for more in ([], ["recipe.dp_sgd.chunk_tokens=64", "recipe.dp_sgd.engine=loop"], ["recipe.dp_sgd.delta=0.001"])
    )
    free = composition.free_keys(first)
    assert {key for key in free if key.startswith("recipe")} == {"recipe.dp_sgd.engine", "recipe.dp_sgd.chunk_tokens"}
    assert composition.decisive(first) == composition.decisive(other) != composition.decisive(noisier)
    RunDirectory(tmp_path).create(first, {}, free_keys=free).close()
    RunDirectory(tmp_path).create(other, {}, free_keys=free).close()
    assert RunDirectory(tmp_path).config == first  # the file keeps what it has
    with pytest.raises(DataError, match=r"recipe\.dp_sgd\.delta is None there and 0\.001 now"):
        RunDirectory(tmp_path).create(noisier, {}, free_keys=free)


def test_what_the_trainer_says_has_no_effect_may_differ_in_a_resumed_run(tmp_path: Path) -> None:
    def composed(*overrides: str) -> dict[str, Any]:
        return composition.compose("train", [f"trainer.{override}" for override in overrides])

    first = composed()
    other = composed("progress_bar=false", "keep_checkpoints=true", "checkpoint_every_n_steps=5")
    free = composition.free_keys(first)
    assert set(TrainerSettings.no_effect) < set(first["trainer"])
    assert {key for key in free if key.startswith("trainer")} == {f"trainer.{key}" for key in TrainerSettings.no_effect}
    assert composition.decisive(first) == composition.decisive(other) != composition.decisive(composed("max_epochs=3"))
    RunDirectory(tmp_path).create(first, {}, free_keys=free).close()
    RunDirectory(tmp_path).create(other, {}, free_keys=free).close()
    with pytest.raises(DataError, match=r"trainer\.num_threads is None there and 2 now"):
        RunDirectory(tmp_path).create(composed("num_threads=2"), {}, free_keys=free)


def test_a_watch_that_never_looks_is_not_hashed_and_one_that_does_is() -> None:
    off, spelled, on = (
        composition.compose("train", overrides)
        for overrides in ([], ["watch.documents=7"], ["watch.every=2", "watch.documents=7"])
    )
    before = {key: value for key, value in off.items() if key != "watch"}  # as it was before there was one
    assert composition.decisive(off) == composition.decisive(spelled) == composition.decisive(before)
    assert composition.decisive(on) != composition.decisive(off)
    assert composition.decisive({**on, "fit": False}) == composition.decisive({**off, "fit": False})


@pytest.mark.parametrize("node", [None, 3, {}, {"_target_": "os.system"}, {"_target_": "hushbot.recipes.no.Such"}])
def test_a_recipe_that_is_none_has_no_free_settings(node: object) -> None:
    assert composition.free_keys({"recipe": {"x": node}, "trainer": node}) == composition.UNHASHED_KEYS
