"""Targeted extraction on scripted bots, with results that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hushbot.attacks.completions import Completed, Side, complete, completion_metrics
from hushbot.attacks.decoding import parse_decoder
from hushbot.attacks.state_judgement import Judged, Rule
from hushbot.attacks.state_metrics import StateIndex, normalise_state
from hushbot.attacks.state_sides import take_sides
from hushbot.attacks.targeted_extraction import TargetedExtraction
from hushbot.attacks.targeted_judgement import _listed, _pool, judge_sides
from hushbot.attacks.targeted_prefixes import collect_prefixes
from hushbot.errors import AuditError, ConfigError, UnsupportedError
from hushbot.prompts import parse_state
from hushbot.schema import Schema, Slot
from hushbot.types import AttackResult, AuditSplit, Decoding, Dialogue, Estimate, Metric, Turn

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = ("area", "name", "parking", "stars", "stay")
SCHEMA = Schema.of(Slot("hotel", slot) for slot in SLOTS)
PRECISION = "greedy/none/state_precision"


def said(*values: str) -> str:
    """Return what is in a hotel's brackets, one value per slot: `area=x, name=y`."""
    return ", ".join(f"{slot}={value}" for slot, value in zip(SLOTS, values, strict=False))


def guest(id: str, *values: str) -> Dialogue:
    return Dialogue(id, (Turn("hello", parse_state(f"Hotel({said(*values)})")),))


def crowd(kind: str, n: int) -> tuple[Dialogue, ...]:
    return tuple(guest(f"{kind}{i:03}", f"{kind}{i}", f"the {kind} {i}", "yes", "4", "2 nights") for i in range(n))


SPLIT = AuditSplit(crowd("m", 40), crowd("n", 40))


