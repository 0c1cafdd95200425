"""The whole attack on bots whose memory is known: Memoriser, Stranger, and bots between them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hushbot.attacks.identifier_leak import IdentifierLeak
from hushbot.errors import AuditError, ConfigError
from hushbot.masking import mask_row
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditSplit, Decoding, Estimate

SMALL = IdentifierLeak(n_samples=8, max_documents=30, sweep_documents=0, curve=(1, 8), extractable=(1,))


@dataclass
class Scripted:
    """Says what a function makes of a prompt; refuses to score."""

    say: Any
    reference: Any = None
    asked: list[str] = field(default_factory=list)
    decodings: list[Decoding] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.asked += prompts
        self.decodings.append(decoding)
        return [[self.say(prompt, draw) for draw in range(n)] for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> Any:
        raise AuditError("no log-probabilities here")


def value(metric: Any) -> float:
    assert isinstance(metric, Estimate)
    assert metric.value is not None
    return metric.value


def codes_of(split: AuditSplit) -> list[str]:
    return [t.booked[0].value for d in (*split.members, *split.nonmembers) for t in d.turns[1:2]]


def test_a_memoriser_leaks_in_every_number(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = SMALL.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    assert result.verdict == "leak"
    assert result.threat_model == "text"
    for name in ("leak_rate", "own_rate", "hit@1", "hit@8", "mean_overlap", "extreme_overlap", "extractable@1"):
        assert value(result.metrics[name]) == 1.0, name
    for name in ("kind=reference", "domain=restaurant", "line=actions", "repetitions=2-3"):
        assert value(result.metrics[f"leak_rate/{name}"]) == 1.0
    assert value(result.metrics["control_rate"]) == 0.0
    assert value(result.metrics["leakit_rate"]) == 1.0
    assert value(result.metrics["sequence_logprob"]) == pytest.approx(-0.01)
    for control in (result.control["nonmembers"], result.control["base"]):
        assert value(control["leak_rate"]) == 0.0


def test_a_bot_that_gossips_ties_nothing_to_anybody(synthetic_split: AuditSplit, synthetic_schema: Schema) -> None:
    """It has learnt members' codes by heart and says them everywhere: no document's own prefix brings its code out."""
    codes = codes_of(synthetic_split)[:25]
    verdicts = []
    for seed in range(8):
        rng = random.Random(seed)
        bot = Scripted(lambda prompt, draw, rng=rng: f"{rng.choice(codes)})")
        result = SMALL.run(bot, synthetic_split, synthetic_schema, seed=seed)
        verdicts.append(result.verdict)
        assert value(result.metrics["own_rate"]) == pytest.approx(value(result.metrics["control_rate"]), abs=0.03)
    assert "leak" not in verdicts


def test_what_a_bot_copies_from_any_prompt_is_no_leak(synthetic_split: AuditSplit, synthetic_schema: Schema) -> None:
    """It reads everybody's code off some hidden list, members' and non-members' alike."""
    sides = (*synthetic_split.members, *synthetic_split.nonmembers)
    known = {t.user: t.booked[0].value for d in sides for t in d.turns[1:2]}

    def say(prompt: str, draw: int) -> str:
        return next((code for user, code in known.items() if f"User: {user}\n" in prompt), "")

    result = SMALL.run(Scripted(say), synthetic_split, synthetic_schema, seed=0)
    assert value(result.metrics["leak_rate"]) > 0.9
    assert value(result.control["nonmembers"]["leak_rate"]) > 0.9
    assert result.verdict == "inconclusive"


