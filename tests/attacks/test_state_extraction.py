"""Untargeted extraction on scripted bots, with results that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from hushbot.attacks.state_extraction import UntargetedExtraction
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER
from hushbot.schema import Schema
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
