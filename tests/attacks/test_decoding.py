"""Decoders by name: the paper's settings, options that deviate from them, and what a target is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import pytest

from hushbot.attacks.decoding import DECODERS, GUIDED, decoder_problems, parse_decoder, resolved
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER, read_state
from hushbot.protocols import Target
from hushbot.schema import Schema, Slot
from hushbot.targets.guided import Free, Grammar, Guided, GuidedDraws
from hushbot.types import Decoding

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = Schema.of([Slot("hotel", "area"), Slot("hotel", "stars")])


@dataclass
class Listener:
    """Remembers how it was asked, and answers each draw with its number; `n_missing` of them it keeps to itself."""

    n_missing: int = 0
    reference: Target | None = None
    asked: list[dict[str, object]] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.asked.append({"n": n, "max_new_tokens": max_new_tokens, "decoding": decoding, "seed": seed})
        return [[f" Hotel(stars={i})" for i in range(n - self.n_missing)] for _ in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        raise AuditError("no log-probabilities")


@dataclass
class Guide(Listener):
    """Guides itself; writes one value wherever the grammar leaves it free."""

    def sample_guided(
        self, prompts: Sequence[str], grammar: Grammar, *, n: int, decoding: Decoding, seed: int, law: str = "phrase"
    ) -> GuidedDraws:
        self.asked.append({"n": n, "decoding": decoding, "seed": seed, "law": law})
        texts = []
        for prompt in prompts:
            text = ""
            while (rule := grammar.next(prompt + text)) is not None:
                text += "x" if isinstance(rule, Free) else rule.phrases[0]
            texts.append([Guided(text, n - self.n_missing, True, (0.25, 0.75))])
        return GuidedDraws(texts, n_phrases=7, n_pieces=n)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("greedy", Decoding(temperature=0)),
        ("vanilla", Decoding()),
        ("temperature", Decoding(temperature=2)),
        ("decaying_temperature", Decoding(start_temperature=5, temperature_step=2, temperature=1)),
        ("beam_search", Decoding(num_beams=50)),
        ("group_beam_search", Decoding(num_beams=50, beam_groups=50, diversity_penalty=1)),
        ("beam_sampling", Decoding(num_beams=5, samples_beams=True, temperature=2)),
    ],
)
def test_the_settings_are_the_papers_and_nothing_else_is_on(name: str, expected: Decoding) -> None:
    assert DECODERS[name] == expected
    assert parse_decoder(name).decoding == DECODERS[name]
    assert (parse_decoder(name).name, parse_decoder(name).is_guided) == (name, False)


def test_the_decaying_temperature_is_5_3_1_1() -> None:
    assert [DECODERS["decaying_temperature"].temperature_at(step) for step in range(4)] == [5, 3, 1, 1]


@pytest.mark.parametrize(("name", "law"), [("schema_guided", "phrase"), ("schema_masked", "token")])
def test_guided_decoders_differ_in_their_law(name: str, law: str) -> None:
    decoder = parse_decoder(name)
    assert (decoder.is_guided, decoder.law, decoder.decoding) == (True, law, Decoding())


def test_options_deviate_from_a_named_decoder() -> None:
    decoder = parse_decoder("temperature:top_k=40:top_p=0.9:typical_p=0.8:repetition_penalty=1.2")
    assert decoder.decoding == Decoding(temperature=2, top_k=40, top_p=0.9, typical_p=0.8, repetition_penalty=1.2)
    assert decoder.name == "temperature:top_k=40:top_p=0.9:typical_p=0.8:repetition_penalty=1.2"
    assert parse_decoder("beam_search:num_beams=4").decoding == Decoding(num_beams=4)
    assert parse_decoder("beam_sampling:samples_beams=FALSE").decoding == Decoding(num_beams=5, temperature=2)
    assert parse_decoder("schema_guided:temperature=0.5").decoding == Decoding(temperature=0.5)


def test_an_unknown_name_is_answered_with_all_names() -> None:
    with pytest.raises(ConfigError) as error:
        parse_decoder("nucleus")
    assert all(name in str(error.value) for name in [*DECODERS, *GUIDED])


def test_an_unknown_option_is_answered_with_all_options() -> None:
    with pytest.raises(ConfigError) as error:
        parse_decoder("vanilla:temprature=2")
    assert all(setting.name in str(error.value) for setting in fields(Decoding) if setting.name != "stop")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("vanilla:top_k", "no option=value"),
        ("vanilla:", "no option=value"),
        ("vanilla:stop=x", "no option=value"),
        ("vanilla:top_k=1.5", "not a finite value of type int"),
        ("vanilla:temperature=nan", "not a finite value"),
        ("vanilla:repetition_penalty=inf", "not a finite value"),
        ("beam_sampling:samples_beams=1", "not a finite value of type bool"),
        ("vanilla:temperature=-1", "at least 0"),
        ("vanilla:top_p=0", r"in \(0, 1\]"),
        ("beam_search:beam_groups=7", "a part of num_beams"),
        ("vanilla:top_k=4:top_k=5", "given twice"),
        ("vanilla:length_penalty=2", "changes nothing without num_beams"),
        ("beam_search:diversity_penalty=2", "changes nothing without beam_groups"),
        ("vanilla:temperature_step=1", "changes nothing without start_temperature"),
        ("schema_guided:num_beams=2", "neither beams nor a falling temperature"),
        ("schema_masked:start_temperature=2", "neither beams nor a falling temperature"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(spec: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_decoder(spec)


@pytest.mark.parametrize(
    ("spec", "n_useful"),
    [
        ("greedy", 1),
        ("vanilla", 200),
        ("vanilla:temperature=0", 1),
        ("decaying_temperature", 200),
        ("beam_search", 50),
        ("group_beam_search", 50),
        ("beam_sampling", 200),
        ("schema_guided", 200),
        ("schema_guided:temperature=0", 1),
    ],
)
def test_a_decoder_that_draws_nothing_has_few_texts_to_give(spec: str, n_useful: int) -> None:
    decoder = parse_decoder(spec)
    assert decoder.n_useful(200) == n_useful
    assert decoder.n_useful(1) == 1


@pytest.mark.parametrize("spec", DECODERS)
def test_a_target_is_asked_with_the_decoders_settings(spec: str) -> None:
    target = Listener()
    texts = parse_decoder(spec).write(target, [STATE_MARKER] * 2, n=3, max_new_tokens=9, schema=None, seed=4)
    assert target.asked == [{"n": 3, "max_new_tokens": 9, "decoding": DECODERS[spec], "seed": 4}]
    assert texts.continuations == [[" Hotel(stars=0)", " Hotel(stars=1)", " Hotel(stars=2)"]] * 2
    assert (texts.mass, texts.n_queries) == (None, 6)


@pytest.mark.parametrize("spec", GUIDED)
def test_a_guided_decoder_asks_for_its_law_and_says_how_little_was_forced(spec: str) -> None:
    target = Guide()
    decoder = parse_decoder(f"{spec}:temperature=0.5")
    texts = decoder.write(target, [STATE_MARKER], n=3, max_new_tokens=9, schema=SCHEMA, seed=4)
    assert target.asked == [{"n": 3, "decoding": Decoding(temperature=0.5), "seed": 4, "law": GUIDED[spec]}]
    assert texts.continuations == [[" Hotel(area=x, stars=x)"] * 3]
    assert read_state(texts.continuations[0][0]).is_complete
    assert texts.mass == 0.5
    assert texts.n_queries == 7 + 3
    assert "None" not in texts.continuations[0][0]


def test_a_guided_decoder_needs_a_schema() -> None:
    with pytest.raises(ConfigError, match="schema_guided is guided by a schema and was given none"):
        parse_decoder("schema_guided").write(Guide(), [STATE_MARKER], n=1, max_new_tokens=9, schema=None, seed=0)
    with pytest.raises(ConfigError, match="the schema has no slot"):
        parse_decoder("schema_guided").write(Guide(), [STATE_MARKER], n=1, max_new_tokens=9, schema=Schema(()), seed=0)


def test_the_token_law_needs_a_target_that_shows_its_tokens() -> None:
    with pytest.raises(ConfigError, match="use law='phrase'"):
        parse_decoder("schema_masked").write(Listener(), [STATE_MARKER], n=1, max_new_tokens=9, schema=SCHEMA, seed=0)


@pytest.mark.parametrize(
    ("spec", "target", "problem"),
    [
        ("vanilla", Listener(n_missing=1), "returned 4 of 6 samples"),
        ("schema_guided", Guide(n_missing=1), "did not return 3 guided texts for each of 2 prompts"),
    ],
)
def test_texts_that_are_missing_are_a_failure(spec: str, target: Target, problem: str) -> None:
    with pytest.raises(AuditError, match=problem):
        parse_decoder(spec).write(target, [STATE_MARKER] * 2, n=3, max_new_tokens=9, schema=SCHEMA, seed=0)


@pytest.mark.parametrize("spec", [*DECODERS, *GUIDED])
def test_resolved_hides_no_setting(spec: str) -> None:
    decoder = parse_decoder(spec)
    shown = resolved(decoder)
    assert shown.startswith(f"decoder {spec}: ")
    for setting in fields(Decoding):
        if setting.name != "stop":
            assert f"{setting.name}={getattr(decoder.decoding, setting.name)}" in shown
    rest = "law=, max_triplets=24, max_value_tokens=32, may_be_empty=False" if decoder.is_guided else "stop=('\\n',)"
    assert shown.endswith(rest.replace("law=", f"law={decoder.law}"))


def test_all_problems_of_an_attacks_decoders_are_named() -> None:
    problems = decoder_problems("some_attack", ["vanilla", "nucleus", "greedy:top_k=x", "vanilla"], "beam_search")
    assert [problem.split("; set ")[-1] for problem in problems] == [
        "attack.some_attack.decoders",
        "attack.some_attack.decoders",
        "attack.some_attack.decoders",
        "attack.some_attack.decoder",
    ]
    for problem, part in zip(problems, ("nucleus", "top_k='x'", "twice", "beam_search"), strict=True):
        assert part in problem
    assert decoder_problems("some_attack", ["vanilla", "vanilla:top_k=40"], "vanilla") == []


def test_a_name_in_place_of_a_list_is_one_problem() -> None:
    (problem,) = decoder_problems("some_attack", "vanilla", "vanilla")
    assert problem == "decoders='vanilla' must be a list of names; set attack.some_attack.decoders=[vanilla]"