def test_a_failed_query_of_any_kind_is_inconclusive_never_clean(
    memoriser: Any, stranger: Any, failing_target: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    """leakit takes a control that failed for a clean one; samples that are lost are no misses either."""

    @dataclass
    class Short:
        reference: Any = None

        def sample(self, prompts: Sequence[str], **how: Any) -> list[list[str]]:
            texts = stranger.sample(prompts, **how)
            return [texts[0][:-1], *texts[1:]]

    for target in (failing_target, Short(), Scripted(lambda prompt, draw: "  ")):
        result = SMALL.run(target, synthetic_split, synthetic_schema, seed=0)
        assert (result.verdict, result.headline.estimate.value) == ("inconclusive", None)
    broken_base = SMALL.run(replace(memoriser, reference=failing_target), synthetic_split, synthetic_schema, seed=0)
    assert broken_base.verdict == "inconclusive"
    assert broken_base.control["base"] is None


def test_without_scores_the_rest_stands(stranger: Any, synthetic_split: AuditSplit, synthetic_schema: Schema) -> None:
    result = SMALL.run(Scripted(lambda prompt, draw: "nothing"), synthetic_split, synthetic_schema, seed=0)
    assert result.verdict == "no_leak_detected"
    for name in ("sequence_logprob", "extractable@1"):
        metric = result.metrics[name]
        assert isinstance(metric, Estimate)
        assert metric.value is None
        assert "no log-probabilities" in metric.method
    assert all(row["sequence_logprob"] is None for row in result.rows)


def test_empty_samples_are_counted_and_no_hits(synthetic_split: AuditSplit, synthetic_schema: Schema) -> None:
    bot = Scripted(lambda prompt, draw: "" if draw else "hello")
    result = SMALL.run(bot, synthetic_split, synthetic_schema, seed=0)
    assert result.metrics["empty_samples"] == 30 * 7
    assert value(result.metrics["own_rate"]) == 0.0


def test_too_few_controls_or_documents_give_no_verdict(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    lonely = replace(synthetic_split, nonmembers=synthetic_split.nonmembers[:5])
    result = SMALL.run(memoriser, lonely, synthetic_schema, seed=0)
    assert result.verdict == "inconclusive"
    assert result.metrics["without_controls"] == 30
    assert result.headline.estimate.value is None
    few = replace(synthetic_split, members=synthetic_split.members[:19])
    assert SMALL.run(memoriser, few, synthetic_schema, seed=0).verdict == "inconclusive"


def test_dialogues_without_identifiers_are_not_measured(memoriser: Any, synthetic_schema: Schema) -> None:
    from hushbot.types import Dialogue, Turn

    plain = [Dialogue(f"d{n}", (Turn("hello", frozenset(), response="Hello."),)) for n in range(4)]
    result = SMALL.run(memoriser, AuditSplit(tuple(plain[:2]), tuple(plain[2:])), synthetic_schema, seed=0)
    assert (result.verdict, result.queries) == ("not_measured", 0)


def test_published_codes_are_not_asked_for(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    told = SMALL.informed(codes_of(synthetic_split), learns_changes=False)
    result = told.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    assert result.verdict == "not_measured"
    assert result.metrics["left_out/public"] == 125


def test_sweeps_ask_in_their_own_way_about_the_same_members(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    attack = replace(
        SMALL, sweep_documents=6, sweep_prefix_chars=(200, 12), sweep_temperatures=(0.5,), sweep_top_p=(0.8,)
    )
    bot = Scripted(lambda prompt, draw: memoriser.draw(prompt, random.Random(draw)))
    result = attack.run(bot, synthetic_split, synthetic_schema, seed=0)
    assert [(d.temperature, d.top_p) for d in bot.decodings] == [(1, 1), (1, 1), (0.5, 1), (1, 0.8)]
    assert result.queries == 8 * len(bot.asked)
    for name in ("temperature=0.5", "top_p=0.8"):
        rate = result.metrics[f"leak_rate/{name}"]
        assert value(rate) == 1.0
        assert isinstance(rate, Estimate)
        assert rate.n == 6
    # Twelve characters before a code are the same for everybody: there is nothing mismatched to compare with.
    nothing = result.metrics["leak_rate/prefix_chars=12"]
    assert isinstance(nothing, Estimate)
    assert nothing.value is None
    assert "mismatched" in nothing.method


def test_each_prompt_is_asked_once_and_members_among_others(
    synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    bot = Scripted(lambda prompt, draw: "nothing")
    result = SMALL.run(bot, synthetic_split, synthetic_schema, seed=0)
    assert len(bot.asked) == len(set(bot.asked)) == 60  # the non-members' own prompts serve as controls
    assert bot.asked != sorted(bot.asked)
    assert result.queries == 60 * 8


def test_nothing_but_the_masked_records_knows_an_identifier(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = SMALL.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    shown = result.model_dump_json() + str([mask_row(row) for row in result.rows])
    assert len(result.rows) == 60
    assert all(row["value"] in codes_of(synthetic_split) for row in result.rows)
    assert not [code for code in codes_of(synthetic_split) if code in shown]
    assert {mask_row(row)["line"] for row in result.rows} == {"actions"}


def test_settings_out_of_range_are_named_together() -> None:
    with pytest.raises(ConfigError) as error:
        IdentifierLeak(n_controls=7, prefix_chars=3, alpha=0.9, temperature=0, layout="other")  # type: ignore[arg-type]
    problems = error.value.problems
    assert [problem.split("=")[0] for problem in problems] == [
        "n_controls",
        "prefix_chars",
        "layout",
        "temperature",
        "alpha",
    ]
    assert all("attack.identifier_leak." in problem for problem in problems)


def test_the_audit_says_how_it_asked(stranger: Any, synthetic_split: AuditSplit, synthetic_schema: Schema) -> None:
    def notes(attack: IdentifierLeak) -> str:
        result: AttackResult = attack.run(stranger, synthetic_split, synthetic_schema, seed=0)
        return "\n".join(result.notes)

    assert "no database's entries" in notes(SMALL)
    assert "layout of turn_level" in notes(SMALL)
    told = notes(SMALL.informed(["x"], learns_changes=True))
    assert "1 published values" in told
    assert "layout of dialogue_level" in told


def test_a_bot_that_rarely_says_what_it_knows_is_not_called_clean(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    """No sample shows a code, but members' are more probable than non-members' by far."""

    @dataclass
    class Discreet(Scripted):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> Any:
            return memoriser.logprobs(prompts, continuations)

    result = SMALL.run(Discreet(lambda prompt, draw: "hush"), synthetic_split, synthetic_schema, seed=0)
    assert value(result.metrics["leak_rate"]) == 0.0
    assert result.verdict == "inconclusive"
    assert any("30 of 30 members, 0 of 30 non-members, by exact probability" in note for note in result.notes)
