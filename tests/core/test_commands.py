"""The wiring of the commands: where runs go, which cells a comparison has, what `ls` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hushbot.commands import audit, compare, ls, train, validate
from hushbot.commands import cells as making_cells
from hushbot.composition import compose, config_files, config_root
from hushbot.errors import AuditError, ConfigError, DataError
from hushbot.evaluation import making, suite
from hushbot.evaluation import report as pages
from hushbot.launching import Cell, LocalLauncher
from hushbot.run import RunDirectory
from hushbot.types import AuditReport


def cells(*overrides: str) -> list[Cell]:
    return list(making_cells.make_cells(compose("compare", overrides), overrides, (), None))


@pytest.fixture
def no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a cell is started."""
    monkeypatch.setattr(LocalLauncher, "launch", lambda *_: pytest.fail("a cell was started"))


# where a run goes


def test_a_run_is_named_after_recipe_seed_and_configuration() -> None:
    path = train.run_path(compose("train", ["seed=3", "runs_dir=somewhere"]))
    assert path.parent == Path("somewhere")
    name, seed, hashed = path.name.rsplit("-", 2)
    assert (name, seed) == ("turn_level", "s3")
    assert len(hashed) == 8
    assert train.run_path(compose("train", ["recipe=base"])).name.startswith("base-s0-")
    assert train.run_path(compose("train", ["recipe=base+value_copy"])).name.startswith("base+value_copy-s0-")
    assert train.run_path(compose("train", ["fit=false", "recipe=value_copy"])).name.startswith("base+value_copy-s0-")


def test_a_run_keeps_its_name_wherever_and_however_it_is_run() -> None:
    name = train.run_path(compose("train", [])).name
    assert train.run_path(compose("train", ["runs_dir=elsewhere"])).name == name
    for launcher in (["launcher.workers=7"], ["launcher=ray", "launcher.address=auto"], ["launcher=slurm"]):
        assert train.run_path(compose("compare", [*launcher, "arms=[base]", "seeds=[0,1]"])).name == name
    assert train.run_path(compose("train", ["trainer.max_epochs=3"])).name != name
    assert train.run_path(compose("train", ["reveal=true"])).name != name


def test_the_directory_that_was_asked_for_wins() -> None:
    assert train.run_path(compose("train", ["run=a/b"])) == Path("a/b")


def test_an_audit_is_named_after_the_bot_and_the_attacks_wherever_it_lies() -> None:
    config = compose("audit", ["run=one"]) | {"audited": {"id": "x", "weights_sha256": "1"}}
    path = audit.out_path(config)
    assert path.name.startswith("audit-run-")
    assert audit.out_path(config | {"run": "moved/one"}) == path
    assert audit.out_path(config | {"audited": {"id": "x", "weights_sha256": "2"}}) != path
    assert audit.out_path(config | {"reveal": True}) != path
    assert audit.out_path(config | {"out": "here"}) == Path("here")


def test_the_audit_of_a_folder_that_was_trained_again_is_another_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[Path] = []

    def note(config: Any, audited: Any, path: Path, trust: Any) -> AuditReport:
        paths.append(path)
        raise AuditError("far enough")

    monkeypatch.setattr(audit, "attack", note)
    for content in (b"first", b"first", b"trained again"):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(AuditError, match="far enough"):
            audit.main(["target=hf", f"model={tmp_path}"])
    assert paths[0] == paths[1] != paths[2]


# the cells of a comparison


def test_one_cell_per_arm_and_seed() -> None:
    found = cells("arms=[base,turn_level]", "seeds=[0,1]", "runs_dir=r")
    assert [cell.name for cell in found] == ["base seed 0", "base seed 1", "turn_level seed 0", "turn_level seed 1"]
    assert [(cell.config["fit"], cell.config["seed"]) for cell in found] == [
        (False, 0), (False, 1), (True, 0), (True, 1),
    ]  # fmt: skip
    assert len({cell.path for cell in found}) == 4
    assert {cell.path.parent for cell in found} == {Path("r")}


def test_a_cell_is_the_run_that_train_would_make() -> None:
    (cell,) = cells("arms=[turn_level]", "seeds=[5]", "trainer.max_epochs=2")
    assert cell.path == train.run_path(compose("train", ["recipe=turn_level", "seed=5", "trainer.max_epochs=2"]))


def test_overrides_reach_every_cell() -> None:
    found = cells("arms=[base,turn_level]", "utility.max_dialogues=3", "attack=membership")
    assert [cell.config["utility"]["max_dialogues"] for cell in found] == [3, 3]
    assert [list(cell.config["attack"]) for cell in found] == [["membership"], ["membership"]]


def test_a_guarded_base_is_an_arm_of_its_own() -> None:
    found = cells("arms=[base,base+value_copy,base+value_copy+instruction_guard]")
    assert [cell.path.name.split("-")[0] for cell in found] == [
        "base",
        "base+value_copy",
        "base+value_copy+instruction_guard",
    ]


