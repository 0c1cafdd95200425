from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from hushbot.attacks.blind import Blind
from hushbot.corpora import Corpus, load, split
from hushbot.errors import ConfigError
from hushbot.protocols import Attack
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditSplit, Dialogue, Estimate

QUICK = {"n_draws": 200, "n_permutations": 199}


class Untouched:
    """A target that must not be asked."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the blind baseline asked the bot for {name}")


def run(given: AuditSplit, seed: int = 0, **settings: object) -> AttackResult:
    attack = Blind(**{**QUICK, **settings})  # type: ignore[arg-type]
    assert isinstance(attack, Attack)
    return attack.run(Untouched(), given, Schema(()), seed=seed)  # type: ignore[arg-type]


def estimate(result: AttackResult, key: str) -> Estimate:
    value = result.metrics[key]
    assert isinstance(value, Estimate)
    return value


@pytest.fixture(scope="module")
def sgd(shared_dir: Path) -> Corpus:
    return load("sgd", path=shared_dir / "data" / "sgd", splits=["train", "test"])


def test_the_official_split_of_sgd_is_confounded(sgd: Corpus) -> None:
    train, test = (tuple(d for d in sgd.dialogues if d.id.startswith(part))[:150] for part in ("train/", "test/"))
    result = run(AuditSplit(train, test))
    assert result.verdict == "inconclusive"
    assert any(note.startswith("confounded: blind auc") for note in result.notes)
    for key in ("auc", "auc_without_domains"):  # the words alone are enough
        assert estimate(result, key).value > 0.9  # type: ignore[operator]
        assert estimate(result, key).low > 0.8  # type: ignore[operator]
    assert estimate(result, "tpr_at_1pct_fpr").low > 0.5  # type: ignore[operator]
    assert result.metrics["permutation_p"] == pytest.approx(1 / 200)


@pytest.mark.parametrize("seed", [0, 1])
def test_our_random_split_of_the_same_dialogues_is_not(sgd: Corpus, seed: int) -> None:
    result = run(split(sgd, seed, members=0.25, nonmembers=0.25, calibration=0, controls=0), seed)
    assert result.verdict == "no_leak_detected"
    found = estimate(result, "auc")
    assert found.low <= 0.5 <= found.high  # type: ignore[operator]
    assert abs(found.value - 0.5) < 0.1  # type: ignore[operator]


def test_the_bot_is_not_asked_and_the_report_says_that_the_split_was_measured(synthetic_split: AuditSplit) -> None:
    result = run(synthetic_split)
    assert (result.queries, result.threat_model, result.blind) == (0, "text", None)
    assert (result.headline.metric, result.headline.key) == ("auc", "auc")
    assert result.headline.estimate == result.metrics["auc"]
    assert (result.metrics["members"], result.metrics["nonmembers"]) == (125, 125)
    assert "the bot was not asked: this measures the split" in result.notes
    assert Blind.needs == "text"


def test_same_seed_same_result_and_input_order_does_not_matter(synthetic_split: AuditSplit) -> None:
    turned = AuditSplit(synthetic_split.members[::-1], synthetic_split.nonmembers[::-1])
    first, again = run(synthetic_split, seed=3), run(turned, seed=3)
    assert first.model_copy(update={"seconds": 0.0}) == again.model_copy(update={"seconds": 0.0})


def test_it_reads_states_where_it_is_told_to(synthetic_split: AuditSplit) -> None:
    def spoken(dialogue: Dialogue) -> Dialogue:
        return replace(dialogue, turns=tuple(replace(turn, user=f"{turn.user} please") for turn in dialogue.turns))

    polite = replace(synthetic_split, members=tuple(map(spoken, synthetic_split.members)))
    assert run(polite).verdict == "inconclusive"
    assert estimate(run(polite), "auc").value == pytest.approx(1.0)
    stated = run(polite, reads="state")
    assert estimate(stated, "auc") == estimate(run(synthetic_split, reads="state"), "auc")


def test_few_dialogues_are_not_measured(synthetic_split: AuditSplit) -> None:
    few = AuditSplit(synthetic_split.members[:19], synthetic_split.nonmembers)
    result = run(few)
    assert (result.verdict, result.headline.estimate.value) == ("not_measured", None)
    assert any("19 dialogues on a side, 20 needed" in note for note in result.notes)
    assert run(AuditSplit((), ())).verdict == "not_measured"


def test_records_hold_numbers_and_nothing_that_was_said(synthetic_split: AuditSplit) -> None:
    result = run(synthetic_split)
    assert {key for row in result.rows for key in row} == {"dialogue_id", "is_member", "length", "score"}
    assert len(result.rows) == 250
    assert not any(place in json.dumps([result.model_dump(), result.rows]) for place in ("pizza", "norwich"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reads": "goal"}, "reads='goal'"),
        ({"level": 1.0, "n_draws": 5}, "n_draws=5"),
        ({"n_permutations": 98}, r"n_permutations=98 must be at least 99; set attack\.blind\.n_permutations"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Blind(**settings)  # type: ignore[arg-type]


def test_the_config_group_instantiates() -> None:
    path = Path(__file__).resolve().parents[2] / "configs" / "attack" / "blind.yaml"
    assert instantiate(OmegaConf.load(path), _convert_="all") == {"blind": Blind()}
