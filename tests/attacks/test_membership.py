from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hushbot.attacks.membership import Membership
from hushbot.attacks.state_population import Population
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER, render_state
from hushbot.protocols import Attack
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditSplit, Decoding, Dialogue, Estimate, SlotValue, Turn

SCHEMA = Schema(())
QUICK = {"n_draws": 150, "n_permutations": 99}
NAMES = ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "min_k")
KEYS = ("auc", "auc_p", "tpr_at_1pct_fpr", "realised_fpr", "threshold")
NUMBERS = np.random.default_rng(0).permutation(10_000)


def dialogue(name: str, *values: str) -> Dialogue:
    """One turn per value; every turn names another restaurant."""
    turns = [Turn(user="hi", state=frozenset({SlotValue("restaurant", "name", value)})) for value in values]
    return Dialogue(id=name, turns=tuple(turns))


def make_split(
    n_members: int = 150,
    n_nonmembers: int = 150,
    n_pool: int = 0,
    tail: str = "",
    numbers: NDArray[np.int64] = NUMBERS,
) -> AuditSplit:
    """States of equal length with numbers at random, so that no text says whose it is; `tail` makes members' longer."""
    names = iter(numbers)

    def side(kind: str, n: int, extra: str = "") -> tuple[Dialogue, ...]:
        return tuple(dialogue(f"{kind}{i}", f"the house {next(names):04d}{extra}") for i in range(n))

    return AuditSplit(side("m", n_members, tail), side("n", n_nonmembers), side("c", n_pool))


LEAN = {"n_draws": 100, "scores": ["dc_ppl"], "score": "dc_ppl"}


def fresh_bot(seed: int) -> Bot:
    """Return a bot that knows nothing, with noise of its own."""

    @dataclass
    class Seeded(Bot):
        def _answer(self, prompt: str, continuation: str) -> torch.Tensor:
            return super()._answer(f"{seed}{prompt}", continuation)

    return Seeded()


def noise(*key: str) -> float:
    """A reproducible standard normal draw per key."""
    digest = hashlib.sha256("|".join(key).encode()).digest()
    return float(np.random.default_rng(list(digest[:8])).normal())


@dataclass
class Bot:
    """One token per word; `known` texts become likelier after the state marker, and only there."""

    known: Callable[[str], bool] = lambda text: False
    boost: float = 3.0
    reference: Bot | None = None
    fails: bool = False
    asked: list[str] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        raise AssertionError("membership needs no samples")

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        if self.fails:
            raise AuditError("the endpoint is down")
        self.asked.extend(continuations)
        return [self._answer(p, c) for p, c in zip(prompts, continuations, strict=True)]

    def _answer(self, prompt: str, continuation: str) -> torch.Tensor:
        text = (prompt + continuation).removeprefix(STATE_MARKER).strip()
        is_state = (prompt + continuation).startswith(STATE_MARKER)
        words = continuation.split()
        level = -4.0 + (self.boost if is_state and self.known(text) else 0.0)
        return torch.tensor([level - 0.3 * abs(noise(text, str(is_state), w)) for w in words])


def memoriser(split: AuditSplit, *, boost: float = 3.0) -> Bot:
    known = {render_state(turn.state) for d in split.members for turn in d.turns if turn.state is not None}
    return Bot(known=known.__contains__, boost=boost, reference=Bot())


def run(target: Bot, split: AuditSplit, seed: int = 0, **settings: object) -> AttackResult:
    attack = Membership(**{**QUICK, **settings})  # type: ignore[arg-type]
    assert isinstance(attack, Attack)
    return attack.run(target, split, SCHEMA, seed=seed)


def estimate(result: AttackResult, key: str) -> Estimate:
    value = result.metrics[key]
    assert isinstance(value, Estimate)
    return value


def test_memorised_members_stand_out_under_every_score_with_the_right_sign() -> None:
    split = make_split()
    result = run(memoriser(split), split)
    for name in NAMES:
        assert estimate(result, f"{name}/auc").value == 1.0
        assert estimate(result, f"{name}/tpr_at_1pct_fpr").value == 1.0
        assert estimate(result, f"{name}/delta_auc_over_blind").low > 0  # type: ignore[operator]
    assert (result.verdict, result.headline.metric) == ("leak", "tpr_at_1pct_fpr")
    assert result.headline.estimate == estimate(result, "dc_ppl/tpr_at_1pct_fpr")
    assert result.headline.key == "dc_ppl/tpr_at_1pct_fpr"
    assert result.headline.estimate.low > 0.9  # type: ignore[operator]
    assert "pre-registered score: dc_ppl" in result.notes


