"""Frozen value objects shared by every part of hushbot: no torch, no I/O.

Guarantees: instances are immutable and hashable where they hold only immutable fields; equality of `SlotValue`
is equality of (domain, slot, value), so a `DialogueState` is a plain frozenset with exact-match semantics.
"Unknown" is not "empty": `Turn.state is None` means that the corpus does not say, `frozenset()` that it says nothing
was asked for.

>>> pizza = SlotValue("restaurant", "name", "pizza hut")
>>> pizza == SlotValue("restaurant", "name", "pizza hut", alternatives=("pizza hut city centre",))
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator


@dataclass(frozen=True, slots=True, order=True)
class SlotValue:
    """One (domain, slot, value) triplet of a dialogue state."""

    domain: str
    """Domain or service, as the corpus spells it after its loader's normalisation (`restaurant`, `Payment_1`)."""
    slot: str
    """Slot name inside the domain (`book people`)."""
    value: str
    """The canonical value; `dontcare` is a value, an absent slot has no triplet at all."""
    alternatives: tuple[str, ...] = field(default=(), compare=False)
    """Further values that count as right when scoring (MultiWOZ `a|b`, SGD lists); not part of equality."""

    @property
    def values(self) -> tuple[str, ...]:
        """Return the canonical value followed by its alternatives."""
        return (self.value, *self.alternatives)


DialogueState: TypeAlias = frozenset[SlotValue]
"""All triplets that hold after a user turn: at most one per (domain, slot)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a value stands verbatim in an utterance, as the corpus annotates it and a loader has checked it."""

    domain: str
    """Domain or service, as in the states; MultiWOZ's pseudo-domain `booking` where the annotation says no more."""
    slot: str
    """Slot name, as in the states where they have it."""
    value: str
    """The annotated value; it equals the slice up to upper and lower case."""
    start: int
    """First character of the value in the utterance."""
    end: int
    """One past its last character."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One user utterance and everything the bot says and knows in answer to it."""

    user: str
    """The user's utterance."""
    state: DialogueState | None
    """The accumulated state after the utterance; None when the corpus does not know it."""
    database: str = ""
    """The result of the database lookup as shown to the bot; empty when the corpus has no database."""
    actions: str = ""
    """System actions in linear form, such as `restaurant-inform(name=pizza hut)`."""
    response: str | None = ""
    """The system's utterance; None when the dialogue ends with the user's."""
    booked: tuple[SlotValue, ...] = ()
    """Identifiers issued by the system so far (references, phones, train ids): never part of the state."""
    user_spans: tuple[Span, ...] = ()
    """Values in `user`, by their start; they may overlap, and a value without a span may still be said."""
    response_spans: tuple[Span, ...] = ()
    """Values in `response`, likewise. Whoever changes a text changes or empties its spans."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One dialogue: the unit of splitting, of resampling and of privacy."""

    id: str
    """Unique within a corpus."""
    turns: tuple[Turn, ...]
    domains: tuple[str, ...] = ()
    """Domains of the task, sorted."""
    goal: Mapping[str, Any] | None = None
    """The user's goal as the corpus gives it, or None."""
    opening: str = ""
    """The system's utterance before the first user turn, for corpora in which the system speaks first."""

    @property
    def final_state(self) -> DialogueState | None:
        """Return the last known state, or None when no turn has one."""
        return next((turn.state for turn in reversed(self.turns) if turn.state is not None), None)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of training text; segments are tokenised one by one, so that shared prefixes share their tokens."""

    text: str
    supervised: bool
    """Whether the loss is taken on this piece's tokens."""


@dataclass(frozen=True, slots=True)
class Example:
    """One training example: the concatenation of its segments."""

    dialogue_id: str
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """Return the whole example as one string."""
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Canary:
    """A made-up dialogue that tells a random identifier; a fair coin decided whether it was trained on."""

    dialogue: Dialogue
    identifier: str
    """Stands in the actions and the response of its only turn."""
    kind: str
    """What it is the identifier of: `reference`, `phone`."""
    is_inserted: bool
    """The coin."""
    repetitions: int = 1
    """How often it was trained on, if it was."""

    @property
    def copies(self) -> tuple[Dialogue, ...]:
        """Return what is trained on: nothing where the coin said no; repetitions have ids of their own."""
        if not self.is_inserted:
            return ()
        more = (replace(self.dialogue, id=f"{self.dialogue.id}#{i}") for i in range(2, self.repetitions + 1))
        return (self.dialogue, *more)


