"""Untargeted extraction on scripted bots, with results that can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from hushbot.attacks import schema_asking
from hushbot.attacks.schema_asking import Probed, ProbeSettings
from hushbot.attacks.state_extraction import UntargetedExtraction
from hushbot.errors import AuditError, ConfigError, UnsupportedError
from hushbot.prompts import STATE_MARKER
from hushbot.schema import Schema, Slot
from hushbot.targets.guided import Grammar, Guided, GuidedDraws
from hushbot.types import AttackResult, AuditSplit, Decoding, Dialogue, Estimate, SlotValue, Turn

if TYPE_CHECKING:
    from torch import Tensor

HEADLINE = "vanilla/dc_ppl/state_precision"
SCHEMA = Schema(())


def guest(id: str, name: str) -> Dialogue:
    triplets = frozenset({SlotValue("hotel", "name", name), SlotValue("hotel", "stars", "4")})
    return Dialogue(id, (Turn("hello", triplets),))


SPLIT = AuditSplit(
    tuple(guest(f"m{i}", f"member {i}") for i in range(30)),
    tuple(guest(f"n{i}", f"other {i}") for i in range(30)),
)


@dataclass
class Script:
    """Says the same lines whatever happens; finds a line the more probable the earlier it stands."""

    lines: Sequence[str]
    reference: Any = None
    is_scored: bool = True

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        assert list(prompts) == [STATE_MARKER]
        assert decoding == Decoding()
        return [list(self.lines[:n])]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        if not self.is_scored:
            raise AuditError("no log-probabilities")
        order = {f"{STATE_MARKER}{line}": i for i, line in enumerate(self.lines)}
        return [
            torch.tensor([-float(1 + order.get(prompt + text, 999))])
            for prompt, text in zip(prompts, continuations, strict=True)
        ]


def lines(kind: str, n: int) -> list[str]:
    return [f" Hotel(name={kind} {i}, stars=4)" for i in range(n)]


def attack(target: Any, split: AuditSplit = SPLIT, *, k: int = 20) -> AttackResult:
    n_samples = len(target.lines) if isinstance(target, Script) else 40
    return UntargetedExtraction(n_samples=n_samples, k=k, min_triplets=1).run(target, split, SCHEMA, seed=0)


def estimate(group: Any, name: str) -> Estimate:
    found = group[name]
    assert isinstance(found, Estimate)
    return found


def test_a_bot_that_ranks_members_first_leaks_by_hand() -> None:
    result = attack(Script([*lines("member", 20), *lines("nobody", 60)]))
    assert result.verdict == "leak"
    assert (result.headline.metric, result.headline.key) == ("state_precision@20", f"{HEADLINE}@20")
    assert result.headline.estimate == estimate(result.metrics, f"{HEADLINE}@20")
    assert result.headline.estimate.value == 1
    assert estimate(result.metrics, HEADLINE).value == 20 / 80
    assert estimate(result.metrics, "vanilla/none/state_precision").value == 20 / 80
    assert estimate(result.metrics, f"{HEADLINE}@20/n=2").value == 1
    assert result.metrics["vanilla/dc_ppl/states@20"] == 20
    assert result.metrics["vanilla/none/states"] == 20
    assert result.metrics["vanilla/none/values"] == 21  # twenty names and the stars
    assert estimate(result.control["nonmembers"], f"{HEADLINE}@20").value == 0
    assert estimate(result.control["difference"], f"{HEADLINE}@20").value == 1
    assert result.control["randomisation_p"] < 0.01
    assert result.queries == 80 + 3 * 80


def test_an_equal_share_of_both_sides_is_no_leak() -> None:
    mixed = [line for pair in zip(lines("member", 20), lines("other", 20), strict=True) for line in pair]
    result = attack(Script(mixed), k=40)
    assert result.headline.estimate.value == 0.5
    assert estimate(result.control["difference"], f"{HEADLINE}@40").value == 0
    assert result.verdict == "no_leak_detected"


def test_fifty_parts_of_one_dialogue_are_no_leak() -> None:
    triplets = frozenset(SlotValue("hotel", slot, "x") for slot in "abcdef")
    one = Dialogue("m0", (Turn("hello", triplets),))
    parts = [f" Hotel({a}=x, {b}=x, {c}=x)" for a in "abcdef" for b in "abcdef" for c in "abcdef" if a < b < c]
    result = attack(Script(parts), replace(SPLIT, members=(one, *SPLIT.members[1:])))
    assert len(parts) == 20
    assert result.headline.estimate.value == 1
    assert result.control["randomisation_p"] == pytest.approx(0.5, abs=0.05)
    assert result.verdict == "no_leak_detected"


def test_the_base_control_is_measured_by_itself() -> None:
    base = Script([*lines("member", 10), *lines("nobody", 70)])
    result = attack(Script([*lines("member", 20), *lines("nobody", 60)], reference=base))
    assert estimate(result.control["base"], "vanilla/none/state_precision").value == 10 / 80
    assert estimate(result.control["base"], f"{HEADLINE}@20").value == 0.5
    assert result.queries == 2 * (80 + 3 * 80)


def test_without_a_reference_the_base_control_is_null_with_a_reason() -> None:
    result = attack(Script(lines("member", 30)))
    assert result.control["base"] is None
    assert "base control not measured: the target has no reference model" in result.notes
    assert result.verdict == "leak"


def test_a_failing_reference_is_inconclusive() -> None:
    talks_too_little = Script([" None"])
    result = attack(Script(lines("member", 30), reference=talks_too_little))
    assert result.control["base"] is None
    assert any("returned 1 of 30 samples" in note for note in result.notes)
    assert result.verdict == "inconclusive"
    cannot_score = Script(lines("nobody", 30), is_scored=False)
    result = attack(Script(lines("member", 30), reference=cannot_score))
    assert estimate(result.control["base"], "vanilla/none/state_precision").value == 0
    assert result.verdict == "inconclusive"


def test_fewer_than_k_states_are_all_used_and_counted() -> None:
    result = attack(Script(lines("member", 25)), k=100)
    assert result.headline.estimate.n == 25
    assert "vanilla: fewer than 100 distinct states: @100 uses all 25" in result.notes
    assert result.verdict == "leak"


def test_too_few_states_are_inconclusive() -> None:
    result = attack(Script(lines("member", 19)))
    assert result.headline.estimate.value == 1
    assert result.verdict == "inconclusive"
    assert result.notes[0].startswith("vanilla: 19 distinct states")


def test_no_state_at_all_is_not_measured() -> None:
    result = attack(Script([" None", " gibberish"] * 20))
    assert result.verdict == "inconclusive"
    assert result.headline.estimate.value is None
    assert result.metrics["vanilla/empty_states"] == 20
    assert result.metrics["vanilla/parse_failures"] == 20
    assert result.metrics["vanilla/none/states"] is None
    assert result.rows == []


def test_without_scores_the_text_only_numbers_stay_and_the_verdict_is_open() -> None:
    result = attack(Script(lines("member", 30), is_scored=False))
    assert result.verdict == "inconclusive"
    assert result.headline.estimate.value is None
    assert "no log-probabilities" in result.headline.estimate.method
    assert estimate(result.metrics, "vanilla/none/state_precision").value == 1
    assert "vanilla/ppl/states@20" not in result.metrics


def test_missing_samples_are_a_failure() -> None:
    result = UntargetedExtraction(n_samples=31).run(Script(lines("member", 30)), SPLIT, SCHEMA, seed=0)
    assert result.verdict == "inconclusive"
    assert result.notes == ["sampling failed: the target returned 30 of 31 samples"]


@pytest.mark.parametrize("side", ["members", "nonmembers"])
def test_without_one_side_there_is_no_verdict(side: str) -> None:
    result = attack(Script(lines("member", 30)), replace(SPLIT, **{side: ()}))
    assert result.verdict == "inconclusive"
    assert result.control["nonmembers"] is None
    assert result.control["randomisation_p"] is None
    assert result.headline.estimate.value is None  # there is nothing to compare it with
    assert {row["is_member_hit"] for row in result.rows} == {None}


def test_uneven_sides_are_compared_on_equal_shares_and_said_so() -> None:
    split = replace(SPLIT, nonmembers=SPLIT.nonmembers[:10])
    result = attack(Script(lines("member", 30), reference=Script(lines("member", 30))), split)
    assert any(note.startswith("30 members and 10 non-members") for note in result.notes)
    # Headline, both controls and the rows all count ten of each side; the other members stand by themselves.
    assert estimate(result.metrics, HEADLINE).value == pytest.approx(1 / 3)
    assert estimate(result.control["base"], HEADLINE).value == pytest.approx(1 / 3)
    assert estimate(result.control["difference"], "vanilla/none/state_precision").value == pytest.approx(1 / 3)
    assert sum(row["is_member_hit"] for row in result.rows) == 10
    assert result.headline.estimate == result.metrics["vanilla/dc_ppl/state_precision@20"]
    assert estimate(result.metrics, f"members_all/{HEADLINE}").value == 1
    assert result.metrics["members_all/vanilla/dc_ppl/states@20"] == 20


def test_a_bot_that_knows_everyone_alike_shows_no_leak_on_uneven_sides() -> None:
    # Every known state is somebody's, thirty members' and ten others'; against all members it would look like a leak.
    split = replace(SPLIT, nonmembers=SPLIT.nonmembers[:10])
    result = attack(Script([*lines("member", 30), *lines("other", 10)]), split, k=40)
    assert result.headline.estimate.value == estimate(result.control["nonmembers"], f"{HEADLINE}@40").value == 0.25
    assert result.verdict == "no_leak_detected"


def test_more_nonmembers_than_members_leave_no_members_apart() -> None:
    result = attack(Script(lines("member", 30)), replace(SPLIT, members=SPLIT.members[:10]))
    assert not any(key.startswith("members_all/") for key in result.metrics)
    assert not any(key.startswith("members_all/") for key in attack(Script(lines("member", 30))).metrics)


def test_twenty_dialogues_of_one_group_are_no_leak() -> None:
    # All twenty have one goal, so the split could only ever put all of them on one side.
    related = tuple(replace(member, goal={"hotel": "any"}) for member in SPLIT.members[:20])
    split = replace(SPLIT, members=(*related, *SPLIT.members[20:]))
    result = attack(Script(lines("member", 20)), split)
    assert estimate(result.control["difference"], f"{HEADLINE}@20").value == 1
    assert result.control["randomisation_p"] == pytest.approx(0.5, abs=0.05)
    assert result.verdict == "no_leak_detected"
    assert attack(Script(lines("member", 20))).verdict == "leak"


def test_rows_say_of_each_candidate_whose_it_is() -> None:
    result = attack(Script([*lines("member", 20), *lines("other", 1), " Hotel(stars=4)", " Hotel(stars=9)"]))
    rows = {row["state"]: row for row in result.rows}
    assert len(rows) == 23
    member = rows["Hotel(name=member 0, stars=4)"]
    assert (member["is_member_hit"], member["is_nonmember_hit"]) == (True, False)
    assert (member["n_triplets"], member["count"]) == (2, 1)
    assert member["c_ppl"] == pytest.approx(2.718281828)
    assert rows["Hotel(name=other 0, stars=4)"]["is_nonmember_hit"]
    assert rows["Hotel(stars=4)"]["is_member_hit"]
    assert not rows["Hotel(stars=9)"]["is_member_hit"]


def test_wrong_settings_are_all_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        UntargetedExtraction(n_samples=0, max_new_tokens=0, k=19)
    assert [problem.split(";")[0] for problem in error.value.problems] == [
        "n_samples=0 is below 1",
        "max_new_tokens=0 is below 1",
        "k=19 is below 20",
    ]


def test_without_decoders_or_with_wrong_ones_nothing_runs() -> None:
    with pytest.raises(ConfigError) as error:
        UntargetedExtraction(decoders=["nucleus"], decoder="greedy", schema="true", curve=[0, 10], min_triplets=0)  # type: ignore[arg-type]
    assert [problem.split(" ")[0] for problem in error.value.problems] == [
        "min_triplets=0",
        "curve=0",
        "decoder",
        "decoder='greedy'",
        "schema='true'",
    ]
    with pytest.raises(ConfigError, match="decoder='vanilla' is not in decoders"):
        UntargetedExtraction(decoders=[])


@dataclass
class Choir:
    """Says other lines under each decoding, and remembers how many were asked for; knows its lines by their order."""

    songs: Mapping[float, Sequence[str]]
    """Lines by temperature."""
    reference: Any = None
    asked: list[tuple[float, int]] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.asked.append((decoding.temperature, n))
        return [list(self.songs[decoding.temperature][:n])]

    def sample_guided(
        self, prompts: Sequence[str], grammar: Grammar, *, n: int, decoding: Decoding, seed: int, law: str = "phrase"
    ) -> GuidedDraws:
        assert law == "phrase"
        self.asked.append((decoding.temperature, n))
        self.schema = grammar.schema  # type: ignore[attr-defined]
        lines = self.songs[-1][:n]
        return GuidedDraws([[Guided(line, 1, line.endswith("\n"), (0.5,)) for line in lines]], 100, n)

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        order = [f"{STATE_MARKER}{line}".rstrip() for lines in self.songs.values() for line in lines]
        ranks = {line: rank for rank, line in reversed(list(enumerate(order)))}
        return [
            torch.tensor([-float(1 + ranks.get(prompt + text, 199))])
            for prompt, text in zip(prompts, continuations, strict=True)
        ]


def several(target: Any, decoders: Sequence[str], n: int = 40, **settings: Any) -> AttackResult:
    attack = UntargetedExtraction(n_samples=n, k=20, decoders=decoders, decoder=decoders[0], **settings)
    return attack.run(target, SPLIT, GOLD, seed=0)


GOLD = Schema.of([Slot("hotel", "name"), Slot("hotel", "stars"), Slot("hotel", "area")])
SONGS = {2.0: [*lines("member", 25), *lines("nobody", 15)], 1.0: [*lines("member", 10), *lines("nobody", 30)]}


def test_every_decoder_is_measured_and_the_registered_one_is_the_headline() -> None:
    base = Choir({1.0: lines("nobody", 40), 2.0: lines("nobody", 40)})
    target = Choir(SONGS, base)
    result = several(target, ["vanilla", "temperature"], min_triplets=2)
    assert target.asked == base.asked == [(1.0, 40), (2.0, 40)]
    assert result.headline.key == "vanilla/dc_ppl/state_precision@20"
    assert result.headline.estimate.value == 10 / 20
    assert estimate(result.metrics, "temperature/dc_ppl/state_precision@20").value == 1
    assert estimate(result.metrics, "temperature/none/state_precision").value == 25 / 40
    assert estimate(result.control["nonmembers"], "temperature/none/state_precision").value == 0
    assert estimate(result.control["base"], "temperature/none/state_precision").value == 0
    assert estimate(result.control["difference"], "temperature/dc_ppl/state_precision@20").value == 1
    assert {row["decoder"] for row in result.rows} == {"vanilla", "temperature"}
    assert len(result.rows) == 80
    assert result.queries == 2 * (2 * 40 + 3 * 80)
    for name in ("vanilla", "temperature"):
        assert sum(note.startswith(f"decoder {name}: temperature=") for note in result.notes) == 1


def test_the_verdict_is_corrected_for_the_number_of_decoders() -> None:
    target = Choir(SONGS)
    result = several(target, ["vanilla", "temperature"], min_triplets=2)
    assert result.verdict == "leak"  # by the decoder that is not in the headline
    judged = result.control["judged"]
    assert judged["temperature"]["verdict"] == "leak"
    assert judged["temperature"]["difference"].level == pytest.approx(1 - 0.05 / 2)
    assert estimate(result.metrics, "vanilla/dc_ppl/state_precision@20/n>=2").level == pytest.approx(1 - 0.05 / 2)
    assert several(target, ["vanilla"], min_triplets=2).control["judged"]["vanilla"]["difference"].level == 0.95


def test_states_of_two_triplets_decide_nothing_by_default() -> None:
    result = several(Choir(SONGS), ["temperature"])
    assert result.headline.estimate.value == 1
    assert result.verdict == "inconclusive"
    assert result.notes[0].startswith("temperature: 0 distinct states of 5 or more triplets")
    assert result.metrics["temperature/dc_ppl/extracted_states@20/n>=5"] == 0


def test_curves_reach_as_far_as_there_are_states() -> None:
    result = several(Choir(SONGS), ["vanilla"], curve=[5, 20, 40, 41])
    # Members stand first under every score: all of the best five, ten of the best twenty, ten of all forty.
    precisions = {k: estimate(result.metrics, f"vanilla/ppl/state_precision@{k}").value for k in (5, 20, 40)}
    assert precisions == {5: 1, 20: 0.5, 40: 0.25}
    # Of the values of the best five, five names and "4" are somebody's; of all, ten names and "4" of forty-one.
    values = {k: estimate(result.metrics, f"vanilla/ppl/value_precision@{k}").value for k in (5, 20, 40)}
    assert values == {5: 1, 20: pytest.approx(11 / 21), 40: pytest.approx(11 / 41)}
    assert not any(key.endswith("@41") for key in [*result.metrics, *result.control["nonmembers"]])
    assert estimate(result.metrics, "vanilla/none/state_precision@40").value == 0.25


def test_hit_auc_says_how_well_a_score_parts_hits_from_the_rest() -> None:
    first = several(Choir(SONGS), ["vanilla"])
    last = several(Choir({1.0: [*lines("nobody", 30), *lines("member", 10)]}), ["vanilla"])
    mixed = [*lines("nobody", 1), *lines("member", 2), " Hotel(name=nobody 1, stars=4)"]
    for ranking in ("ppl", "c_ppl", "dc_ppl"):
        key = f"vanilla/{ranking}/hit_auc"
        assert estimate(first.metrics, key).value == 1
        assert estimate(last.metrics, key).value == 0
        # Each member stands before one of two strangers and after the other.
        assert estimate(several(Choir({1.0: mixed}), ["vanilla"], n=4).metrics, key).value == 0.5
    assert "over candidates" in estimate(first.metrics, "vanilla/ppl/hit_auc").method
    nobody = several(Choir({1.0: lines("nobody", 30)}), ["vanilla"], n=30)
    assert estimate(nobody.metrics, "vanilla/ppl/hit_auc").value is None


def test_a_decoder_that_draws_nothing_is_asked_for_what_it_has() -> None:
    target = Choir({0.0: lines("member", 1), 1.0: lines("member", 40)})
    result = several(target, ["greedy", "vanilla", "beam_search:num_beams=7"])
    assert target.asked == [(0.0, 1), (1.0, 40), (1.0, 7)]
    samples = [result.metrics[f"{name}/samples"] for name in ("greedy", "vanilla", "beam_search:num_beams=7")]
    assert samples == [1, 40, 7]
    assert "greedy draws nothing: it has 1 texts to give, not more" in result.notes
    assert "beam_search:num_beams=7 draws nothing: it has 7 texts to give, not more" in result.notes
    assert result.queries == 48 + 3 * 48
    assert "greedy/none/state_precision@10" not in result.metrics


GUIDED_LINES = [
    *(f" Hotel(name=member {i}, stars=4)\n" for i in range(20)),
    *(f" Hotel(name=member {i}, stars=" for i in range(20, 22)),  # cut, but one triplet is closed
    " Hotel(name=",
    " None\n",
]


def test_guided_texts_are_counted_like_all_others() -> None:
    base = Choir({-1: GUIDED_LINES})
    target = Choir({-1: GUIDED_LINES}, base)
    result = several(target, ["schema_guided"], n=24, schema="gold", min_triplets=2)
    counts = {name: result.metrics[f"schema_guided/{name}"] for name in ("samples", "cut_states", "empty_states")}
    assert counts == {"samples": 24, "cut_states": 2, "empty_states": 1}
    assert result.metrics["schema_guided/parse_failures"] == 1
    assert result.metrics["schema_guided/none/extracted_states"] == 22
    assert result.verdict == "leak"
    # Per bot 24 values that were drawn, 100 phrases that were scored, and three texts per candidate.
    assert result.queries == 2 * (24 + 100 + 3 * 22)
    assert target.schema == base.schema == GOLD
    assert any(note == "guided by the true schema (3 slots): an upper bound" for note in result.notes)
    assert any("gave what the schema allows 0.500 on average" in note for note in result.notes)


def test_guided_decoders_probe_the_bot_once_and_its_questions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = Schema.of([Slot("hotel", "name"), Slot("boat", "name")])
    asked = []

    def probe(target: Any, *, seed: int, settings: ProbeSettings) -> Probed:
        asked.append((target, seed, settings))
        return Probed(probed, 17, ["a note of the probe"])

    monkeypatch.setattr(schema_asking, "probe", probe)
    base = Choir({-1: GUIDED_LINES})
    target = Choir({-1: GUIDED_LINES}, base)
    result = several(target, ["schema_guided", "schema_guided:temperature=0.5"], n=24)
    assert asked == [(target, 0, ProbeSettings())]
    assert target.schema == base.schema == probed
    assert result.queries == 17 + 4 * (24 + 100 + 3 * 22)
    assert "guided by a probed schema: 2 slots, 1 of the true 3 among them" in result.notes
    assert "a note of the probe" in result.notes
    several(Choir(SONGS), ["vanilla", "temperature"])
    assert len(asked) == 1  # decoders without a schema need no probe


def test_a_probe_that_finds_nothing_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(target: Any, *, seed: int, settings: ProbeSettings) -> Probed:
        raise AuditError("probing found no slot")

    monkeypatch.setattr(schema_asking, "probe", probe)
    result = several(Choir({-1: GUIDED_LINES}), ["schema_guided"])
    assert (result.verdict, result.headline.estimate.value) == ("inconclusive", None)
    assert result.notes == ["sampling failed: probing found no slot"]


def test_one_failing_decoder_leaves_the_whole_attack_open() -> None:
    result = several(Choir({1.0: lines("member", 30), 2.0: lines("member", 29)}), ["vanilla", "temperature"], n=30)
    assert (result.verdict, result.headline.estimate.value) == ("inconclusive", None)
    assert result.notes == ["sampling failed: the target returned 29 of 30 samples"]


def test_no_number_is_nan() -> None:
    result = several(Choir(SONGS), ["vanilla", "temperature"])
    values = [metric.value if isinstance(metric, Estimate) else metric for metric in result.metrics.values()]
    assert not any(isinstance(value, float) and math.isnan(value) for value in values)
    assert AttackResult.model_validate_json(result.model_dump_json()).model_dump_json() == result.model_dump_json()


@dataclass
class Endpoint(Script):
    """Says what it is asked for plainly, knows no beams, and tells no more than its tier."""

    tier: str = "full"

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        if decoding.num_beams > 1:
            raise UnsupportedError("the endpoint knows no decoder with num_beams=50")
        return [list(self.lines[:n])]


def test_a_decoder_that_the_target_cannot_do_costs_no_other_one() -> None:
    target = Endpoint(lines("member", 30), reference=Endpoint(lines("other", 30)))
    specs = ["vanilla", "beam_search"]
    plain = UntargetedExtraction(n_samples=30, k=20, min_triplets=1).run(target, SPLIT, SCHEMA, seed=0)
    result = UntargetedExtraction(n_samples=30, k=20, min_triplets=1, decoders=specs).run(target, SPLIT, SCHEMA, seed=0)
    assert result.headline == plain.headline
    assert result.verdict == plain.verdict == "leak"
    assert not any(key.startswith("beam_search/") for key in result.metrics)
    assert any("beam_search not measured: the endpoint knows no decoder" in note for note in result.notes)


def test_the_registered_decoder_must_be_known() -> None:
    target = Endpoint(lines("member", 30))
    with pytest.raises(UnsupportedError, match="num_beams"):
        UntargetedExtraction(n_samples=30, k=20, decoders=["vanilla", "beam_search"], decoder="beam_search").run(
            target, SPLIT, SCHEMA, seed=0
        )


def test_guided_decoders_are_left_out_where_no_probabilities_are_told() -> None:
    target = Endpoint(lines("member", 30), is_scored=False, tier="text")
    chosen = UntargetedExtraction(n_samples=30, k=20, decoders=["vanilla", "schema_guided"])
    assert chosen.needs == "text"
    assert replace(chosen, decoder="schema_guided").needs == "full"
    notes = chosen.run(target, SPLIT, SCHEMA, seed=0).notes
    assert "schema_guided not measured: it chooses by probabilities, and the target's tier is 'text'" in notes