@dataclass
class ShowingBot(Bot):
    """A bot that shows its tokens, with all log-probabilities at mean -4 and spread 1."""

    def token_statistics(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        answers = self.logprobs(prompts, continuations)
        return [torch.stack([x, torch.full_like(x, -4.0), torch.ones_like(x)], dim=-1) for x in answers]


def test_a_model_on_this_machine_with_a_reference_gives_every_score() -> None:
    split = make_split()
    target = ShowingBot(known=memoriser(split).known, reference=ShowingBot())
    result = run(target, split, score="min_k_pp", scores=["min_k_pp", "ref_ratio"])
    assert result.verdict == "leak"
    for name in ("min_k_pp", "ref_ratio"):
        assert estimate(result, f"{name}/auc").value == 1.0
        assert estimate(result, f"{name}/delta_auc_over_blind").low > 0  # type: ignore[operator]
    base = result.control["base"]
    assert base["min_k_pp/auc"].low < 0.5 < base["min_k_pp/auc"].high
    assert base["ref_ratio/auc"].value is None
    assert result.queries == 2 * 4 * 300
    assert {"min_k_pp", "ref_ratio"} <= set(result.rows[0])


def test_what_a_target_cannot_give_is_not_measured_and_says_why() -> None:
    split = make_split()
    target = memoriser(split)
    target.reference = None
    result = run(target, split)
    for name, reason in (("min_k_pp", "does not show its tokens"), ("ref_ratio", "no reference")):
        for key in ("auc", "tpr_at_1pct_fpr", "realised_fpr", "delta_auc_over_blind"):
            assert estimate(result, f"{name}/{key}").value is None
            assert reason in estimate(result, f"{name}/{key}").method
        assert (result.metrics[f"{name}/threshold"], result.metrics[f"{name}/auc_p"]) == (None, None)
        assert any(note.startswith(f"{name} is not measured: ") and reason in note for note in result.notes)
        assert name not in result.rows[0]
    assert result.verdict == "leak"


def test_a_registered_score_that_cannot_be_had_gives_no_verdict() -> None:
    split = make_split()
    result = run(memoriser(split), split, score="min_k_pp")
    assert (result.verdict, result.headline.estimate.value) == ("not_measured", None)
    assert estimate(result, "ppl/auc").value == 1.0


def test_tokens_that_cannot_be_shown_cost_one_score_and_not_the_audit() -> None:
    @dataclass
    class Broken(ShowingBot):
        def token_statistics(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
            raise AuditError("no statistics today")

    split = make_split()
    result = run(Broken(known=memoriser(split).known, reference=Bot()), split)
    assert result.verdict == "leak"
    assert "min_k_pp is not measured: no statistics today" in result.notes


def test_dialogues_are_judged_by_all_the_states_they_hold() -> None:
    numbers = iter(NUMBERS)

    def side(kind: str) -> tuple[Dialogue, ...]:
        return tuple(dialogue(f"{kind}{i}", *(f"the house {next(numbers):04d}" for _ in range(3))) for i in range(120))

    split = AuditSplit(side("m"), side("n"))
    # The bot knows one state of each member: enough for `min`, and a third of the way for `mean`.
    one = {render_state(d.turns[1].state or frozenset()) for d in split.members}
    target = Bot(known=one.__contains__, reference=Bot())
    found = {how: run(target, split, states="all", unit="dialogue", aggregate=how) for how in ("mean", "min")}
    assert found["min"].headline.key == "dialogue/dc_ppl/tpr_at_1pct_fpr"
    assert found["min"].headline.estimate.value == 1.0
    assert found["min"].verdict == "leak"
    assert estimate(found["mean"], "dialogue/dc_ppl/auc").value > 0.95  # type: ignore[operator]
    by_state = estimate(found["min"], "dc_ppl/auc")
    assert by_state.value == pytest.approx(1 / 3 + 2 / 3 * 0.5, abs=0.1)
    assert by_state == estimate(found["mean"], "dc_ppl/auc")
    assert found["min"].blind is not None
    assert {"auc", "dialogue/auc", "dialogue/permutation_p"} <= set(found["min"].blind)
    assert set(found["min"].control["base"]) >= {"dc_ppl/auc", "dialogue/dc_ppl/auc"}


@pytest.fixture(scope="module")
def null_results() -> list[AttackResult]:
    return [run(fresh_bot(seed), make_split(120, 120), seed, **LEAN) for seed in range(30)]


def test_a_bot_that_knows_nothing_is_called_a_leak_no_more_often_than_said(null_results: list[AttackResult]) -> None:
    verdicts = [result.verdict for result in null_results]
    # One-sided at 2.5%: 0.75 expected, more than 3 would occur in 0.7% of all cases.
    assert verdicts.count("leak") <= 3
    assert verdicts.count("no_leak_detected") >= 25


def test_a_bot_that_remembers_is_called_a_leak_nearly_always() -> None:
    found = []
    for seed in range(20):
        numbers = np.random.default_rng(seed).permutation(10_000)
        split = make_split(120, 120, numbers=numbers)
        found.append(run(memoriser(split, boost=1.5), split, seed, **LEAN).verdict)
    assert found.count("leak") >= 19


def test_the_two_sided_p_holds_its_level_and_falls_on_either_side(null_results: list[AttackResult]) -> None:
    p = [result.metrics["dc_ppl/auc_p"] for result in null_results]
    assert all(isinstance(value, float) and 0 < value <= 1 for value in p)
    assert sum(value <= 0.05 for value in p) <= 5  # type: ignore[operator]
    split = make_split(120, 120)
    backwards = run(memoriser(split, boost=-3.0), split, **LEAN)
    assert backwards.metrics["dc_ppl/auc_p"] == pytest.approx(2 / 101)
    assert backwards.verdict == "inconclusive"


def test_ties_are_chance_and_no_finding() -> None:
    @dataclass
    class Even(Bot):
        def _answer(self, prompt: str, continuation: str) -> torch.Tensor:
            return torch.full((len(continuation.split()),), -1.0)

    split = make_split()
    for turned in (split, AuditSplit(split.nonmembers, split.members)):
        result = run(Even(reference=Even()), turned)
        for name in NAMES:
            if name != "ppl_zlib":  # sees the text, and differs with it
                assert estimate(result, f"{name}/auc").value == 0.5
                assert estimate(result, f"{name}/tpr_at_1pct_fpr").value == 0.0
                assert result.metrics[f"{name}/auc_p"] == 1.0
        assert result.verdict == "no_leak_detected"


def test_the_base_control_knows_nothing_and_the_blind_baseline_neither() -> None:
    split = make_split()
    result = run(memoriser(split), split)
    base = result.control["base"]
    assert set(base) == {f"{name}/{key}" for name in (*NAMES, "min_k_pp", "ref_ratio") for key in KEYS}
    assert base["dc_ppl/auc"].low < 0.5 < base["dc_ppl/auc"].high
    assert result.blind is not None
    assert result.blind["length_auc"].value == 0.5
    assert result.blind["auc"].low <= 0.5 <= result.blind["auc"].high
    assert result.queries == 2 * 3 * 300


def test_a_stranger_scores_chance_and_the_report_says_what_could_have_been_seen() -> None:
    split = make_split(n_pool=150)
    result = run(Bot(reference=Bot()), split)
    for name in NAMES:
        area = estimate(result, f"{name}/auc")
        assert area.low <= 0.5 <= area.high  # type: ignore[operator]
    assert result.verdict == "no_leak_detected"
    assert any("detectable with 80% power" in note for note in result.notes)


def test_a_rate_above_the_bar_whose_interval_reaches_below_it_is_no_leak() -> None:
    split = make_split()
    three = {render_state(d.final_state) for d in split.members[:3] if d.final_state}
    result = run(Bot(known=three.__contains__, reference=Bot()), split)
    tpr = result.headline.estimate
    assert tpr.value is not None
    assert tpr.value >= 0.02
    assert tpr.low < 0.01 < tpr.value  # type: ignore[operator]
    assert result.verdict == "no_leak_detected"


def test_thresholds_are_in_raw_units_and_reproduce_the_rates() -> None:
    split = make_split()
    result = run(memoriser(split, boost=0.2), split)
    threshold = result.metrics["dc_ppl/threshold"]
    assert isinstance(threshold, float)
    called = [row for row in result.rows if row["dc_ppl"] < threshold]  # low DC-PPL = member
    rates = [sum(row["is_member"] is side for row in called) / 150 for side in (True, False)]
    assert rates[0] == pytest.approx(estimate(result, "dc_ppl/tpr_at_1pct_fpr").value)
    assert rates[1] == pytest.approx(estimate(result, "dc_ppl/realised_fpr").value)
    assert 0 < rates[0] < 1
    assert rates[1] <= 0.01


def test_other_held_out_dialogues_choose_the_threshold_when_there_are_enough() -> None:
    def threshold_notes(n_pool: int) -> list[str]:
        notes = run(Bot(), make_split(n_pool=n_pool)).notes
        return [note for note in notes if note.startswith("threshold chosen")]

    assert "calibration and control" in threshold_notes(100)[0]
    assert "non-members themselves" in threshold_notes(99)[0]


def test_too_few_nonmembers_give_no_headline_but_an_auc() -> None:
    split = make_split(n_nonmembers=99)
    result = run(memoriser(split), split)
    assert (result.verdict, result.headline.estimate.value) == ("inconclusive", None)
    assert any("99 independent non-members, 100 needed" in note for note in result.notes)
    assert estimate(result, "dc_ppl/auc").value == 1.0


def test_a_failing_target_is_inconclusive_and_never_zero() -> None:
    result = run(Bot(fails=True), make_split())
    assert (result.verdict, result.headline.estimate.value, result.metrics) == ("inconclusive", None, {})
    assert "a query to the target failed: the endpoint is down" in result.notes


def test_scores_that_cannot_be_measured_are_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    def auc(*_: object, **__: object) -> Estimate:
        raise AuditError("a score is nan")

    monkeypatch.setattr("hushbot.attacks.membership_levels.auc", auc)
    result = run(Bot(), make_split())
    assert (result.verdict, result.headline.estimate.value, result.metrics) == ("inconclusive", None, {})
    assert result.headline.key == "dc_ppl/tpr_at_1pct_fpr"
    assert "the scores allow no measurement: a score is nan" in result.notes


def test_a_failing_base_model_is_inconclusive_even_beside_a_leak() -> None:
    split = make_split()
    target = memoriser(split)
    target.reference = Bot(fails=True)
    result = run(target, split)
    assert (result.verdict, result.control) == ("inconclusive", {"base": None})
    assert estimate(result, "dc_ppl/auc").value == 1.0
    assert "a query to the base model failed: the endpoint is down" in result.notes


def test_without_a_base_model_the_control_is_missing_and_said_to_be() -> None:
    split = make_split()
    target = memoriser(split)
    target.reference = None
    result = run(target, split)
    assert (result.verdict, result.control) == ("leak", {"base": None})
    assert any("control is missing" in note for note in result.notes)


def test_what_the_base_model_can_do_as_well_is_no_leak() -> None:
    split = make_split()
    target = memoriser(split)
    target.reference = memoriser(split)
    assert run(target, split).verdict == "no_leak_detected"


def test_members_that_length_gives_away_are_called_confounded() -> None:
    split = make_split(tail=" of a very long name")
    result = run(memoriser(split), split)
    assert estimate(result, "dc_ppl/auc").value == 1.0
    assert result.verdict == "inconclusive"
    assert result.blind is not None
    for name in ("auc", "length_auc", "zlib_auc"):
        assert result.blind[name].low > 0.9
        assert any(note.startswith(f"confounded: blind {name} = 1.000") for note in result.notes)
    assert estimate(result, "dc_ppl/delta_auc_over_blind").value == 0.0


def test_members_on_the_unexpected_side_are_flagged() -> None:
    split = make_split()
    result = run(memoriser(split, boost=-3.0), split)
    assert estimate(result, "dc_ppl/auc").value == 0.0
    assert result.verdict == "inconclusive"
    assert any("below 0.5" in note for note in result.notes)


def test_no_states_of_their_own_are_not_measured() -> None:
    twins = AuditSplit((dialogue("m", "same"),), (dialogue("n", "same"),))
    target = Bot()
    assert run(target, twins).verdict == "not_measured"
    assert target.asked == []


def test_members_and_nonmembers_are_shuffled_together_in_one_call() -> None:
    split = make_split()
    target = Bot()
    run(target, split)
    wholes = [text for text in target.asked if text.startswith("Belief State:")]
    members = {f"{STATE_MARKER} {render_state(d.final_state)}" for d in split.members if d.final_state}
    sides = [text in members for text in wholes[:300]]
    assert sum(sides) == 150
    assert 30 < sum(sides[:150]) < 120


def test_same_seed_same_result_and_input_order_does_not_matter() -> None:
    split = make_split(n_pool=100)
    first = run(memoriser(split, boost=0.3), split, seed=5)
    turned = AuditSplit(split.members[::-1], split.nonmembers[::-1], split.calibration[::-1])
    again = run(memoriser(split, boost=0.3), turned, seed=5)
    assert first.model_copy(update={"seconds": 0.0}) == again.model_copy(update={"seconds": 0.0})


def test_result_survives_json_and_holds_no_state_text() -> None:
    split = make_split()
    result = run(memoriser(split), split)
    text = result.model_dump_json()
    read = AttackResult.model_validate_json(text)
    assert json.loads(read.model_dump_json()) == json.loads(text)
    assert "house" not in text
    assert "house" not in json.dumps(result.rows)
    assert {"dialogue_id", "is_member", "n_triplets", "dc_ppl", "loss"} <= set(result.rows[0])
    assert len(result.rows) == 300


def test_shared_states_are_dropped_from_both_sides_in_whatever_turn_they_occur() -> None:
    split = AuditSplit(
        members=(dialogue("m1", "early", "own"), dialogue("m2", "shared"), dialogue("m3", "own")),
        nonmembers=(dialogue("n1", "shared", "other"), dialogue("n2", "early")),
        calibration=(dialogue("c1", "own"), dialogue("c2", "fresh")),
    )
    final = Population.of(split, states="final", max_states=None, seed=0)
    assert [unit.text for unit in final.members] == ["Restaurant(name=own)"]
    assert final.members[0].dialogue_id == "m1"
    assert [unit.text for unit in final.nonmembers] == ["Restaurant(name=other)"]
    assert [unit.text for unit in final.pool] == ["Restaurant(name=fresh)"]
    assert "members: 1 states judged, 1 shared ones dropped" in final.notes
    every = Population.of(split, states="all", max_states=None, seed=0)
    assert [unit.text for unit in every.members] == ["Restaurant(name=own)"]
    assert "members: 1 states judged, 2 shared ones dropped" in every.notes


def test_a_state_that_several_dialogues_hold_is_the_first_ones_by_id_in_whatever_order_they_come() -> None:
    members = (dialogue("m2", "own"), dialogue("m1", "own"), dialogue("m3", "own"))
    for given in (members, members[::-1]):
        population = Population.of(AuditSplit(given, (dialogue("n", "other"),)), states="all", max_states=None, seed=0)
        assert [(unit.dialogue_id, unit.domains) for unit in population.members] == [("m1", ("restaurant",))]
        assert set(population.related) == {"m1", "m2", "m3", "n"}
        assert len({population.related[name] for name in ("m1", "m2", "m3")}) == 1


def test_unknown_and_empty_states_name_nobody() -> None:
    empty = Dialogue("e", (Turn("hi", frozenset()), Turn("hi", None)))
    split = AuditSplit((empty, dialogue("m", "own")), (empty, dialogue("n", "other")))
    population = Population.of(split, states="all", max_states=None, seed=0)
    assert [len(population.members), len(population.nonmembers)] == [1, 1]


def test_states_can_be_capped_at_random() -> None:
    population = Population.of(make_split(), states="final", max_states=20, seed=1)
    assert (len(population.members), len(population.nonmembers)) == (20, 20)
    other = Population.of(make_split(), states="final", max_states=20, seed=2)
    assert population.members != other.members


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "blue"}, "score='blue'"),
        ({"scores": ["ppl"]}, "score='dc_ppl' must be one of"),
        ({"scores": ["dc_ppl", "min_q"]}, "scores="),
        ({"unit": "dialogue"}, "unit='dialogue' must be 'state' unless states='all'"),
        ({"aggregate": "max"}, "attack.membership.aggregate"),
        ({"n_permutations": 20}, "n_permutations=20"),
        ({"states": "last"}, "attack.membership.states"),
        ({"max_states": 0}, "max_states=0"),
        ({"level": 1.0, "n_draws": 5}, "n_draws=5"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Membership(**settings)  # type: ignore[arg-type]


def test_the_config_group_instantiates() -> None:
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    path = Path(__file__).resolve().parents[2] / "configs" / "attack" / "membership.yaml"
    attacks = instantiate(OmegaConf.load(path), _convert_="all")
    assert attacks == {"membership": Membership()}