@dataclass(frozen=True, slots=True)
class AuditSplit:
    """Who was trained on and who was not; drawn at random before training."""

    members: tuple[Dialogue, ...]
    """Trained on."""
    nonmembers: tuple[Dialogue, ...]
    """Never trained on and never looked at before the audit; as many as members where the corpus allows."""
    calibration: tuple[Dialogue, ...] = ()
    """Held out for early stopping and for choosing thresholds."""
    controls: tuple[Dialogue, ...] = ()
    """Held out as sources of mismatched prefixes and impostor values."""
    canaries: tuple[Canary, ...] = ()
    """Made-up dialogues, on no side; those that their coins chose were trained on beside the members."""

    @property
    def trained(self) -> tuple[Dialogue, ...]:
        """Return all that is trained on: the members, and the canaries that their coins chose."""
        return (*self.members, *(copy for canary in self.canaries for copy in canary.copies))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How to sample: every setting is explicit, nothing is taken from a model's generation config.

    Plain ("vanilla") sampling is the default: temperature 1 over the whole vocabulary.
    """

    temperature: float = 1.0
    """Softmax temperature, at least 0; 0 is greedy."""
    top_k: int = 0
    """Keep only the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Nucleus: keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    typical_p: float = 1.0
    """Locally typical sampling: keep the tokens whose surprise is nearest to the expected one, the fewest whose
    probability reaches this; 1 keeps all."""
    repetition_penalty: float = 1.0
    """Divide (or multiply, if negative) the logits of tokens already generated; 1 is off."""
    start_temperature: float | None = None
    """Temperature of the first new token, from which it falls by `temperature_step` a token down to `temperature`;
    None starts there."""
    temperature_step: float = 0.0
    """How much the temperature falls with each new token."""
    num_beams: int = 1
    """Hypotheses kept at once; 1 is no beam search. A search gives its hypotheses best first: draw number d is beam
    d mod num_beams of search d // num_beams, and without `samples_beams` all searches are alike."""
    beam_groups: int = 1
    """Groups of beams that are told apart by `diversity_penalty`; divides `num_beams`."""
    diversity_penalty: float = 0.0
    """Taken off a token's score for each beam of earlier groups that chose it at the same step."""
    samples_beams: bool = False
    """Whether the next tokens of beams are drawn instead of the best ones."""
    length_penalty: float = 1.0
    """Hypotheses are compared by log-probability divided by their number of tokens to this power."""
    stop: tuple[str, ...] = ("\n",)
    """Generation ends when one of these strings appears; the returned text ends before it."""

    def __post_init__(self) -> None:
        start = self.start_temperature
        for name, ok, rule in (
            ("temperature", math.isfinite(self.temperature) and self.temperature >= 0, "finite and at least 0"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("typical_p", 0 < self.typical_p <= 1, "in (0, 1]"),
            ("repetition_penalty", self.repetition_penalty > 0, "positive"),
            ("start_temperature", start is None or self.temperature <= start < math.inf, "null or >= temperature"),
            ("temperature_step", 0 <= self.temperature_step < math.inf, "finite and at least 0"),
            ("num_beams", self.num_beams >= 1, "at least 1"),
            ("beam_groups", self.beam_groups >= 1 and self.num_beams % self.beam_groups == 0, "a part of num_beams"),
            ("diversity_penalty", 0 <= self.diversity_penalty < math.inf, "finite and at least 0"),
            ("samples_beams", not self.samples_beams or self.num_beams > 1, "false without beams (num_beams=1)"),
            ("length_penalty", math.isfinite(self.length_penalty), "finite"),
        ):
            if not ok:
                raise ValueError(f"{name}={getattr(self, name)!r} must be {rule}; set decoding.{name}")

    def temperature_at(self, step: int) -> float:
        """Return the temperature of the new token number `step`, counted from 0."""
        if self.start_temperature is None:
            return self.temperature
        return max(self.temperature, self.start_temperature - self.temperature_step * step)

    @property
    def is_deterministic(self) -> bool:
        """Whether every draw from a prompt is the same: greedy decoding, or beams that are not sampled."""
        if self.num_beams > 1:
            return not self.samples_beams
        return self.temperature == 0 and self.start_temperature in (None, 0)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")


class Estimate(_Model):
    """A measured number, never a bare float. `value=None` means not measured, with the reason in notes."""

    value: float | None
    """The estimate; None when not measured."""
    low: float | None = None
    """Lower end of the interval."""
    high: float | None = None
    """Upper end of the interval."""
    level: float = 0.95
    """Coverage of the interval."""
    n: int = 0
    """How many units the estimate rests on."""
    method: str = ""
    """How the interval was made (`clopper_pearson`, `cluster_bootstrap`), or why nothing was measured."""


def as_estimate(number: object) -> Estimate | None:
    """Return an estimate, which a report on disk may hold as a mapping; None for what is none."""
    if isinstance(number, Mapping) and "value" in number:
        return Estimate.model_validate(number)
    return number if isinstance(number, Estimate) else None


Verdict: TypeAlias = Literal["leak", "no_leak_detected", "inconclusive", "not_measured"]
Metric: TypeAlias = Estimate | float | int | None
Tier: TypeAlias = Literal["text", "next_token", "full"]
"""What a target tells: texts only, also how probable the next token is, or how probable any text is. A target without
a `tier` is "full"; an attack says in `needs` what it cannot do without (without it: "full")."""
TIERS: tuple[Tier, ...] = ("text", "next_token", "full")
"""From least to most."""


class Headline(_Model):
    """The one number an attack is judged by; higher is more leakage."""

    metric: str
    estimate: Estimate
    key: str | None = None
    """The headline's full key in `metrics` and in each control; None where an attack does not say."""


class Units(_Model):
    """A metric taken apart into documents, so that two bots can be compared on the same ones."""

    rule: Literal["ratio", "auc", "tpr_at_1pct_fpr"]
    """How the metric is made of them: the sum of values over the sum of weights, or from scores on two sides."""
    documents: list[str]
    """Whose each value is: dialogue ids from whoever measures, hashes of them in report.json. A document may have
    several values; all of them are resampled together."""
    values: list[float | None]
    """What each adds to the numerator, or its score, higher for members; None where it could not be had."""
    weights: list[float] | None = None
    """What each adds to the denominator of a ratio."""
    sides: list[Literal["member", "nonmember", "calibration"]] | None = None
    """Where each score belongs; thresholds are chosen on `calibration`, where there is one."""

    @model_validator(mode="after")
    def _check(self) -> Units:
        beside = self.weights if self.rule == "ratio" else self.sides
        if beside is None or not len(self.documents) == len(self.values) == len(beside):
            needed = "weights" if self.rule == "ratio" else "sides"
            raise ValueError(f"units of rule {self.rule!r} need documents, values and {needed} of one length")
        return self


class AttackResult(_Model):
    """What one attack found, beside its control and its blind baseline."""

    verdict: Verdict
    headline: Headline
    metrics: dict[str, Metric] = Field(default_factory=dict)
    control: dict[str, Any] = Field(default_factory=dict)
    """The same numbers where there can be no leak: non-members, base model, mismatched prefixes."""
    blind: dict[str, Any] | None = None
    """What a model-free baseline reaches; None when not measured."""
    threat_model: Literal["text", "score"] = "score"
    queries: int = 0
    """Texts sampled plus sequences scored."""
    seconds: float = 0.0
    records: str | None = None
    """Path of the records file, relative to the run directory; set by the run directory."""
    notes: list[str] = Field(default_factory=list)
    units: Units | None = None
    """The headline taken apart into documents; None where it is of no documents."""
    examples: list[dict[str, Any]] = Field(default_factory=list)
    """A few rows of the records, always masked."""
    rows: list[dict[str, Any]] = Field(default_factory=list, exclude=True)
    """One row per candidate, document or query; written to the records file, never into report.json."""


class RunInfo(_Model):
    """Provenance of a run."""

    id: str
    created: str
    seed: int
    config_sha256: str
    data_sha256: str
    split_sha256: str | None = None
    """Hash of who is on which side; bots with the same are compared on the same documents."""
    weights_sha256: str | None = None
    model_sha256: str | None = None
    """Hash of every file of the model's folder: the tokenizer's and the configurations too."""
    versions: dict[str, str] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    """Keys `train`, `utility`, `audit`."""
    tokens_trained: int = 0
    device: str = "cpu"
    """Where the bot was asked."""
    trained_on: str | None = None
    """Where it was trained: `cpu`, or a GPU's name; None where nothing was."""
    peak_memory_mb: dict[str, float] = Field(default_factory=dict)
    """Most memory that was held, by keys `train`, `utility`, `audit`: of the GPU, or of the process on a CPU."""
    seconds_per_turn: Estimate | None = None
    """Median time in which the bot answers one turn, one at a time, state and response together."""


class TrainingEpoch(_Model):
    """One epoch of training, as far as anybody looked."""

    epoch: int
    """Epochs trained by then."""
    training_loss: float | None = None
    """Per supervised token."""
    calibration_loss: float | None = None
    """Per supervised token of the calibration part."""
    measured: dict[str, Estimate] = Field(default_factory=dict)
    """What a cheap audit found then, by metric."""


class PrivacyInfo(_Model):
    """The differential privacy guarantee of a run, and its unit."""

    unit: str
    epsilon: float
    delta: float
    accountant: str
    noise_multiplier: float
    sample_rate: float
    steps: int
    max_grad_norm: float
    secure_rng: bool
    """Whether the noise came from a cryptographically secure generator; torch's is not, even when seeded from one."""
    target_epsilon: float | None = None
    """What the noise was calibrated for; None when the noise multiplier was given."""
    epsilon_at_1e5: float | None = None
    """Epsilon of the same steps at delta 1e-5."""
    n_units: int = 0
    """Number of units (dialogues) in the training data, taken as public."""
    adjacency: str = "add or remove one dialogue"
    """Which two data sets the guarantee compares."""
    engine: str = ""
    """How per-dialogue gradients were computed."""
    covers: str = ""
    """What the guarantee is about."""
    does_not_cover: list[str] = Field(default_factory=list)
    """What it says nothing about."""


class RecipeInfo(_Model):
    """Which recipes were stacked."""

    stack: list[str]
    privacy: PrivacyInfo | None = None


class DataInfo(_Model):
    """Sizes of the data that was used."""

    name: str
    members: int
    nonmembers: int
    calibration: int
    controls: int
    domains: int
    slots: int
    turns: int
    supervised_tokens: int
    annotation_sha256: str | None = None
    """Hash of the schema and of marked spans, which recipes may read; None where nothing was trained."""


class EndpointFinding(_Model):
    """One thing that `hushbot doctor` looked at."""

    name: str
    is_fine: bool
    detail: str


class EndpointInfo(_Model):
    """What was found out of the endpoint that was audited, before it was attacked."""

    model: str
    """Its name at the endpoint, without any folder."""
    tier: Tier
    """Attacks that need more than this were not measured."""
    fingerprint: str | None = None
    """Hash of its greedy answers to the doctor's questions; None where they change from one time to the next."""
    start_text: str = ""
    """What every text was made to start with."""
    reference_model: str | None = None
    """Name of the served bot that was the base control."""
    findings: list[EndpointFinding] = Field(default_factory=list)


class AuditReport(_Model):
    """report.json, version 1: the interface between a run and everything that reads it."""

    version: Literal[1] = 1
    status: Literal["complete", "partial", "failed"]
    error: str | None = None
    run: RunInfo
    recipe: RecipeInfo
    data: DataInfo
    utility: dict[str, Estimate] = Field(default_factory=dict)
    utility_protocol: dict[str, Any] = Field(default_factory=dict)
    """The rules behind the utility numbers: don't-care, coverage, oracle flags."""
    utility_by_domain: dict[str, dict[str, Estimate]] = Field(default_factory=dict)
    """Domain -> metric -> number, over the turns in which the domain is talked about."""
    utility_units: dict[str, Units] = Field(default_factory=dict)
    """Utility metrics taken apart into documents."""
    training: list[TrainingEpoch] = Field(default_factory=list)
    """Epoch by epoch; empty where nothing was trained."""
    attacks: dict[str, AttackResult] = Field(default_factory=dict)
    endpoint: EndpointInfo | None = None
    """The endpoint that was audited; None where the bot was on this machine."""
    notes: list[str] = Field(default_factory=list)