def test_what_is_named_twice_is_run_once() -> None:
    assert [cell.name for cell in cells("arms=[base,turn_level,base]", "seeds=[1,1]")] == [
        "base seed 1",
        "turn_level seed 1",
    ]
    # Without training, recipes make no difference: the same run under another spelling would be two writers of one.
    assert len(cells("arms=[base,base+turn_level]")) == 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("arms=[]", "at least one"),
        ("seeds=[]", "at least one"),
        ("run=here", "compare makes several"),
        ("arms=base", "arms='base'"),
        ("seeds=1", "seeds=1"),
        ("seeds=[0.5]", r"seeds.0=0.5"),
        ("arms=[no_such_recipe]", "no_such_recipe"),
        ("compare.reference=absent", "compare.reference=.absent. is none of arms="),
    ],
)
def test_senseless_comparisons_are_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cells(override)


@pytest.fixture
def second_maker(tmp_path: Path) -> Path:
    """Return a configuration folder with a second recipe that makes examples."""
    (tmp_path / "recipe").mkdir()
    text = "second:\n  _target_: hushbot.recipes.turn_level.TurnLevel\n"
    (tmp_path / "recipe" / "second.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("no_cell")
def test_stacks_are_checked_before_anything_runs(second_maker: Path, tmp_path: Path) -> None:
    overrides = ["arms=[base,turn_level+second]", f"comparison={tmp_path / 'c'}", f"runs_dir={tmp_path / 'r'}"]
    with pytest.raises(ConfigError, match="2 recipes that make examples"):
        compare.main(overrides, config_dir=second_maker)
    assert not (tmp_path / "c").exists()


def test_problems_of_all_stacks_are_told_at_once(second_maker: Path) -> None:
    overrides = ["arms=[base+dp_sgd,turn_level+second,base]"]
    config = compose("compare", overrides, config_dir=second_maker)
    with pytest.raises(ConfigError) as caught:
        making_cells.checked_cells(config, overrides, (), second_maker)
    first, *others = caught.value.problems
    assert "dp_sgd would harden the training" in first
    assert "2 recipes that make examples" in others[0]


@pytest.mark.usefixtures("no_cell")
@pytest.mark.parametrize("verb", ["train", "validate", "compare"])
@pytest.mark.parametrize("stack", ["dp_sgd+base", "base+dialogue_level", "counterfactual+base+value_copy"])
def test_a_bot_that_is_not_trained_is_hardened_by_guards_only(verb: str, stack: str, tmp_path: Path) -> None:
    runs = f"runs_dir={tmp_path / 'runs'}"
    attempts: dict[str, Callable[[], None]] = {
        "train": lambda: train.main([f"recipe={stack}", runs]),
        "compare": lambda: compare.main([f"arms=[base,{stack}]", runs, f"comparison={tmp_path / 'c'}"]),
        "validate": lambda: validate.main("train", [f"recipe={stack}", runs]),
    }
    with pytest.raises(ConfigError, match="with fit=false there is none"):
        attempts[verb]()
    assert list(tmp_path.iterdir()) == []


def test_a_senseless_stack_leaves_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2 recipes that make examples"):
        train.main(["recipe=turn_level+dialogue_level", f"runs_dir={tmp_path / 'runs'}"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("no_cell")
def test_components_of_every_arm_are_checked_before_anything_runs(tmp_path: Path) -> None:
    wrong = ["trainer.max_epochs=many", "attack.membership.score=7", "launcher.threads=0"]
    with pytest.raises(ConfigError) as caught:
        compare.main([*wrong, f"comparison={tmp_path / 'c'}"])
    assert len(caught.value.problems) == 3  # once each, not once per arm
    assert "launcher.threads=0 must be at least 1" in caught.value.problems


# train, without a model


@pytest.fixture
def bare_config(tmp_path: Path) -> dict[str, Any]:
    sizes = [f"split.{side}=3" for side in ("members", "nonmembers", "calibration", "controls")]
    return compose("train", [*sizes, "attack=membership", f"runs_dir={tmp_path}"])


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the steps that need a model; return the names of those that ran."""
    done: list[str] = []

    def fit(*given: Any) -> tuple[None, AuditReport]:
        done.append("fit")
        return None, given[3]

    def utility(experiment: Any, settings: Any, target: Any, directory: Any, report: AuditReport, say: Any) -> Any:
        done.append("utility")
        return report

    def attack(experiment: Any, target: Any, directory: Any, report: AuditReport, say: Any) -> AuditReport:
        done.append("attack")
        return suite.finish(experiment, directory, report)

    monkeypatch.setattr(making, "make_bot", fit)
    for name, step in (("measure_bot", utility), ("measure", attack)):
        monkeypatch.setattr(suite, name, step)
    return done


def test_a_finished_run_is_shown_not_repeated(bare_config: dict[str, Any], tmp_path: Path, steps: list[str]) -> None:
    path = tmp_path / "run"
    assert train.run(bare_config, path).status == "complete"
    assert steps == ["fit", "utility", "attack"]
    page = (path / "report.html").read_bytes()
    assert train.run(bare_config, path).status == "complete"
    assert steps == ["fit", "utility", "attack"]
    assert (path / "report.html").read_bytes() == page


def test_a_page_that_was_never_written_is_made_up_for(
    bare_config: dict[str, Any], tmp_path: Path, steps: list[str]
) -> None:
    path = tmp_path / "run"
    train.run(bare_config, path)
    (path / "report.html").unlink()  # killed between the report and its page
    train.run(bare_config, path)
    assert (path / "report.html").is_file()
    assert steps == ["fit", "utility", "attack"]


def test_a_failure_is_in_the_report_and_raised(
    bare_config: dict[str, Any], tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise AuditError("no answer; start the endpoint")

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(suite, "measure_bot", broken)
        with pytest.raises(AuditError, match="no answer"):
            train.run(bare_config, path)
    report = RunDirectory.open(path).read_report()
    assert (report.status, report.error) == ("failed", "no answer; start the endpoint")
    assert train.run(bare_config, path).error is None
    assert steps == ["fit", "fit", "utility", "attack"]


def test_without_attacks_a_bot_is_trained_and_measured(
    steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "print_summary", lambda _: None)
    sizes = [f"split.{side}=3" for side in ("members", "nonmembers", "calibration", "controls")]
    train.main([*sizes, "attack=[]", f"run={tmp_path / 'mine'}"])
    report = RunDirectory.open(tmp_path / "mine").read_report()
    assert (report.status, report.attacks) == ("complete", {})
    assert "No attack was run" in (tmp_path / "mine" / "privacy_card.md").read_text()


def test_the_report_of_a_guarded_base_names_its_guards(bare_config: dict[str, Any], tmp_path: Path) -> None:
    config = compose("train", ["recipe=base+value_copy", "attack=[]"]) | {"split": bare_config["split"]}
    experiment = suite.prepare(config, train.stack_name(config))
    with suite.open_run(experiment, tmp_path / "run") as directory:
        report = suite.start_report(experiment, directory)
    assert report.recipe.stack == ["base", "value_copy"]
    assert report.run.id.startswith("base+value_copy-s0-")


def test_an_audit_of_a_run_checks_what_the_run_names(
    steps: list[str], bare_config: dict[str, Any], tmp_path: Path
) -> None:
    path, trap = tmp_path / "run", tmp_path / "sprung"
    train.run(bare_config, path)
    evil = bare_config | {"recipe": {"x": {"_target_": "os.mkdir", "path": str(trap)}}}
    RunDirectory(path).config_path.write_text(json.dumps(evil), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.yaml: recipe\.x: _target_='os.mkdir' lies outside hushbot"):
        audit.main([f"run={path}", f"out={tmp_path / 'audit'}"])
    assert not trap.exists()
    assert not (tmp_path / "audit").exists()
    RunDirectory(path).config_path.write_text("seed: 0\n", encoding="utf-8")
    with pytest.raises(DataError, match="has no data, split"):
        audit.main([f"run={path}", f"out={tmp_path / 'audit'}"])


def test_main_prints_the_table_and_where_the_page_is(
    steps: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[list[AuditReport]] = []
    monkeypatch.setattr(pages, "print_summary", shown.append)
    sizes = [f"split.{side}=3" for side in ("members", "nonmembers", "calibration", "controls")]
    train.main([*sizes, f"run={tmp_path / 'mine'}"])
    assert [report.status for report in shown[0]] == ["complete"]
    assert f"report: {tmp_path / 'mine' / 'report.html'}" in capsys.readouterr().out


# ls


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# One line.\n# Another.\nx: 1\n", "One line."),
        ("# @package _global_\n# After the package.\n", "After the package."),
        ("x: 1\n# Below a key is a comment still.\n", "Below a key is a comment still."),
        ("x: 1\n", ""),
    ],
)
def test_summary_is_the_first_comment(text: str, said: str) -> None:
    assert ls.summary(text) == said


def test_every_option_has_a_summary() -> None:
    options = [path for path in config_files() if path.parent != config_root()]
    assert options
    assert [path.name for path in options if not ls.summary(path.read_text(encoding="utf-8"))] == []


def test_ls_of_one_group_and_of_none(capsys: pytest.CaptureFixture[str]) -> None:
    ls.main("backbone")
    text = capsys.readouterr().out
    assert "tiny" in text
    assert "membership" not in text
    with pytest.raises(ConfigError, match=r"group .backbones. does not exist; there are .*backbone"):
        ls.main("backbones")


def test_commands_take_the_same_arguments() -> None:
    mains: list[Callable[..., None]] = [train.main, audit.main, compare.main]
    for main in mains:
        with pytest.raises(ConfigError, match="no_such_key"):
            main(["no_such_key=1"], trust=(), config_dir=None)
