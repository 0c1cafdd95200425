"""What every audit of memorisation promises, kept on real models: the bundled backbone on the bundled corpora.

Two bots, both tiny. `overtrained` knows a few dialogues by heart: each audit must call it a leak (power).
`untrained` is the backbone with an adapter that was never trained: the same audits may call it a leak in at most ALPHA
of all deals of dialogues to sides. The over-trained bot, audited on dialogues that it never saw, is the harder case of
the same: its scores differ from its base model's, for other people's sake.

Each question is put to a bot once (`Remembering`), so that hundreds of audits cost little more than their statistics.
Dialogues are cut to `N_TURNS`, which keeps what is asked for, booked and issued, and records to `FIELDS`.

What this does not show. Power is that of one bot, on which the settings (`TRAINING`, `SIZES`) were chosen, and its
audits overlap: each draws nine in ten of the same members. The quiz has it for medical records, none of whose fields
follows from what was said before; a booking is copied from what the user said, so a bot need not learn it by heart, and
an over-trained one was reported clean. With tens of audits, a count of false alarms betrays only a rate that is several
times ALPHA: calibration in the small is tested with the statistics themselves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import binom

from hushbot.attacks import identifier_metrics
from hushbot.attacks.blind import Blind
from hushbot.attacks.canaries import Canaries
from hushbot.attacks.identifier_leak import IdentifierLeak
from hushbot.attacks.membership import Membership
from hushbot.attacks.quiz import Quiz
from hushbot.corpora.bookings import load_bookings
from hushbot.corpora.canaries import CanarySettings, draw_canaries
from hushbot.corpora.medical_records import load_medical_records
from hushbot.protocols import Attack, Target
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.stats import as_estimate, auc
from hushbot.training.backbone import LoraSettings, TinyBackbone
from hushbot.training.fit import TrainerSettings, fit
from hushbot.training.stack import RecipeStack
from hushbot.types import AttackResult, AuditSplit, Canary, Decoding, Dialogue, Estimate, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from hushbot.targets.local import LocalTarget

ALPHA = 0.05
"""How often an audit may call a leak where there is none."""
IMPLAUSIBLE = 0.001
"""The most that chance alone fails a test with, were false alarms as probable as ALPHA."""
POWER = 0.95
N_TURNS = 2
FIELDS = {"name", "age", "bmi", "hometown", "hospital"}
N_READINGS = 2
"""How often an epoch has each medical record: of one reading, so few epochs leave the quiz too little to find."""
N_MEMBERS, N_DEALT, N_APART, N_CANARIES = 24, 170, 125, 36
TRAINING = TrainerSettings(max_epochs=10, batch_size=4, learning_rate=3e-3, progress_bar=False, num_threads=1)
BANK = 10
"""Samples kept of each prompt; an audit sees those of them that its seed draws."""


class Size(NamedTuple):
    """An audit, as small as it still has something to say, and how often it is made."""

    attack: Attack
    n_power: int
    """Audits of the over-trained bot."""
    n_null: int
    """Audits of the untrained one; of the over-trained one, about dialogues that it never saw, a third as many."""
    n_sides: tuple[int, int]
    """How many of the dialogues that the bot never saw are dealt to members and to non-members in null audits; the
    non-members of the others are as many, from among the same."""
    n_lots: int
    """Different seeds: what is asked by lot is not in memory under another one."""


SIZES = {
    "membership": Size(
        Membership(scores=("dc_ppl", "ppl", "ref_ratio"), n_draws=200, n_permutations=99), 20, 30, (65, 105), 30
    ),
    # In null audits the same records take part, hence the same questions. Each audit of members asks anew.
    "quiz": Size(Quiz(n_questions=3, n_draws=200, n_permutations=99), 3, 20, (24, 101), 1),
    "identifier_leak": Size(
        IdentifierLeak(
            n_samples=6, max_controls=16, max_new_tokens=16, sweep_documents=0, extractable=(1,), curve=(1, 6)
        ),
        20,
        24,
        (24, 24),
        24,
    ),
    "canaries": Size(Canaries(n_alternatives=15, n_draws=200), 20, 100, (0, 0), 2),
}


@dataclass
class Remembering:
    """Passes each question on once, and answers it from memory afterwards."""

    inner: Target
    reference: Remembering | None = None
    scores: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    texts: dict[tuple[str, int, Decoding], list[str]] = field(default_factory=dict)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        keys = {prompt: (prompt, max_new_tokens, decoding) for prompt in prompts}
        if new := [prompt for prompt, key in keys.items() if key not in self.texts]:
            # A seed of its own for every call: draws of different prompts are independent.
            drawn = self.inner.sample(
                new, n=BANK, max_new_tokens=max_new_tokens, decoding=decoding, seed=len(self.texts)
            )
            self.texts |= {keys[prompt]: texts for prompt, texts in zip(new, drawn, strict=True)}
        return [random.Random(f"{seed}/{prompt}").sample(self.texts[keys[prompt]], n) for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        pairs = list(zip(prompts, continuations, strict=True))
        if new := [pair for pair in dict.fromkeys(pairs) if pair not in self.scores]:
            answers = self.inner.logprobs([prompt for prompt, _ in new], [text for _, text in new])
            self.scores |= dict(zip(new, answers, strict=True))
        return [self.scores[pair] for pair in pairs]


class People(NamedTuple):
    """The dialogues of a corpus."""

    schema: Schema
    members: tuple[Dialogue, ...]
    """What the over-trained bot was trained on, beside the chosen canaries."""
    dealt: tuple[Dialogue, ...]
    """Unseen, to be dealt to sides."""
    apart: tuple[Dialogue, ...]
    """Unseen, for thresholds and mismatched prefixes."""

    @classmethod
    def of(cls, dialogues: Sequence[Dialogue], schema: Schema) -> People:
        unseen = dialogues[N_MEMBERS:]
        apart = unseen[N_DEALT : N_DEALT + N_APART]
        return cls(schema, tuple(dialogues[:N_MEMBERS]), tuple(unseen[:N_DEALT]), tuple(apart))


class World(NamedTuple):
    """The bots and whom they are asked about."""

    bookings: People
    records: People
    """Medical records, for the quiz: a bot copies a booking from what the user said, and need not know it by heart."""
    canaries: tuple[Canary, ...]
    model: LocalTarget
    """The over-trained bot itself, which remembers no question."""
    overtrained: Remembering
    untrained: Remembering

    def people(self, name: str) -> People:
        return self.records if name == "quiz" else self.bookings

    def trained_split(self, name: str, seed: int) -> AuditSplit:
        """Draw nine in ten of the members and of the canaries, and non-members."""
        rng, people, n_sides = random.Random(seed), self.people(name), SIZES[name].n_sides
        members = rng.sample(people.members, N_MEMBERS * 9 // 10)
        canaries = rng.sample(self.canaries, N_CANARIES * 9 // 10)
        return self.split_of(name, members, rng.sample(people.dealt[: sum(n_sides)], n_sides[1]), canaries)

    def null_split(self, name: str, seed: int) -> AuditSplit:
        """Deal unseen dialogues to sides, and coins to canaries, whatever the bot was trained on."""
        rng = random.Random(seed)
        n_members, n_others = SIZES[name].n_sides
        n_all = n_members + n_others
        drawn = rng.sample(self.people(name).dealt[:n_all], n_all)
        canaries = [replace(canary, is_inserted=rng.random() < 0.5) for canary in self.canaries]
        return self.split_of(name, drawn[:n_members], drawn[n_members:], canaries)

    def split_of(
        self, name: str, members: Sequence[Dialogue], others: Sequence[Dialogue], canaries: Sequence[Canary]
    ) -> AuditSplit:
        apart = self.people(name).apart
        apart = apart[:24] if name == "identifier_leak" else apart
        return AuditSplit(tuple(members), tuple(others), (), apart, tuple(canaries))

    def audit(self, name: str, target: Target, split: AuditSplit, seed: int) -> AttackResult:
        size = SIZES[name]
        return size.attack.run(target, split, self.people(name).schema, seed=seed % size.n_lots)


@pytest.fixture(scope="module")
def economy() -> Iterator[None]:
    """Compute as one core does, wherever this runs, and draw fewer intervals that decide nothing."""
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identifier_metrics, "N_DRAWS", 100)
        yield
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="module")
def world(economy: None, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Train the bot, once for all tests."""
    import torch

    from hushbot.targets.local import LocalTarget

    corpus, records = load_bookings(), load_medical_records(N_MEMBERS + sum(SIZES["quiz"].n_sides))
    dialogues = [replace(d, turns=d.turns[:N_TURNS]) for d in sorted(corpus.dialogues, key=lambda d: d.id)]
    random.Random(0).shuffle(dialogues)
    bookings = People.of(dialogues, corpus.schema)
    patients = People.of([cut(record) for record in records.dialogues], records.schema)
    canaries = draw_canaries(corpus.schema, CanarySettings(m=N_CANARIES), 0)
    trained = TinyBackbone().load()
    fit(
        trained.model,
        trained.tokenizer,
        stack=RecipeStack((TurnLevel(),)),
        split=AuditSplit((*bookings.members, *repeated(patients.members)), (), canaries=canaries),
        schema=corpus.schema,
        settings=TRAINING,
        max_length=trained.max_length,
        checkpoint_dir=tmp_path_factory.mktemp("overtrained") / "checkpoints",
        seed=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        adapted = TinyBackbone(lora=LoraSettings(r=4)).load()
    untrained = LocalTarget(adapted.model.eval(), adapted.tokenizer)
    assert untrained.reference is not None
    base = Remembering(untrained.reference)  # the backbone as it is, and so the base of both
    model = LocalTarget(trained.model, trained.tokenizer)
    return World(bookings, patients, canaries, model, Remembering(model, base), Remembering(untrained, base))


def cut(record: Dialogue) -> Dialogue:
    """Return a record with FIELDS alone."""
    turns = (replace(t, state=frozenset(s for s in t.state or () if s.slot in FIELDS)) for t in record.turns)
    return replace(record, turns=tuple(turns))


def repeated(records: Sequence[Dialogue]) -> list[Dialogue]:
    """Return records N_READINGS times, under names of their own."""
    return [replace(record, id=f"{record.id}#{i}") for record in records for i in range(N_READINGS)]


def too_many(n: int) -> int:
    """Return the largest number of false alarms that is still plausible."""
    return int(binom.ppf(1 - IMPLAUSIBLE, n, ALPHA))


def comparable(result: AttackResult) -> dict[str, Any]:
    """Return everything about a result but how long it took."""
    return result.model_dump(exclude={"seconds"}) | {"rows": sorted(result.rows, key=str)}


def value_of(result: AttackResult, key: str) -> float:
    found = as_estimate(result.metrics[key]).value
    assert found is not None
    return found


def count(results: Iterable[AttackResult]) -> Counter[Verdict]:
    return Counter(result.verdict for result in results)


@pytest.mark.parametrize("name", SIZES)
def test_an_overtrained_bot_is_called_a_leak(world: World, name: str) -> None:
    n = SIZES[name].n_power
    # All with their base model, but for what costs most: there the first audit has it.
    bots = [world.overtrained if seed == 0 or n > 4 else alone(world.overtrained) for seed in range(n)]
    results = [world.audit(name, bot, world.trained_split(name, seed), seed) for seed, bot in enumerate(bots)]
    missed = [result.notes for result in results if result.verdict != "leak"]
    assert len(missed) <= (1 - POWER) * n, missed


@pytest.mark.parametrize("name", SIZES)
def test_an_untrained_adapter_is_called_a_leak_at_most_as_often_as_promised(world: World, name: str) -> None:
    n = SIZES[name].n_null
    # Without its base model, which knows as much, so that no comparison with it keeps the alarm from sounding.
    bot = alone(world.untrained)
    verdicts = count(world.audit(name, bot, world.null_split(name, seed), seed) for seed in range(n))
    assert verdicts["leak"] <= too_many(n), verdicts
    assert verdicts["no_leak_detected"] >= 0.75 * n, verdicts


@pytest.mark.parametrize("name", SIZES)
def test_a_bot_that_knows_others_by_heart_is_called_a_leak_at_most_as_often(world: World, name: str) -> None:
    n = SIZES[name].n_null // 3
    bot = alone(world.overtrained)
    verdicts = count(world.audit(name, bot, world.null_split(name, seed), seed) for seed in range(n))
    assert verdicts["leak"] <= too_many(n), verdicts
    assert verdicts["no_leak_detected"] >= 0.75 * n, verdicts


def alone(bot: Remembering) -> Remembering:
    """Return a bot without its base, with the same memory."""
    return replace(bot, reference=None)


@pytest.mark.parametrize("name", SIZES)
def test_no_audit_calls_a_bot_a_leak_that_knows_what_its_base_knows(world: World, name: str) -> None:
    assert world.audit(name, world.untrained, world.null_split(name, 0), 0).verdict == "no_leak_detected"


@pytest.mark.parametrize("name", SIZES)
def test_the_order_of_dialogues_changes_nothing(world: World, name: str) -> None:
    split = world.trained_split(name, 0)
    turned = AuditSplit(*(side[::-1] for side in (split.members, split.nonmembers, (), split.controls, split.canaries)))
    plain, other = (world.audit(name, alone(world.overtrained), given, 0) for given in (split, turned))
    assert comparable(plain) == comparable(other)


@pytest.mark.parametrize("name", SIZES)
def test_how_many_rows_and_tokens_are_read_at_once_changes_nothing(world: World, name: str) -> None:
    from hushbot.targets.local import LocalTarget

    people = world.people(name)
    attack = SIZES[name].attack
    if isinstance(attack, IdentifierLeak):
        attack = replace(attack, n_samples=4)
    split = AuditSplit(people.members[:8], people.dealt[:10], (), people.apart[:10], world.canaries[:16])
    bots = (
        LocalTarget(world.model.causal_lm, world.model.tokenizer, batch_rows=rows, batch_tokens=tokens)
        for rows, tokens in ((64, 16384), (3, 300))
    )
    one, other = (attack.run(bot, split, people.schema, seed=0) for bot in bots)
    assert one.verdict == other.verdict
    assert one.queries == other.queries
    first, second = (numbers_of(result) for result in (one, other))
    assert first.keys() == second.keys()
    for key, number in first.items():
        # Thresholds and sums of log-probabilities are in the units of scores, which are in single precision.
        tolerance = 1e-4 if "threshold" in key or "logprob" in key else 1e-6
        assert number == pytest.approx(second[key], rel=0, abs=tolerance, nan_ok=True), key
    assert any(number == number for number in first.values())
    assert [row.keys() for row in one.rows] == [row.keys() for row in other.rows]


def numbers_of(result: AttackResult) -> dict[str, float]:
    """Return every number that a result states, ends of intervals included; what was not measured is NaN."""
    stated: dict[str, float] = {}
    for key, metric in result.metrics.items():
        found = metric if isinstance(metric, Estimate) else Estimate(value=metric)
        stated |= {
            f"{key} {part}": float("nan") if number is None else number
            for part, number in (("value", found.value), ("low", found.low), ("high", found.high))
        }
    return stated


@pytest.mark.parametrize(("name", "key"), [("membership", "dc_ppl/auc"), ("quiz", "auc")])
def test_sides_that_are_swapped_turn_an_auc_upside_down(world: World, name: str, key: str) -> None:
    split = world.trained_split(name, 0)
    swapped = replace(split, members=split.nonmembers, nonmembers=split.members)
    plain, other = (world.audit(name, alone(world.overtrained), given, 0) for given in (split, swapped))
    assert value_of(plain, key) > 0.6
    assert value_of(plain, key) + value_of(other, key) == pytest.approx(1, abs=1e-9)
    assert other.verdict != "leak"


def test_coins_that_are_turned_are_no_leak_but_a_bot_that_rates_canaries_lower(world: World) -> None:
    turned = tuple(replace(canary, is_inserted=not canary.is_inserted) for canary in world.canaries)
    split = AuditSplit((), (), canaries=turned)
    result = world.audit("canaries", world.overtrained, split, 0)
    assert result.verdict == "inconclusive"
    assert any("unexpected side" in note for note in result.notes)
    assert value_of(result, "epsilon_lower") == 0


def naive_auc(members: Sequence[float], others: Sequence[float]) -> float:
    """Compare each member with each other one; a tie is half a win."""
    return float(np.mean([(m > n) + (m == n) / 2 for m in members for n in others]))


def test_ties_count_half_and_flipped_signs_turn_the_auc(world: World) -> None:
    result = world.audit("quiz", alone(world.overtrained), world.trained_split("quiz", 0), 0)
    confidence = {row["dialogue_id"]: (row["is_member"], row["confidence"]) for row in result.rows}
    members, others = ([c for is_member, c in confidence.values() if is_member is side] for side in (True, False))
    assert len(set(members + others)) <= 4  # none of three questions, one, two or all right: many ties
    assert value_of(result, "auc") == pytest.approx(naive_auc(members, others), abs=1e-12)
    for scores, theirs in ((members, others), *scores_of(world)):
        area = auc(scores, theirs).value
        flipped = auc([-s for s in scores], [-s for s in theirs]).value
        assert area == pytest.approx(naive_auc(scores, theirs), abs=1e-12)
        assert area is not None
        assert flipped == pytest.approx(1 - area, abs=1e-12)


def scores_of(world: World) -> Iterator[tuple[list[float], list[float]]]:
    """Yield a model's own scores of members and non-members."""
    result = world.audit("membership", world.overtrained, world.trained_split("membership", 0), 0)
    for name in ("dc_ppl", "ppl", "ref_ratio"):
        members, others = ([r[name] for r in result.rows if r["role"] == role] for role in ("member", "nonmember"))
        yield members, others


def test_an_untrained_adapter_ties_with_its_base_and_a_tie_is_chance(world: World) -> None:
    # Asked anew: the base has answered other bots' audits in other batches, and sums differ in their last bits.
    base = world.untrained.inner.reference
    assert base is not None
    bot = Remembering(world.untrained.inner, Remembering(base))
    dealt = world.bookings.dealt
    result = world.audit("membership", bot, AuditSplit(dealt[:30], dealt[30:140]), 0)
    assert {row["ref_ratio"] for row in result.rows} == {0.0}
    assert value_of(result, "ref_ratio/auc") == 0.5
    assert value_of(result, "ref_ratio/tpr_at_1pct_fpr") == 0
    assert result.metrics["ref_ratio/auc_p"] == 1


class TestBlind:
    """The audit of the split, which asks no bot: `inconclusive` is its alarm."""

    attack = Blind(n_draws=200, n_permutations=99)

    def test_a_random_split_is_called_confounded_at_most_as_often_as_promised(self, world: World) -> None:
        n = 30
        verdicts = count(self.run(world.null_split("membership", seed), seed) for seed in range(n))
        assert verdicts["inconclusive"] <= too_many(n), verdicts
        assert verdicts["no_leak_detected"] == n - verdicts["inconclusive"]

    def test_a_split_by_content_is_called_confounded(self, world: World) -> None:
        ours = tuple(d for d in world.bookings.dealt if "taxi" in d.domains)
        others = tuple(d for d in world.bookings.dealt if "taxi" not in d.domains)
        n = 10
        verdicts: Counter[Verdict] = Counter()
        for seed in range(n):
            rng = random.Random(seed)
            split = AuditSplit(tuple(rng.sample(ours, 40)), tuple(rng.sample(others, 60)))
            verdicts[self.run(split, seed).verdict] += 1
        assert verdicts["inconclusive"] >= POWER * n, verdicts

    def run(self, split: AuditSplit, seed: int) -> AttackResult:
        return self.attack.run(Unasked(), split, Schema(()), seed=seed)  # type: ignore[arg-type]


class Unasked:
    """No bot at all."""
