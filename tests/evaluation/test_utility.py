from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import sacrebleu
import torch

from hushbot.errors import AuditError
from hushbot.evaluation.tracking import TrackedTurn
from hushbot.evaluation.utility import UtilitySettings, bleu, measure_utility, perplexity
from hushbot.prompts import history_lines, render_state, state_prompt
from hushbot.targets.guarded import GuardedTarget
from hushbot.types import Decoding, Dialogue, DialogueState, SlotValue, Turn

CONTRACT = {"joint_goal_accuracy", "state_precision", "state_recall", "state_f1", "bleu", "perplexity"}


def state(**slots: str) -> DialogueState:
    return frozenset(SlotValue("hotel", slot, value) for slot, value in slots.items())


DIALOGUES = [
    Dialogue(
        f"d{i}",
        (
            Turn(
                f"north {i}",
                state(area="north"),
                "",
                "hotel-request()",
                f"How many stars would you like, guest {i}?",
            ),
            Turn(
                "four",
                state(area="north", stars="4"),
                "",
                "hotel-inform()",
                f"The Avalon number {i} has four stars.",
            ),
        ),
    )
    for i in range(6)
]


class Oracle:
    """Answers every prompt with the gold text."""

    reference = None

    def __init__(self, change: Callable[[str, str], str] = lambda prompt, text: text) -> None:
        self.change = change

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        return [[self.change(prompt, self.gold(prompt))] * n for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        return [torch.full((len(text),), -math.log(2)) for text in continuations]

    def gold(self, prompt: str) -> str:
        for dialogue in DIALOGUES:
            for i, turn in enumerate(dialogue.turns):
                if prompt.startswith(state_prompt(history_lines(dialogue, i))):
                    if prompt.endswith("Belief State:"):
                        return f" {render_state(turn.state or frozenset())}"
                    return f" {turn.actions if prompt.endswith('Actions:') else turn.response}"
        raise AssertionError(f"unknown prompt {prompt!r}")


def test_gold_in_gives_the_best_of_everything() -> None:
    result = measure_utility(Oracle(), DIALOGUES, None, seed=0)
    assert set(result.estimates) >= CONTRACT
    found = {name: estimate.value for name, estimate in result.estimates.items()}
    assert {found[name] for name in CONTRACT - {"bleu", "perplexity"}} == {1.0}
    assert found["bleu"] == pytest.approx(100)
    assert found["perplexity"] == pytest.approx(2)
    assert len(result.rows) == 12
    assert result.rows[1]["predicted_state"] == " Hotel(area=north, stars=4)"
    json.dumps(result.protocol, allow_nan=False)


def test_a_cut_state_is_wrong_and_counted() -> None:
    def cut_first(prompt: str, text: str) -> str:
        return text[:-1] if prompt == "User: north 0\nBelief State:" else text

    result = measure_utility(Oracle(cut_first), DIALOGUES, None, UtilitySettings(responses=False), seed=0)
    assert result.estimates["joint_goal_accuracy"].value == 11 / 12
    assert result.estimates["state_precision"].value == 1.0
    assert result.estimates["state_recall"].value == 17 / 18
    assert result.protocol["turns_unparsed"] == 1
    assert result.protocol["turns_counted"] == 12
    assert result.rows[0]["outcome"] == "unparsed"


def test_the_protocol_names_rules_and_oracles() -> None:
    settings = UtilitySettings(dontcare="ignore", max_dialogues=2, max_new_tokens=50)
    protocol = measure_utility(Oracle(), DIALOGUES, None, settings, seed=0).protocol
    assert {
        "dontcare": "ignore",
        "missing": "wrong",
        "drop_none": False,
        "dialogues_offered": 6,
        "dialogues_used": 2,
        "turns_counted": 4,
        "turns_unknown": 0,
        "history": "gold utterances",
        "database": "the recorded result of the gold dialogue, an oracle: the corpus has no database",
        "previous_responses": "gold",
    }.items() <= protocol.items()


def test_units_sum_to_what_is_reported_and_failures_have_none() -> None:
    def cut_first(prompt: str, text: str) -> str:
        return text[:-1] if prompt == "User: north 0\nBelief State:" else text

    result = measure_utility(Oracle(cut_first), DIALOGUES, None, UtilitySettings(responses=False), seed=0)
    assert set(result.units) == {"joint_goal_accuracy", "state_precision", "state_recall", "state_f1"}
    for name, units in result.units.items():
        assert units.documents == [dialogue.id for dialogue in DIALOGUES]
        assert units.weights is not None
        ratio = sum(value or 0 for value in units.values) / sum(units.weights)
        assert ratio == pytest.approx(result.estimates[name].value)
    assert result.units["joint_goal_accuracy"].values == [1, 2, 2, 2, 2, 2]
    failed = measure_utility(_Silent(fails_at="Belief State:"), DIALOGUES, None, seed=0)
    assert failed.units == {}
    assert failed.by_domain["hotel"]["joint_goal_accuracy"].method == "not measured: the endpoint is down"


def test_the_subset_depends_on_the_seed_and_keeps_its_order() -> None:
    def used(seed: int) -> list[str]:
        settings = UtilitySettings(max_dialogues=3, responses=False)
        rows = measure_utility(Oracle(), DIALOGUES, None, settings, seed=seed).rows
        return list(dict.fromkeys(row["dialogue_id"] for row in rows))

    first = used(0)
    assert first == used(0) == sorted(first)
    assert len({tuple(used(seed)) for seed in range(3)}) > 1


class _Silent(Oracle):
    """Fails as told: an endpoint that is down, or one without log-probabilities."""

    def __init__(self, *, fails_at: str) -> None:
        super().__init__()
        self.fails_at = fails_at

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        if prompts[0].endswith(self.fails_at):
            raise AuditError("the endpoint is down")
        return super().sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        if self.fails_at == "logprobs":
            raise AuditError("the endpoint gives no log-probabilities")
        return super().logprobs(prompts, continuations)


@pytest.mark.parametrize(
    ("fails_at", "lost"),
    [
        ("Belief State:", CONTRACT - {"perplexity"}),
        ("Actions:", {"bleu"}),
        ("Response:", {"bleu"}),
        ("logprobs", {"perplexity"}),
    ],
)
def test_a_failing_target_gives_no_number_instead_of_a_low_one(fails_at: str, lost: set[str]) -> None:
    found = measure_utility(_Silent(fails_at=fails_at), DIALOGUES, None, seed=0).estimates
    assert {name for name in CONTRACT if found[name].value is None} == lost
    assert all("not measured: the endpoint" in found[name].method for name in lost)


def test_bleu_that_is_off_or_has_nothing_to_compare_with_is_not_measured() -> None:
    off = measure_utility(Oracle(), DIALOGUES, None, UtilitySettings(responses=False), seed=0)
    assert off.estimates["bleu"].value is None
    assert "utility.responses" in off.estimates["bleu"].method
    assert measure_utility(Oracle(), [], None, seed=0).estimates["bleu"].value is None


def test_bleu_is_the_corpus_score_of_sacrebleu() -> None:
    rng = random.Random(0)
    words = [
        "the",
        "hotel",
        "is",
        "in",
        "the",
        "north",
        "and",
        "has",
        "four",
        "stars",
        "but",
        "no",
        "parking",
    ]
    turns, hypotheses, references = [], [], []
    for i in range(12):
        reference = " ".join(rng.sample(words, 9))
        hypothesis = " ".join(w for w in reference.split() if rng.random() < 0.8)
        dialogue = Dialogue(f"d{i % 5}", (Turn("u", None, response=reference),))
        turns.append(
            TrackedTurn(
                dialogue=dialogue,
                turn=0,
                text="",
                state=None,
                in_use=frozenset(),
                before=frozenset(),
                history=(),
                response=hypothesis,
            )
        )
        hypotheses.append(hypothesis)
        references.append(reference)
    found = bleu(turns, seed=0)
    assert found.value == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert found.n == 12
    assert found.low is not None
    assert found.high is not None
    assert found.low < (found.value or 0) < found.high


def test_perplexity_is_per_token_over_all_dialogues() -> None:
    # 10 tokens at ln 2 and 30 tokens at ln 8: exp((10 ln 2 + 30 ln 8) / 40) = 2 ** 2.5.
    sums = [(-10 * math.log(2), 10), (-30 * math.log(8), 30), (0.0, 0)]
    found = perplexity(sums, seed=0)
    assert found.value == pytest.approx(2**2.5)
    assert found.n == 40
    assert [found.low, found.high] == pytest.approx([2, 8])
    assert perplexity([(0.0, 0)], seed=0).value is None
    assert perplexity([(-1e6, 1), (-1e6, 1)], seed=0).value is None  # too large for a number


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_dialogues": 0}, "max_dialogues=0 must be at least 1 or null"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
        ({"dontcare": "maybe"}, "dontcare='maybe'"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UtilitySettings(**settings)  # type: ignore[arg-type]


def test_scoring_states_needs_no_torch() -> None:
    code = "import sys, hushbot.evaluation.utility; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class LastLine:
    """Lets a bot read one line, and say little about a line of one word."""

    def shorten(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        return lines[-1:]

    def shorten_gold(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        return lines[-1:]

    def room(self, prompt: str) -> int | None:
        return 20 if prompt.startswith("User: four") else None

    def protocol(self) -> dict[str, object]:
        return {"history_limit": "one line"}


class Deaf(Oracle):
    """Answers whatever it reads."""

    def gold(self, prompt: str) -> str:
        return " None"


def test_the_protocol_counts_the_turns_that_lost_history() -> None:
    settings = UtilitySettings(responses=False)
    longer = sum(max(len(dialogue.turns) - 1, 0) for dialogue in DIALOGUES)
    assert longer > 0
    for limit, n in ((None, 0), (LastLine(), longer)):
        protocol = measure_utility(Deaf(), DIALOGUES, None, settings, seed=0, limit=limit).protocol
        assert protocol["turns_truncated"] == n
        # Short of room: the second turn's question alone.
        assert protocol["answers_squeezed"] == n
        assert protocol.get("history_limit") == (None if limit is None else "one line")


def test_a_stage_that_failed_counts_no_turns() -> None:
    settings = UtilitySettings(responses=False)
    failed = measure_utility(_Silent(fails_at="Belief State:"), DIALOGUES, None, settings, seed=0).protocol
    done = measure_utility(Oracle(), DIALOGUES, None, settings, seed=0).protocol
    names = [name for name in done if name.startswith(("turns_", "answers_"))]
    assert {"turns_counted", "turns_missing", "turns_truncated"} < set(names)
    assert all(failed[name] is None for name in names)
    assert all(done[name] is not None for name in names)


def test_perplexity_behind_a_guard_is_said_to_be_the_bots_own() -> None:
    settings = UtilitySettings(responses=False)
    bare = measure_utility(Oracle(), DIALOGUES, None, settings, seed=0).protocol
    guarded = measure_utility(GuardedTarget(Oracle()), DIALOGUES, None, settings, seed=0).protocol
    assert guarded["perplexity"] == f"of the bot without its guards; {bare['perplexity']}"
    assert "guards" not in str(bare["perplexity"])
    assert (bare["guards"], guarded["guards"]) == ([], ["guarded"])
