"""Who a target is: equal for equal bots, different for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from hushbot.errors import ConfigError
from hushbot.schema import Schema
from hushbot.targets import identity
from hushbot.targets.filter_guard import FilterGuardTarget
from hushbot.targets.guarded import GuardedTarget
from hushbot.targets.identity import identity_of
from hushbot.targets.instruction_guard import InstructionGuardTarget
from hushbot.targets.local import LocalTarget
from hushbot.targets.mask_identifiers import MaskIdentifiers
from hushbot.targets.target_rewriter import PretrainedTarget, TargetRewriter
from hushbot.targets.value_copy import ValueCopyTarget
from hushbot.targets.value_law import ValueLaw

MakeTarget = Callable[..., LocalTarget]


@pytest.fixture
def make_target(make_small_model: Callable[[], Any], small_tokenizer: Any) -> MakeTarget:
    """Return a maker of the small model as a target, with an adapter if asked for."""

    def make(adapter: dict[str, Any] | None = None, **more: Any) -> LocalTarget:
        model = make_small_model()
        if adapter is not None:
            torch.manual_seed(1)
            model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], **adapter))
        return LocalTarget(model, small_tokenizer, **more)

    return make


def test_equal_bots_are_one_and_the_same(make_target: MakeTarget) -> None:
    assert identity_of(make_target()) == identity_of(make_target(name="other", batch_rows=3))
    assert identity_of(make_target({"r": 2})) == identity_of(make_target({"r": 2}))


def test_one_weight_makes_another_bot(make_target: MakeTarget) -> None:
    target = make_target()
    before = identity_of(target)
    with torch.no_grad():
        next(target.causal_lm.outer.parameters()).view(-1)[0] += 1e-6
    assert identity_of(target) != before


def test_number_types_make_another_bot(make_target: MakeTarget) -> None:
    half = make_target()
    half.causal_lm.outer.to(torch.bfloat16)
    assert identity_of(half) != identity_of(make_target())


def test_an_adapter_its_scale_and_whether_it_is_on_make_another_bot(make_target: MakeTarget) -> None:
    bots = [make_target(), *(make_target({"r": 2, "lora_alpha": alpha}) for alpha in (8, 16))]
    references = [bot.reference for bot in bots if bot.reference is not None]
    assert len(references) == 2
    assert len({identity_of(bot) for bot in (*bots, *references)}) == 5


def test_settings_of_the_model_and_the_tokenizer_make_another_bot(
    make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity_of(make_target())
    other, moved = make_target(), make_target()
    for target in (other, moved):
        target.causal_lm.core.config = deepcopy(target.causal_lm.core.config)
    other.causal_lm.core.config.rms_norm_eps = 0.5
    assert identity_of(other) != before
    moved.causal_lm.core.config._name_or_path = "/somewhere/else"
    assert identity_of(moved) == before  # where it came from is not what it is
    moved.tokenizer = deepcopy(moved.tokenizer)
    moved.tokenizer.bos_token = "a"
    assert identity_of(moved) != before
    monkeypatch.setattr(identity.metadata, "version", lambda _: "99")
    assert identity_of(make_target()) != before


@dataclass
class Endpoint:
    """Says who it is."""

    identity: str
    reference = None

    def sample(self, *_: Any, **__: Any) -> list[list[str]]:
        return []

    def logprobs(self, *_: Any) -> list[torch.Tensor]:
        return []


def test_an_endpoint_says_who_it_is() -> None:
    assert identity_of(Endpoint("a")) == identity_of(Endpoint("a")) != identity_of(Endpoint("b"))


def guards(bot: Endpoint) -> list[GuardedTarget]:
    law = ValueLaw(schema=Schema(()), max_candidates=3, max_words=2)
    other_law = ValueLaw(schema=Schema(()), max_candidates=4, max_words=2)
    return [
        GuardedTarget(bot),
        GuardedTarget(GuardedTarget(bot)),
        InstructionGuardTarget(bot, instruction="be careful", position="start"),
        InstructionGuardTarget(bot, instruction="be silent", position="start"),
        FilterGuardTarget(bot, rewriter=MaskIdentifiers()),
        FilterGuardTarget(bot, rewriter=MaskIdentifiers(kinds=("phone",))),
        FilterGuardTarget(bot, rewriter=TargetRewriter(target=Endpoint("writer"))),
        FilterGuardTarget(bot, rewriter=TargetRewriter(target=Endpoint("another writer"))),
        FilterGuardTarget(bot, rewriter=TargetRewriter(target=PretrainedTarget(path="some/hub-id"))),
        FilterGuardTarget(bot, rewriter=TargetRewriter(target=PretrainedTarget(path="some/other-id"))),
        FilterGuardTarget(FilterGuardTarget(bot, rewriter=MaskIdentifiers()), rewriter=MaskIdentifiers()),
        ValueCopyTarget(bot, law, min_probability=0.1, max_copies=2),
        ValueCopyTarget(bot, law, min_probability=0.2, max_copies=2),
        ValueCopyTarget(bot, other_law, min_probability=0.1, max_copies=2),
    ]


def test_guards_and_their_settings_make_another_bot() -> None:
    bots = [Endpoint("a"), *guards(Endpoint("a")), *guards(Endpoint("b"))]
    assert len({identity_of(bot) for bot in bots}) == len(bots)
    assert [identity_of(bot) for bot in guards(Endpoint("a"))] == [identity_of(bot) for bot in guards(Endpoint("a"))]


def test_a_rewriting_model_in_a_folder_is_known_by_its_files(tmp_path: Any) -> None:
    def bot() -> GuardedTarget:
        rewriter = TargetRewriter(target=PretrainedTarget(path=str(tmp_path)))
        return FilterGuardTarget(Endpoint("a"), rewriter=rewriter)

    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = identity_of(bot())
    assert identity_of(bot()) == first
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert identity_of(bot()) != first


def test_what_does_not_show_is_refused() -> None:
    class Secretive:
        def rewrite(self, texts: Sequence[str], prompts: Sequence[str]) -> list[str]:
            return list(texts)

    @dataclass
    class Mute:
        reference: None = None

        def sample(self, *_: Any, **__: Any) -> list[list[str]]:
            return []

    with pytest.raises(ConfigError, match="Secretive does not say who it is"):
        identity_of(FilterGuardTarget(Endpoint("a"), rewriter=Secretive()))
    with pytest.raises(ConfigError, match="Mute does not say who it is"):
        identity_of(Mute())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Mute does not say who it is"):
        identity_of(FilterGuardTarget(Endpoint("a"), rewriter=TargetRewriter(target=Mute())))


def test_a_module_is_not_guessed_at() -> None:
    class Learned(GuardedTarget):
        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            self.filter = nn.Linear(2, 2)

    with pytest.raises(ConfigError, match="Linear does not say who it is"):
        identity_of(Learned(Endpoint("a")))
