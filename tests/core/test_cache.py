"""A target that remembers: the same answers, each asked for once, none of another bot's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hushbot.errors import AuditError, ConfigError
from hushbot.protocols import ShowsTokens, Target
from hushbot.targets import cache
from hushbot.targets.answer_store import FILE_NAME, AnswerStore
from hushbot.targets.cache import remember
from hushbot.targets.guarded import GuardedTarget, unguarded
from hushbot.targets.guided import Choice, Free, GuidedDraws, sample_guided
from hushbot.targets.local import LocalTarget
from hushbot.targets.places import Place, SamplesPlaces
from hushbot.types import Decoding

PLAIN, GREEDY = Decoding(), Decoding(temperature=0)


@dataclass
class Endpoint:
    """Says what it was asked, and counts; whole calls only."""

    identity: str = "somebody"
    reference: Target | None = None
    n_drawn: int = field(default=0, init=False)
    scored: list[tuple[str, str]] = field(default_factory=list, init=False)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        if n < 1:
            raise ConfigError(f"n={n} must be at least 1")
        self.n_drawn += n * len(prompts)
        return [
            [self.draw(Place(prompt, position, draw), max_new_tokens, decoding, seed) for draw in range(n)]
            for position, prompt in enumerate(prompts)
        ]

    def draw(self, place: Place, max_new_tokens: int, decoding: Decoding, seed: int) -> str:
        return f"{self.identity}/{place}/{max_new_tokens}/{decoding}/{seed}"

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        if len(prompts) != len(continuations):
            raise AuditError("uneven")
        self.scored += zip(prompts, continuations, strict=True)
        return [
            torch.tensor([-float(hash_of(self.identity, p, c, i)) / 7 for i in range(len(c))])
            for p, c in zip(prompts, continuations, strict=True)
        ]


@dataclass
class DrawByDraw(Endpoint):
    """Can be asked for single draws."""

    portions: list[int] = field(default_factory=list, init=False)
    dies_after: int | None = None
    """How many portions it answers."""

    def sample_places(
        self, places: Sequence[Place], *, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[str]:
        if self.dies_after is not None and len(self.portions) == self.dies_after:
            raise AuditError("the endpoint is gone")
        self.portions.append(len(places))
        self.n_drawn += len(places)
        return [self.draw(place, max_new_tokens, decoding, seed) for place in places]


def hash_of(*parts: object) -> int:
    return sum(ord(c) * (i + 1) for i, c in enumerate(repr(parts))) % 1009


@pytest.fixture
def store(tmp_path: Path) -> AnswerStore:
    return AnswerStore(tmp_path / "cache")


def ask(target: Target, *, prompts: Sequence[str] = ("p", "q"), n: int = 3, seed: int = 1, **more: Any) -> Any:
    given: dict[str, Any] = {"max_new_tokens": 9, "decoding": PLAIN} | more
    return target.sample(prompts, n=n, seed=seed, **given)


def n_entries(store: AnswerStore) -> int:
    return int(store._connection.execute("SELECT COUNT(*) FROM answers").fetchone()[0])


# --- texts ---


@pytest.mark.parametrize("kind", [Endpoint, DrawByDraw])
def test_texts_are_the_bots_and_asked_for_once(store: AnswerStore, kind: type[Endpoint]) -> None:
    bot = kind()
    first = ask(remember(bot, store))
    assert first == ask(kind())
    assert len({text for texts in first for text in texts}) == 6  # repeated draws stay distinct
    assert ask(remember(bot, store)) == first
    assert bot.n_drawn == 6


@pytest.mark.parametrize(
    ("changes", "n_new"),
    [
        ({"prompts": ["p", "r"]}, 3),
        ({"prompts": ["q", "p"]}, 6),  # draws depend on the position
        ({"prompts": ["p", "q", "p"]}, 3),
        ({"prompts": ["p"]}, 0),
        ({"n": 4}, 2),
        ({"n": 2}, 0),
        ({"seed": 2}, 6),
        ({"max_new_tokens": 10}, 6),
        ({"decoding": GREEDY}, 6),
        ({"decoding": Decoding(stop=("\n", "x"))}, 6),
    ],
)
def test_every_part_of_a_question_counts(store: AnswerStore, changes: dict[str, Any], n_new: int) -> None:
    bot = DrawByDraw()
    ask(remember(bot, store))
    assert ask(remember(bot, store), **changes) == ask(DrawByDraw(), **changes)
    assert bot.n_drawn == 6 + n_new


def test_a_bot_that_answers_whole_calls_is_asked_the_whole_call_again(store: AnswerStore) -> None:
    bot = Endpoint()
    ask(remember(bot, store))
    assert ask(remember(bot, store), n=4) == ask(Endpoint(), n=4)
    assert bot.n_drawn == 6 + 8
    assert n_entries(store) == 8


def test_a_bot_that_draws_by_itself_keeps_to_its_first_answer(store: AnswerStore) -> None:
    class Moody(DrawByDraw):
        def draw(self, place: Place, max_new_tokens: int, decoding: Decoding, seed: int) -> str:
            return f"{place} {self.n_drawn}"

    target = remember(Moody(), store)
    assert ask(target) == ask(target)


def test_a_call_that_breaks_off_keeps_its_portions(store: AnswerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PLACES_AT_ONCE", 4)
    dying, whole = DrawByDraw(dies_after=2), DrawByDraw()
    with pytest.raises(AuditError, match="gone"):
        ask(remember(dying, store), n=7)
    ask(remember(whole, AnswerStore(store.path.parent / "other")), n=7)
    second = DrawByDraw()
    assert ask(remember(second, store), n=7) == ask(DrawByDraw(), n=7)
    assert dying.portions + second.portions == whole.portions == [4, 4, 4, 2]


@pytest.mark.parametrize("n", [0, -1])
def test_the_bot_says_what_is_wrong_with_a_call(store: AnswerStore, n: int) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        ask(remember(Endpoint(), store), n=n)


def test_no_prompts_no_texts(store: AnswerStore) -> None:
    assert ask(remember(Endpoint(), store), prompts=[]) == []
    assert ask(remember(DrawByDraw(), store), prompts=[]) == []


@pytest.mark.parametrize("answer", [[["a"]], [["a", "b"], ["c"]], [["a", "b"], ["c", None]], []])
def test_an_answer_of_another_shape_is_an_error_and_not_kept(store: AnswerStore, answer: Any) -> None:
    class Broken(Endpoint):
        def sample(self, *_: Any, **__: Any) -> Any:
            return answer

    with pytest.raises(AuditError, match="the target"):
        ask(remember(Broken(), store), n=2)
    assert n_entries(store) == 0


def test_too_few_single_draws_are_an_error_and_not_kept(store: AnswerStore) -> None:
    class Short(DrawByDraw):
        def sample_places(self, *_: Any, **__: Any) -> list[str]:
            return ["a"]

    with pytest.raises(AuditError, match="gave 1 of 6 draws"):
        ask(remember(Short(), store))
    assert n_entries(store) == 0


@pytest.mark.parametrize("text", ["", "caf\u00e9 \U0001f980\n", "\ud83e", "a\x00b", "\u2028 \ufffd"])
def test_texts_come_back_character_by_character(store: AnswerStore, text: str) -> None:
    class Says(Endpoint):
        def draw(self, *_: Any) -> str:
            return text

    first = ask(remember(Says(), store), prompts=[text], n=1)
    assert first == ask(remember(Says(), store), prompts=[text], n=1) == [[text]]


# --- scores ---


def test_scores_are_the_bots_and_asked_for_once(store: AnswerStore) -> None:
    bot = Endpoint()
    pairs = (["p", "q", "p"], ["one", "two", "one"])
    first = remember(bot, store).logprobs(*pairs)
    again = remember(bot, store).logprobs(*pairs)
    assert all(torch.equal(a, b) for a, b in zip(first, Endpoint().logprobs(*pairs), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert bot.scored == [("p", "one"), ("q", "two")]
    again[0][0] = 0  # who changes an answer changes nobody else's
    assert torch.equal(again[2], first[2])
    assert torch.equal(remember(bot, store).logprobs(["p"], ["one"])[0], first[0])


def test_where_a_prompt_ends_counts(store: AnswerStore) -> None:
    bot = Endpoint()
    remember(bot, store).logprobs(["ab", "a", ""], ["c", "bc", "abc"])
    assert len(bot.scored) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_come_back_bit_for_bit_in_their_own_type(store: AnswerStore, dtype: torch.dtype) -> None:
    exact = -torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype) / 3

    class Exact(Endpoint):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
            return [exact[::2], exact[:0]]

    for _ in range(2):
        found = remember(Exact(), store).logprobs(["p", "q"], ["one", "two"])
        assert [score.dtype for score in found] == [dtype, dtype]
        assert torch.equal(found[0], exact[::2])
        assert found[1].shape == (0,)


@pytest.mark.parametrize("bad", [torch.tensor([-1.0, torch.nan]), torch.tensor([-torch.inf]), torch.tensor(-1.0)])
def test_what_is_no_score_is_an_error_and_nothing_of_the_call_is_kept(store: AnswerStore, bad: Tensor) -> None:
    class Broken(Endpoint):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
            return [torch.tensor([-1.0]), bad]

    with pytest.raises(AuditError, match="doubt the target"):
        remember(Broken(), store).logprobs(["p", "q"], ["one", "two"])
    assert n_entries(store) == 0


class Open(Endpoint):
    """Shows its tokens."""

    def token_statistics(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        return [torch.stack([s, s - 1, s.exp()], dim=1) for s in self.logprobs(prompts, continuations)]


class OpenDrawByDraw(Open, DrawByDraw):
    pass


@pytest.mark.parametrize("kind", [Endpoint, DrawByDraw, Open, OpenDrawByDraw])
def test_a_bot_can_be_asked_what_it_could_be_asked_before(store: AnswerStore, kind: type[Endpoint]) -> None:
    bot, target = kind(), remember(kind(), store)
    assert isinstance(target, ShowsTokens) == isinstance(bot, ShowsTokens)
    assert isinstance(target, SamplesPlaces) == isinstance(bot, SamplesPlaces)


@pytest.mark.parametrize("kind", [Open, OpenDrawByDraw])
def test_what_a_bot_shows_of_its_tokens_is_remembered_apart(store: AnswerStore, kind: type[Open]) -> None:
    bot, pairs = kind(), (["p", "q"], ["one", "four"])
    target: Any = remember(bot, store)
    first, again = target.token_statistics(*pairs), target.token_statistics(*pairs)
    assert all(torch.equal(a, b) for a, b in zip(first, kind().token_statistics(*pairs), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert [rows.shape for rows in again] == [(3, 3), (4, 3)]
    assert len(bot.scored) == 2
    assert [scores.ndim for scores in target.logprobs(*pairs)] == [1, 1]


def test_a_failed_question_is_asked_again(store: AnswerStore) -> None:
    class Failing(Endpoint):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
            raise AuditError("the endpoint returns no log-probabilities")

    for _ in range(2):
        with pytest.raises(AuditError, match="returns no"):
            remember(Failing(), store).logprobs(["p"], ["one"])
    with pytest.raises(AuditError, match="uneven"):
        remember(Endpoint(), store).logprobs(["p"], [])
    assert len(remember(Endpoint(), store).logprobs(["p"], ["one"])) == 1


def test_scores_are_kept_portion_by_portion(store: AnswerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PAIRS_AT_ONCE", 2)

    class Dying(Endpoint):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
            if len(self.scored) == 2 and prompts[0] == "c":
                self.scored.clear()
                raise AuditError("gone")
            return super().logprobs(prompts, continuations)

    bot, prompts, continuations = Dying(), list("abcde"), ["x"] * 5
    with pytest.raises(AuditError, match="gone"):
        remember(bot, store).logprobs(prompts, continuations)
    remember(bot, store).logprobs(prompts, continuations)
    assert bot.scored == [("c", "x"), ("d", "x"), ("e", "x")]


# --- who is asked ---


def test_two_bots_never_share_an_answer(store: AnswerStore) -> None:
    one, other = Endpoint("one"), Endpoint("other")
    assert ask(remember(one, store)) == ask(Endpoint("one"))
    assert ask(remember(other, store)) == ask(Endpoint("other"))
    remember(one, store).logprobs(["p"], ["x"])
    remember(other, store).logprobs(["p"], ["x"])
    assert (one.n_drawn, other.n_drawn, len(one.scored), len(other.scored)) == (6, 6, 1, 1)


def test_the_reference_is_remembered_under_its_own_name(store: AnswerStore) -> None:
    bot = Endpoint("bot", reference=Endpoint("base"))
    target = remember(bot, store)
    for _ in range(2):
        assert target.reference is not None
        assert ask(target.reference) == ask(Endpoint("base"))
        assert ask(target) == ask(Endpoint("bot"))
    assert isinstance(bot.reference, Endpoint)
    assert (bot.n_drawn, bot.reference.n_drawn) == (6, 6)
    assert remember(Endpoint(), store).reference is None


def test_a_guard_is_part_of_who_a_bot_is(store: AnswerStore) -> None:
    class Shouting(GuardedTarget):
        def sample(self, prompts: Sequence[str], **more: Any) -> list[list[str]]:
            return [[text.upper() for text in texts] for texts in super().sample(prompts, **more)]

    bot = Endpoint()
    assert ask(remember(bot, store)) == ask(Endpoint())
    assert ask(remember(Shouting(bot), store)) == ask(Shouting(Endpoint()))
    assert bot.n_drawn == 12


def test_a_bot_that_does_not_say_who_it_is_is_refused(store: AnswerStore) -> None:
    class Anonymous(GuardedTarget):
        pass

    class Nobody:
        reference = None

    with pytest.raises(ConfigError, match=r"Nobody does not say who it is.*cache\.enabled=false"):
        remember(Anonymous(Nobody()), store)  # type: ignore[arg-type]


def test_what_else_shows_of_a_bot_shows(store: AnswerStore) -> None:
    class TextOnly(Endpoint):
        tier = "text"
        name = "bot"
        device = "elsewhere"

    target = remember(TextOnly(), store)
    assert (target.tier, target.name, target.device) == ("text", "bot", "elsewhere")
    assert remember(Endpoint(), store).tier == "full"
    assert isinstance(unguarded(target), TextOnly)


# --- guided sampling ---


class Colours:
    """One of two colours."""

    def next(self, text: str) -> Choice | None:
        return None if text.endswith("d") else Choice((" red", " old"))


def test_guided_sampling_asks_its_single_questions_once(store: AnswerStore) -> None:
    bot = Endpoint()
    for _ in range(2):
        found = sample_guided(remember(bot, store), ["p"], Colours(), n=8, decoding=PLAIN, seed=0)
        assert found == sample_guided(Endpoint(), ["p"], Colours(), n=8, decoding=PLAIN, seed=0)
    assert sorted(bot.scored) == [("p", " old"), ("p", " red")]


@pytest.mark.parametrize("kind", [Endpoint, DrawByDraw])
def test_guided_texts_are_those_of_the_bot_itself(store: AnswerStore, kind: type[Endpoint]) -> None:
    class Writing:
        """A free piece, and at its end another choice."""

        def next(self, text: str) -> Choice | Free | None:
            return Choice((" red", " old")) if text == "p" else Free("/", 5) if text.count("body") < 2 else None

    bots = kind(), kind()
    found = [
        sample_guided(target, ["p", "p"], Writing(), n=6, decoding=PLAIN, seed=0)
        for target in (bots[0], remember(bots[1], store), remember(bots[1], store))
    ]
    assert found[0] == found[1] == found[2]
    assert bots[0].n_drawn == bots[1].n_drawn > 0
    assert isinstance(remember(bots[0], store), SamplesPlaces) == (kind is DrawByDraw)


class Pieces:
    """Two free pieces."""

    def next(self, text: str) -> Free | None:
        return Free("/", 5) if text.count("body") < 2 else None


def test_free_pieces_of_all_texts_are_asked_for_at_once(store: AnswerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces(target: Target) -> GuidedDraws:
        return sample_guided(target, ["p", "q", "r"], Pieces(), n=4, decoding=PLAIN, seed=0)

    bare, kept, dying = DrawByDraw(), DrawByDraw(), DrawByDraw(dies_after=2)
    found = pieces(bare)
    assert pieces(remember(kept, store)) == found
    assert kept.portions == bare.portions
    assert bare.portions[0] == 12
    entries = n_entries(store)
    assert pieces(remember(kept, store)) == found
    assert (kept.portions, n_entries(store)) == (bare.portions, entries)
    # Killed between two portions, and started again: only the rest is asked for.
    monkeypatch.setattr(cache, "PLACES_AT_ONCE", 5)
    other = AnswerStore(store.path.parent / "other")
    with pytest.raises(AuditError, match="the endpoint is gone"):
        pieces(remember(dying, other))
    assert (dying.portions, n_entries(other)) == ([5, 5], 10)
    dying.dies_after = None
    assert pieces(remember(dying, other)) == found
    assert dying.n_drawn == bare.n_drawn


def test_a_bot_that_samples_guided_texts_itself_does(store: AnswerStore) -> None:
    answer = GuidedDraws([], 1, 2)

    class Expert(Endpoint):
        def sample_guided(self, *_: Any, **__: Any) -> GuidedDraws:
            return answer

    target = remember(Expert(), store)
    assert sample_guided(target, ["p"], Colours(), n=8, decoding=PLAIN, seed=0, law="token") is answer
    assert n_entries(store) == 0


# --- all together ---

CALLS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abc"), max_size=3),
        st.integers(1, 3),
        st.integers(0, 1),
        st.sampled_from([PLAIN, GREEDY]),
    ),
    max_size=6,
)


@given(calls=CALLS, kind=st.sampled_from([Endpoint, DrawByDraw]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_memory_changes_no_answer(
    calls: list[tuple[list[str], int, int, Decoding]], kind: type[Endpoint], tmp_path_factory: pytest.TempPathFactory
) -> None:
    shared = AnswerStore(tmp_path_factory.mktemp("cache"))
    target, bare = remember(kind(), shared), kind()
    for prompts, n, seed, decoding in calls:
        asked = {"n": n, "seed": seed, "decoding": decoding, "max_new_tokens": 5}
        assert target.sample(prompts, **asked) == bare.sample(prompts, **asked)  # type: ignore[arg-type]
        scores = target.logprobs(prompts, prompts)
        assert [s.tolist() for s in scores] == [s.tolist() for s in bare.logprobs(prompts, prompts)]
    shared.close()


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from hushbot.targets.answer_store import AnswerStore
from hushbot.targets.cache import remember
from hushbot.types import Decoding

folder, deadline = Path(sys.argv[1]), int(sys.argv[2])

class Bot:
    identity, reference, asked = "bot", None, 0

    def sample(self, prompts, **more):
        raise NotImplementedError

    def sample_places(self, places, **more):
        texts = []
        for place in places:
            if self.asked == deadline:
                os.kill(os.getpid(), signal.SIGKILL)
            self.asked += 1
            texts.append(f"{place.prompt}{place.position}{place.draw}")
        return texts

    def logprobs(self, prompts, continuations):
        self.asked += len(prompts)
        return [torch.tensor([-len(p) / 3, -len(c) / 7]) for p, c in zip(prompts, continuations)]

bot = Bot()
target = remember(bot, AnswerStore(folder))
found = [target.logprobs(["a"], ["bc"])[0].tolist()]
for seed in range(4):
    found.append(target.sample(["p", "q"], n=50, max_new_tokens=3, decoding=Decoding(), seed=seed))
print(bot.asked)
print(found)
"""