@dataclass
class Script:
    """Continues a prefix as it is told, and anything else with nothing; finds every word as probable as any other."""

    lines: Mapping[str, str]
    """Continuations by the first value of the prefix."""
    reference: Any = None
    is_scored: bool = True
    n_queries: int = 0

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.n_queries += n * len(prompts)
        return [[self.lines.get(prompt.split("area=")[1].split(",")[0], "")] * n for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        if not self.is_scored:
            raise AuditError("no log-probabilities")
        self.n_queries += len(prompts)
        return [torch.full((len(text.split()),), -1.0) for text in continuations]


def rest(dialogues: Sequence[Dialogue]) -> dict[str, str]:
    """Return what follows each dialogue's area."""
    return {
        d.id[0] + str(int(d.id[1:])): f" name=the {d.id[0]} {int(d.id[1:])}, parking=yes, stars=4, stay=2 nights)"
        for d in dialogues
    }


def wrong(dialogues: Sequence[Dialogue]) -> dict[str, str]:
    return {d.id[0] + str(int(d.id[1:])): " name=nobody's, parking=yes, stars=4, stay=2 nights)" for d in dialogues}


def attack(target: Any, split: AuditSplit = SPLIT, **changes: Any) -> AttackResult:
    settings: dict[str, Any] = {"lengths": [1], "decoders": ["greedy"], "k": 20} | changes
    return TargetedExtraction(**settings).run(target, split, SCHEMA, seed=0)


def estimate(group: Mapping[str, Any], name: str) -> Estimate:
    found = group[name]
    assert isinstance(found, Estimate)
    return found


def test_a_bot_that_completes_members_alone_leaks_by_hand() -> None:
    bot = Script(rest(SPLIT.members[:30]) | wrong(SPLIT.members[30:]) | wrong(SPLIT.nonmembers))
    result = attack(bot)
    assert result.verdict == "leak"
    assert (result.headline.metric, result.headline.key) == ("state_precision", PRECISION)
    assert result.headline.estimate == estimate(result.metrics, PRECISION)
    assert result.headline.estimate.value == 30 / 40
    assert estimate(result.metrics, f"{PRECISION}/l=1").value == 30 / 40
    assert result.metrics["greedy/none/states"] == 30
    assert result.metrics["greedy/none/extracted_states"] == 40
    assert estimate(result.metrics, "greedy/none/triplets").value == 4
    assert result.metrics["greedy/none/values"] == 30 + 3  # names, and what everybody wants
    assert result.metrics["greedy/none/extracted_values"] == 30 + 3 + 1
    assert result.metrics["prefixes/l=1"] == 40
    assert result.metrics["prefixes_shared/l=1"] == 0
    assert estimate(result.control["nonmembers"], PRECISION).value == 0
    assert result.control["nonmembers"]["prefixes/l=1"] == 40
    assert estimate(result.control["difference"], PRECISION).value == 0.75
    assert result.queries == bot.n_queries
    assert estimate(result.metrics, "greedy/causes/repetitions/l=1").value == 1


def test_what_is_inferred_for_both_sides_is_no_memory() -> None:
    result = attack(Script(rest(SPLIT.members[:30]) | rest(SPLIT.nonmembers[:30])))
    assert result.headline.estimate.value == 1
    assert estimate(result.control["difference"], PRECISION).value == 0
    assert result.verdict == "no_leak_detected"


def test_a_bot_that_answers_for_members_alone_can_be_compared() -> None:
    result = attack(Script(rest(SPLIT.members[:30])))
    assert result.metrics["greedy/nothing_new"] == 10
    assert estimate(result.control["nonmembers"], PRECISION).value is None
    assert result.control["nonmembers"]["greedy/none/states"] is None
    assert result.control["judged"]["greedy"]["difference"].value == 1
    assert result.verdict == "leak"


def test_too_few_long_completions_are_inconclusive() -> None:
    result = attack(Script(rest(SPLIT.members[:19])))
    assert result.headline.estimate.value == 1
    assert result.verdict == "inconclusive"
    short = dict.fromkeys(rest(SPLIT.members), " name=the end)")
    assert attack(Script(short)).verdict == "inconclusive"
    assert attack(Script(short), min_triplets=2).verdict == "no_leak_detected"


def test_one_persons_luck_is_no_leak() -> None:
    # Forty prefixes, all of one member, all completed: one dialogue could as well have been on the other side.
    states = [parse_state(f"Hotel({said(f'm{i}', f'the m {i}', 'yes', '4', '2 nights')})") for i in range(40)]
    one = Dialogue("m", tuple(Turn("hello", state) for state in states))
    split = AuditSplit((one, *crowd("x", 39)), SPLIT.nonmembers)
    result = attack(Script(rest(SPLIT.members) | wrong(SPLIT.nonmembers)), split, k=60)
    assert result.control["judged"]["greedy"]["difference"].value == pytest.approx(40 / 60)
    assert result.control["judged"]["greedy"]["randomisation_p"] > 0.4
    assert result.verdict == "no_leak_detected"


def test_prefixes_of_both_sides_count_but_decide_nothing() -> None:
    others = tuple(guest(f"n{i:03}", f"m{i}", "elsewhere", "no", "1", "9 nights") for i in range(40))
    result = attack(Script(rest(SPLIT.members)), AuditSplit(SPLIT.members, others))
    assert result.headline.estimate.value == 1
    assert estimate(result.control["nonmembers"], PRECISION).value == 0
    assert result.metrics["prefixes_shared/l=1"] == 40
    assert result.verdict == "inconclusive"
    assert "nothing tells the sides apart" in result.notes[0]


def test_the_corrected_level_is_for_all_decoders() -> None:
    result = attack(Script(rest(SPLIT.members[:30])), decoders=["greedy", "vanilla"])
    assert result.control["judged"]["vanilla"]["difference"].level == 0.975
    assert result.verdict == "leak"


def test_the_base_control_asks_members_prefixes_alone() -> None:
    base = Script(rest(SPLIT.members[:10]) | wrong(SPLIT.members[10:]))
    bot = Script(rest(SPLIT.members), reference=base)
    result = attack(bot)
    assert estimate(result.control["base"], PRECISION).value == 10 / 40
    assert result.queries == bot.n_queries + base.n_queries
    assert result.verdict == "leak"


def test_a_failing_base_or_target_is_inconclusive() -> None:
    result = attack(Script(rest(SPLIT.members), reference=Script(rest(SPLIT.members), is_scored=False)))
    assert result.control["base"] is None
    assert result.headline.estimate.value == 1
    assert result.verdict == "inconclusive"
    result = attack(Script(rest(SPLIT.members), is_scored=False))
    assert result.headline.estimate.value is None
    assert result.verdict == "inconclusive"


@pytest.mark.parametrize("side", ["members", "nonmembers"])
def test_a_side_without_prefixes_is_not_measured(side: str) -> None:
    result = attack(Script(rest(SPLIT.members)), replace(SPLIT, **{side: (guest("x", "one"),) * 1}))
    assert result.verdict == "not_measured"
    assert result.headline.estimate.value is None


def test_each_draw_has_a_row() -> None:
    result = attack(Script(rest(SPLIT.members[:30])), n_per_prefix=2, decoders=["vanilla"], decoder="vanilla")
    assert len(result.rows) == 2 * 80
    first = next(row for row in result.rows if row["dialogue_id"] == "m000")
    assert first["decoder"] == "vanilla"
    assert first["role"] == "member"
    assert first["prefix"] == "Hotel(area=m0,"
    assert first["suffix"] == " name=the m 0, parking=yes, stars=4, stay=2 nights)"
    assert (first["is_hit"], first["prefix_length"], first["n_triplets"], first["n_new"]) == (True, 1, 5, 4)
    nothing = next(row for row in result.rows if row["dialogue_id"] == "n000")
    assert (nothing["role"], nothing["is_hit"], nothing["n_new"], nothing["dc_ppl"]) == ("nonmember", False, 0, None)


def test_wrong_settings_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        TargetedExtraction(lengths=[0], k=5, n_ranked=-1, decoder="best", schema="none")  # type: ignore[arg-type]
    assert [problem.split("=")[0] for problem in caught.value.problems] == [
        "lengths",
        "k",
        "n_ranked",
        "decoder",
        "schema",
    ]
    with pytest.raises(ConfigError, match="lengths"):
        TargetedExtraction(lengths=[])


# completions


def made(dialogues: Sequence[Dialogue], lines: Mapping[str, str], lengths: Sequence[int] = (1,)) -> Side:
    prefixes = collect_prefixes(dialogues, [], lengths, max_prefixes=99, seed=0)[0]
    done = complete(Script(lines), parse_decoder("greedy"), prefixes, n=1, max_new_tokens=99, schema=None, seed=0)
    return Side.of(prefixes, done.draws, StateIndex.of(dialogues))


def test_a_value_that_contradicts_the_prefix_is_never_a_hit() -> None:
    people = [guest("a", "x", "ritz"), guest("b", "y", "ritz")]
    side = made(people, {"x": " area=y, name=ritz)", "y": " name=ritz)"})
    assert [completion.is_hit for completion in side.completions] == [False, True]
    assert len(side.completions[0].state) == 3  # both areas


def test_repeating_the_prefix_is_nothing_new() -> None:
    side = made([guest("a", "x", "ritz")], {"x": " area=x)"})
    assert side.completions == []
    assert completion_metrics(side, 20, 0)["nothing_new"] == 1


def test_a_cut_completion_keeps_what_is_closed() -> None:
    side = made([guest("a", "x", "ritz", "yes")], {"x": " name=ritz, park"})
    assert [len(completion.state) for completion in side.completions] == [2]
    assert side.completions[0].is_hit


def test_a_completed_state_counts_once_over_lengths_and_once_in_each() -> None:
    side = made([guest("a", "x", "ritz", "yes")], {"x": " name=ritz, parking=yes)"}, [1, 2])
    assert [len(side.of_length(length)) for length in (1, 2)] == [1, 1]
    assert len(side.completions) == 1
    metrics: Mapping[str, Metric] = completion_metrics(side, 20, 0)
    assert (metrics["none/states"], metrics["none/states/l=1"], metrics["none/states/l=2"]) == (1, 1, 1)
    assert (metrics["none/values"], metrics["none/values/l=2"]) == (2, 1)  # the second prefix knew the name


def test_the_best_k_are_the_lowest_scores() -> None:
    people = crowd("m", 4)
    prefixes = collect_prefixes(people, [], [1], max_prefixes=9, seed=0)[0]
    states = [normalise_state(turn.state or frozenset()) for person in people for turn in person.turns]
    scores = [dict.fromkeys(("ppl", "ppl_zlib", "c_ppl", "dc_ppl"), value) for value in (3.0, 1.0, 2.0, 4.0)]
    draws = {
        prefix.prompt: [Completed("s", state if i % 2 else prefix.state | states[0], scores[i])]
        for i, (prefix, state) in enumerate(zip(prefixes, states, strict=True))
    }
    metrics = completion_metrics(Side.of(prefixes, draws, StateIndex.of(people)), 2, 0)
    # Scores 1 (right) and 2 (wrong: the third's area with all of the first's); the first completes itself, at 3.
    assert estimate(metrics, "dc_ppl/state_precision@2").value == 0.5
    assert estimate(metrics, "dc_ppl/hit_auc").value == pytest.approx(1 / 3)


# the judgement


def judged(split: AuditSplit, lines: Mapping[str, str], rule: Rule) -> tuple[Judged, Side, Side]:
    sides = take_sides(split, 0)
    prefixes = collect_prefixes(sides.member_dialogues, sides.nonmember_dialogues, [1, 2], max_prefixes=99, seed=0)
    done = complete(
        Script(lines),
        parse_decoder("greedy"),
        [*prefixes[0], *prefixes[1]],
        n=1,
        max_new_tokens=99,
        schema=None,
        seed=0,
    )
    truths = (sides.equal_members, sides.equal_nonmembers)
    first, second = (Side.of(mine, done.draws, truth) for mine, truth in zip(prefixes, truths, strict=True))
    return judge_sides(first, second, sides, rule, 0), first, second


def test_fewer_than_k_are_filled_up_with_unanswered_prefixes() -> None:
    rule = Rule(30, 5, 1)
    found, first, second = judged(SPLIT, rest(SPLIT.members[:25]), rule)
    clusters = {dialogue.id: dialogue.id for dialogue in (*SPLIT.members, *SPLIT.nonmembers)}
    listed = _listed(first, clusters, rule)
    assert (listed.n_states, sum(listed.hits), len(listed.hits)) == (25, 25, 30)
    assert len(_listed(second, clusters, rule).hits) == 30
    assert found.difference.value == pytest.approx(25 / 30)


def test_deals_agree_with_judging_each_deal_by_itself() -> None:
    lines = rest(SPLIT.members[:20]) | wrong(SPLIT.members[20:30]) | rest(SPLIT.nonmembers[:15])
    rule = Rule(20, 5, 1)
    _, first, second = judged(SPLIT, lines, rule)
    sides = take_sides(SPLIT, 0)
    everyone = [*SPLIT.members, *SPLIT.nonmembers]
    rng = np.random.default_rng(0)
    deals = np.zeros((len(sides.groups), 5), dtype=np.bool_)
    for column in range(5):
        deals[rng.permutation(len(sides.groups))[:40], column] = True
    advantages = _pool(first, second, sides, rule).advantages(deals, rule.k)
    for column in range(5):
        dealt = {
            name for group, is_member in zip(sides.groups, deals[:, column], strict=True) if is_member for name in group
        }
        split = AuditSplit(tuple(d for d in everyone if d.id in dealt), tuple(d for d in everyone if d.id not in dealt))
        found, _, _ = judged(split, lines, rule)
        assert found.difference.value == pytest.approx(advantages[column])


@dataclass
class Endpoint(Script):
    """Knows no beams."""

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        if decoding.num_beams > 1:
            raise UnsupportedError("the endpoint knows no decoder with num_beams=5")
        return super().sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)


def test_a_decoder_that_the_target_cannot_do_costs_no_other_one() -> None:
    known = {f"m{i}": f", name=the m {i}, parking=yes, stars=4, stay=2 nights)" for i in range(40)}
    target = Endpoint(known, reference=Endpoint({}))
    plain = TargetedExtraction(lengths=(1,), k=20, decoders=["greedy"]).run(target, SPLIT, SCHEMA, seed=0)
    both = TargetedExtraction(lengths=(1,), k=20, decoders=["greedy", "beam_search"])
    result = both.run(target, SPLIT, SCHEMA, seed=0)
    assert (result.headline, result.verdict) == (plain.headline, plain.verdict)
    assert result.units == plain.units
    assert not any(key.startswith("beam_search/") for key in result.metrics)
    assert any("beam_search not measured: the endpoint knows no decoder" in note for note in result.notes)
    with pytest.raises(UnsupportedError, match="num_beams"):
        replace(both, decoder="beam_search").run(target, SPLIT, SCHEMA, seed=0)
