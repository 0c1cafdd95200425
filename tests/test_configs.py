"""Every configuration file composes, instantiates its targets' signatures, and is what its name says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from hushbot.composition import compose, config_files, config_root, find_problems

OPTIONS = [path for path in config_files() if path.parent != config_root()]
N_OPTIONS = 48
PATH_NEEDED = "data.path=somewhere"
COMPARE_GROUPS = ("experiment", "launcher")


def test_none_is_overlooked() -> None:
    on_disk = [path for path in config_root().glob("**/*") if path.suffix in {".yaml", ".yml"}]
    assert len(OPTIONS) + 5 == len(on_disk)
    assert len(OPTIONS) == N_OPTIONS, "a new option: count it here, so that none can be lost"


def overrides_for(path: Path) -> list[str]:
    group, option = path.parent.name, path.stem
    text = path.read_text(encoding="utf-8")
    needed = [f"{group}.{line.split(':')[0].strip()}=somewhere" for line in text.splitlines() if line.endswith(" ???")]
    if "override /data: multiwoz" in text:
        needed.append(PATH_NEEDED)
    return [f"{group}={option}", *needed]


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_option_composes_and_its_settings_exist(path: Path) -> None:
    verb = "compare" if path.parent.name in COMPARE_GROUPS else "train"
    config = compose(verb, overrides_for(path))
    assert find_problems(config) == []


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_option_is_the_one_that_was_chosen(path: Path) -> None:
    group = path.parent.name
    if group == "experiment":
        pytest.skip("an experiment sets other groups; the demo's arms are checked end to end")
    config = compose("compare" if group in COMPARE_GROUPS else "train", overrides_for(path))
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if path.read_text(encoding="utf-8").startswith("# @package _global_"):
        assert {key: config[key] for key in content} == content
    else:
        own = {key: value for key, value in content.items() if value != "???" and key != "defaults"}
        assert {key: config[group][key] for key in own} == own


@pytest.mark.parametrize("path", config_files(), ids=lambda path: path.stem)
def test_file_opens_with_what_it_is_and_a_command(path: Path) -> None:
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any("hushbot " in line for line in comments), "the header shows the command that uses it"
    assert not comments[0].lstrip("# ").startswith("hushbot "), "the first comment says what it is"


@pytest.mark.parametrize("group", ["recipe", "attack"])
def test_stackable_options_are_keyed_by_their_name(group: str) -> None:
    for path in (config_root() / group).glob("*.yaml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "fit" not in content:
            assert list(content) == [path.stem]


def commands(page: str) -> list[list[str]]:
    """Return the words of each `hushbot train`, `audit` or `compare` in the shell blocks of a page."""
    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in text.split("```sh\n")[1:]]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [
        shlex.split(line) for line in lines if line.startswith(("hushbot train", "hushbot audit", "hushbot compare"))
    ]


@pytest.mark.parametrize("words", commands("scaling.md"), ids=" ".join)
def test_a_command_of_the_scaling_page_composes(words: list[str]) -> None:
    _, verb, *overrides = words
    assert find_problems(compose(verb, overrides)) == []


def test_the_scaling_page_shows_every_launcher() -> None:
    grids = [words[2:] for words in commands("scaling.md") if words[1] == "compare" and "launcher" in " ".join(words)]
    chosen = {compose("compare", overrides)["launcher"]["_target_"] for overrides in grids}
    assert len(chosen) == len(list((config_root() / "launcher").glob("*.yaml")))