def test_kill_9_and_the_same_audit_again_gives_the_same_and_asks_only_the_rest(tmp_path: Path) -> None:
    def run(folder: str, deadline: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / folder), str(deadline)]
        return subprocess.run(command, env=dict(os.environ), capture_output=True, check=False, text=True)

    killed, again, whole = run("a", 230), run("a", -1), run("b", -1)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert again.returncode == whole.returncode == 0, again.stderr + whole.stderr
    assert whole.stdout.splitlines()[0] == "401"
    # One score, two calls of 100 draws; the third died in its first portion.
    assert again.stdout.splitlines()[0] == "200"
    assert again.stdout.splitlines()[1:] == whole.stdout.splitlines()[1:]


def test_questions_are_not_on_disk(store: AnswerStore) -> None:
    ask(remember(Endpoint("nobody"), store), prompts=["reference abc123"], n=1, decoding=GREEDY)
    store.put({b"x": b"marker"})
    store.close()
    content = (store.path.parent / FILE_NAME).read_bytes()
    assert b"marker" in content
    assert content.count(b"reference abc123") == 1  # what this bot answers repeats the prompt


def test_a_local_bot_is_remembered_as_it_answers(
    store: AnswerStore, make_small_model: Any, small_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bot = LocalTarget(make_small_model(), small_tokenizer)
    prompts, continuations = ["User: hi\n", "User: a table\n", "User: hi\n"], [" a b", " c", " d"]
    texts, scores = ask(bot, prompts=prompts), bot.logprobs(prompts, continuations)
    assert ask(remember(bot, store), prompts=prompts) == texts
    first = remember(bot, store).logprobs(prompts, continuations)
    assert all(torch.equal(a, b) for a, b in zip(first, scores, strict=True))
    monkeypatch.setattr(LocalTarget, "sample", None)
    monkeypatch.setattr(LocalTarget, "logprobs", None)
    assert ask(remember(bot, store), prompts=prompts) == texts
    again = remember(bot, store).logprobs(prompts, continuations)
    assert all(torch.equal(a, b) for a, b in zip(again, scores, strict=True))
