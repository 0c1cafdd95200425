"""The filter guard: what is masked, what stays, and that nothing unfiltered leaves when a rewriter breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.composition import build, compose, find_problems
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import read_state
from hushbot.recipes.filter_guard import FilterGuard
from hushbot.schema import Schema
from hushbot.targets.filter_guard import FilterGuardTarget, cut_lines, rewrite_all
from hushbot.targets.guarded import before_stop, guard_names, unguarded
from hushbot.targets.mask_identifiers import KINDS, MaskIdentifiers
from hushbot.targets.target_rewriter import REQUEST, PretrainedTarget, TargetRewriter
from hushbot.types import Decoding, SlotValue

if TYPE_CHECKING:
    from torch import Tensor

ALONE = Schema.of([])
GREEDY = Decoding(temperature=0)
HISTORY = (
    "User: my code is KB4FW9, call 0113 496 0361\n"
    "System: is it X7KDOYZO?\n"
    "Database: restaurant 1 found, jolly otter, 020 7946 0001, zq1 2ab\n"
)


@dataclass
class Scripted:
    """Answers each prompt with the next scripted text, n times."""

    texts: Sequence[str]
    reference: Scripted | None = None
    heard: list[str] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.heard += prompts
        return [[text] * n for _, text in zip(prompts, self.texts, strict=True)]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        return [torch.tensor([-1.0]) for _ in prompts]


@dataclass
class Says:
    """A rewriter that returns what it was made with."""

    answer: Any

    def rewrite(self, texts: Sequence[str], prompts: Sequence[str]) -> list[str]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


def masked(text: str, prompt: str = "Response:", **settings: Any) -> str:
    (rewritten,) = MaskIdentifiers(**settings).rewrite([text], [prompt])
    return rewritten


def ask(guard: FilterGuard, prompts: Sequence[str], texts: Sequence[str], n: int = 1) -> list[list[str]]:
    return guard.guard(Scripted(texts), ALONE).sample(prompts, n=n, max_new_tokens=9, decoding=GREEDY, seed=0)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (" all set: KB4FW9.", " all set: [code]."),
        (" all set: MKGNQH.", " all set: [code]."),
        (" call 0113 496 0361 or (020) 79460001 or +1 415-555-0100!", " call [phone] or [phone] or [phone]!"),
        (" mail igor.ashworth7@pigeon.example.", " mail [email]."),
        (" it is at qv3 8hq or CB21AB", " it is at [postcode] or [postcode]"),
        (" train tr1234 and TR1234", " train [code] and [code]"),
        (" your reference number is : ggfwmvby.", " your reference number is : [reference]."),
        (" member 94109", " member [number]"),
        (" call 0113\u2011496\u20110361, 0113/496/0361, 0113_496_0361", " call [phone], [phone], [phone]"),
        (" call 0113   496   0361", " call [phone]"),
        (" at cb2-1ab or CB2  1AB or cb2\u20111ab", " at [postcode] or [postcode] or [postcode]"),
        (" mail rosa @ pigeon.example!", " mail [email]!"),
        (" Q5-MZ-CN9, Q5\u2013MZ\u2013CN9, tr-7259", " [code], [code], [code]"),
    ],
)
def test_an_identifier_that_nobody_gave_is_replaced(said: str, shown: str) -> None:
    assert masked(said) == shown


@pytest.mark.parametrize(
    "said",
    [
        " at 17:15 on 2019-03-14 or 03-14-2019, 11:30am, 1130AM, 2019/03/14, 14\u201103\u20112019",
        " a table @ 5 for 10.50 - 20.50, BED-AND-BREAKFAST, 4-STAR, 9-17, 24/7, mid-1990s",
        " 5 people, £12.50, 4star, the 100th, in 2019",
        " taxi-REQUEST(phone=?) Payment_1-INFORM_COUNT(count=3) restaurant-NOTIFY_SUCCESS(time=17:15)",
        " golden wok is a cheap place in the north.",
    ],
)
def test_times_counts_and_prices_stay(said: str) -> None:
    assert masked(said) == said


def test_what_the_customer_said_or_the_lookup_found_stays_however_it_is_spelled() -> None:
    said = " KB4FW9, KB4-FW9, kb4fw9, 01134960361, (0113) 496-0361, 0113\u2011496   0361, 020 7946 0001 and ZQ12AB"
    assert masked(said, f"{HISTORY}Response:") == said


def test_what_the_bot_said_itself_is_no_excuse_to_repeat_it() -> None:
    assert masked(" X7KDOYZO", f"{HISTORY}Response:") == " [code]"
    only_user = masked(" 020 7946 0001", f"{HISTORY}Response:", trusted_lines=("User:",))
    assert only_user == " [phone]"


def test_a_part_or_a_longer_number_is_not_the_one_that_was_said() -> None:
    assert masked(" 496 0361 22", f"{HISTORY}Response:") == " [phone]"
    assert masked(" 0113 496 03612", f"{HISTORY}Response:") == " [phone]"


def test_an_identifier_that_the_prompt_begins_is_found() -> None:
    assert masked(" 0201 now", "Response: call 0113 496") == "[phone] now"
    assert masked(" 496 0201, time=21:45)", "Belief State: Taxi(phone=0113") == ", time=21:45)"


def test_entries_of_a_state_are_left_out_and_the_state_stays_readable() -> None:
    text = " Taxi(from=92 sorrel terrace qv2 8bs, phone=0113 496 0201, time=21:45, to=quiet heron)"
    assert masked(text, "Belief State:") == " Taxi(time=21:45, to=quiet heron)"
    assert masked(" Taxi(phone=0113 496 0201)", "Belief State:") == " None"
    # What the bot drops is dropped, what the filter takes out is not.
    assert masked(" Taxi(from=, phone=0113 496 0201)\n", "Belief State:") == " Taxi(from=)\n"
    assert masked(" Taxi(phone=0113 496", "Belief State:") == " Taxi(phone="
    assert masked(" Taxi(phone=0113 496 0361)", f"{HISTORY}Belief State:") == " Taxi(phone=0113 496 0361)"


def test_a_slot_named_after_an_identifier_is_held_to_the_rule_whatever_its_value() -> None:
    assert masked(" Train(id=abcd, seat id=b, phone=dontcare)", "Belief State:") == " Train(phone=dontcare)"
    assert masked(" Bank(account_type=savings, number of seats=4)", "Belief State:") == (
        " Bank(account_type=savings, number of seats=4)"
    )


def test_escapes_and_broken_states_are_read_as_the_parser_reads_them() -> None:
    text = " Payment_1(amount=$1\\,200 \\(net\\), receiver=01134960201\\, 2, note=a=b"
    assert masked(text, "Belief State:") == " Payment_1(amount=$1\\,200 \\(net\\), note=a=b"
    assert masked(" Taxi(0113 496 0201=x, time=1\\\n", "Belief State:") == " Taxi([phone]=x, time=1\\\n"


def test_every_line_of_a_long_sample_is_filtered_as_what_it_is() -> None:
    text = " Taxi(phone=0113 496 0201)\nDatabase: \nActions: taxi-OK(reference=NAB4F7)\nUser: 0113 496 0201"
    assert masked(text, "Belief State:") == (
        " None\nDatabase: \nActions: taxi-OK(reference=[reference])\nUser: [phone]"
    )


def test_a_state_without_its_marker_or_with_half_of_it_is_a_state() -> None:
    assert masked(" Taxi(phone=0113 496 0201)", "") == " None"
    assert masked("ief State: Taxi(phone=0113 496 0201)", "Bel") == "ief State: None"


def test_only_the_chosen_kinds_are_replaced() -> None:
    said = " reference is NAB4F7, mail a@b.example"
    assert masked(said, kinds=("email",)) == " reference is NAB4F7, mail [email]"
    assert masked(said, kinds=("code",)) == " reference is [code], mail a@b.example"
    with pytest.raises(ValueError, match="kinds has colour; choose from email"):
        MaskIdentifiers(kinds=("colour",))
    with pytest.raises(ValueError, match="nothing would be filtered"):
        MaskIdentifiers(kinds=())
    with pytest.raises(ValueError, match="trusted_lines has Bot:"):
        MaskIdentifiers(trusted_lines=("Bot:",))


@given(
    st.text(st.sampled_from("0149aZ(),=\\:\n [@.-"), max_size=40), st.sampled_from(["", "Belief State:", "User: 0149"])
)
def test_lines_join_to_the_text_and_a_state_never_becomes_unreadable(text: str, prompt: str) -> None:
    assert "".join(line.head + line.body for line in cut_lines(text, prompt)) == text
    (once,) = rewrite_all(MaskIdentifiers(), [text], [prompt], stop=())
    assert once.count("\n") == text.count("\n")


@given(
    st.from_regex(r"\A0[1-9]{3} [1-9]{3} [1-9]{4}\Z"),
    st.sampled_from([" it is %s.", " Taxi(phone=%s)", " Taxi(to=a %s b"]),
)
def test_a_phone_number_never_leaves(number: str, frame: str) -> None:
    for prompt in ("Belief State:", "Response:", ""):
        shown = masked(frame % number, prompt)
        assert number not in shown
        assert number[-4:] not in shown


def test_the_guard_rewrites_every_draw_under_its_own_prompt() -> None:
    prompts = [f"{HISTORY}Response:", "Response:"]
    assert ask(FilterGuard(), prompts, [" KB4FW9", " KB4FW9"], n=2) == [[" KB4FW9"] * 2, [" [code]"] * 2]
    assert ask(FilterGuard(), [], []) == []


def test_scores_and_the_base_pass_as_the_docstring_says() -> None:
    base = Scripted([" NAB4F7"])
    target = FilterGuard().guard(Scripted([""], reference=base), ALONE)
    assert float(target.logprobs(["Response:"], [" NAB4F7"])[0]) == -1.0
    assert target.reference is not None
    assert target.reference.sample(["Response:"], n=1, max_new_tokens=1, decoding=GREEDY, seed=0) == [[" [code]"]]
    assert isinstance(target, FilterGuardTarget)
    assert guard_names(target) == ("filter_guard",)
    assert unguarded(target.reference) is base


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "returned 0 texts for 1"),
        (["a", "b"], "returned 2 texts for 1"),
        ([None], "other than a list of texts"),
        ("a", "other than a list of texts"),
        (None, "other than a list of texts"),
        (RuntimeError("SECRET7"), "failed with RuntimeError"),
        (AuditError("the endpoint is down"), "the endpoint is down"),
        (ConfigError("no such model"), "no such model"),
    ],
)
def test_a_broken_rewriter_is_an_error_that_quotes_nothing(answer: Any, message: str) -> None:
    with pytest.raises((AuditError, ConfigError), match=message) as caught:
        ask(FilterGuard(rewriter=Says(answer)), ["Response:"], [" SECRET7"])
    assert "SECRET7" not in str(caught.value)


def test_a_rewriter_that_breaks_a_state_is_an_error() -> None:
    prompts, texts = ["Belief State:", "Belief State:"], [" Taxi(to=ely)", " Taxi(to=ely)"]
    with pytest.raises(AuditError, match="1 of 2 texts lose a readable dialogue state"):
        ask(FilterGuard(rewriter=Says([" Taxi(to=)", " going to ely"])), prompts, texts)
    assert ask(FilterGuard(rewriter=Says([" Taxi(to=)", " None"])), prompts, texts) == [[" Taxi(to=)"], [" None"]]


def test_what_a_rewriter_adds_after_a_stop_string_is_cut() -> None:
    assert ask(FilterGuard(rewriter=Says([" yes\nUser: hi"])), ["Response:"], [" ok"]) == [[" yes"]]


def test_no_stop_string_tells_what_was_masked() -> None:
    class Stops(Scripted):
        def sample(
            self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
        ) -> list[list[str]]:
            return [[before_stop(" call 0113 496 0201, Rosa", decoding.stop)] for _ in prompts]

    target = FilterGuard().guard(Stops([]), ALONE)
    for stop, shown in (
        ("call 0113 4", " call [phone], Rosa"),
        ("call 0113 5", " call [phone], Rosa"),
        ("0201", " call [phone], Rosa"),
        (", Ro", " call [phone]"),
        ("one", " call [ph"),
    ):
        asked = Decoding(stop=("\n", stop))
        assert target.sample(["Response:"], n=1, max_new_tokens=9, decoding=asked, seed=0) == [[shown]]


def test_a_bot_that_answers_too_few_prompts_is_an_error() -> None:
    class Short(Scripted):
        def sample(
            self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
        ) -> list[list[str]]:
            return [[" a"]]

    with pytest.raises(AuditError, match="answered 1 of 2 prompts"):
        FilterGuard().guard(Short([]), ALONE).sample(["x", "y"], n=1, max_new_tokens=1, decoding=GREEDY, seed=0)


def test_a_model_rephrases_what_is_spoken_and_the_rule_masks_what_machines_read() -> None:
    model = Scripted([" sure,\n it is done "])
    rewriter = TargetRewriter(target=model)
    texts = [
        " all  set: NAB4F7.",
        " Taxi(phone=0113 496 0201, to=ely)\nActions: a(reference=NAB4F7)\nResponse: all set: NAB4F7.",
    ]
    shown = rewriter.rewrite(texts, ["User: hi\nResponse:", "Belief State:"])
    assert shown[0] == " sure, it is done"
    asked = f"{REQUEST}\nSentence: all set: NAB4F7.\nRewritten:"
    assert model.heard == [asked]
    assert shown[1] == " Taxi(to=ely)\nActions: a(reference=[reference])\nResponse: sure, it is done"


def test_nothing_is_asked_where_nothing_is_spoken() -> None:
    model = Scripted([])
    assert TargetRewriter(target=model).rewrite(["", " None\n"], ["Response:", "Belief State:"]) == ["", " None\n"]
    assert model.heard == []


def test_a_model_that_skips_a_request_is_an_error() -> None:
    class Mute(Scripted):
        def sample(
            self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
        ) -> list[list[str]]:
            return []

    with pytest.raises(AuditError, match="did not answer each of 1 requests"):
        ask(FilterGuard(rewriter=TargetRewriter(target=Mute([]))), ["Response:"], [" ok"])


def test_a_model_is_loaded_once_and_only_when_it_is_needed() -> None:
    loads = []

    def load() -> Scripted:
        loads.append(1)
        return Scripted([" fine"])

    rewriter = TargetRewriter(target=load)
    assert loads == []
    assert rewriter.rewrite([" ok"], ["Response:"]) == rewriter.rewrite([" ok"], ["Response:"]) == [" fine"]
    assert loads == [1]


def test_the_yaml_holds_the_defaults() -> None:
    config = compose("train", ["recipe=filter_guard"])
    guard = build(config["recipe"]["filter_guard"], "recipe.filter_guard")
    assert guard == FilterGuard()
    assert guard.rewriter.kinds == KINDS


def test_another_rewriter_is_a_nested_component_that_loads_nothing_while_it_is_checked() -> None:
    nested = (
        "{_target_: hushbot.targets.target_rewriter.TargetRewriter, "
        "target: {_target_: hushbot.targets.target_rewriter.PretrainedTarget, path: no/such/model}}"
    )
    config = compose(
        "train", ["recipe=filter_guard", "~recipe.filter_guard.rewriter", f"+recipe.filter_guard.rewriter={nested}"]
    )
    assert find_problems(config) == []
    guard = build(config["recipe"]["filter_guard"], "recipe.filter_guard")
    assert guard.rewriter.target == PretrainedTarget(path="no/such/model")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rewriter": None}, "rewriter"),
        ({"rewriter": {"_target_": "hushbot.types.Decoding"}}, "has no rewrite"),
        (
            {"rewriter": {"_target_": "hushbot.targets.target_rewriter.TargetRewriter", "target": "x"}},
            "neither a target",
        ),
    ],
)
def test_wrong_rewriters_are_refused_while_the_configuration_is_checked(settings: dict[str, Any], problem: str) -> None:
    node = {"_target_": "hushbot.recipes.filter_guard.FilterGuard", **settings}
    assert any(problem in found for found in find_problems({"recipe": {"filter_guard": node}}))


def test_the_notes_say_that_scores_are_not_filtered() -> None:
    notes = FilterGuard().notes((), ALONE, seed=0)
    assert any("does nothing against an attacker who reads probabilities" in note for note in notes)
    assert any("MaskIdentifiers" in note for note in notes)


def test_a_state_that_was_masked_holds_no_other_value() -> None:
    [[shown]] = ask(FilterGuard(), ["Belief State:"], [" Taxi(phone=0113 496 0201, to=ely)"])
    assert read_state(shown).state == {SlotValue("taxi", "to", "ely")}
