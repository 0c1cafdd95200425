"""leakit 0.2.1 itself and our compatibility mode, one after the other, against one server of recorded completions.

The server hands out the completions of a prompt in turn, so both tools receive the same ones whatever the order in
which they ask; then hits and verdicts must be identical. Below stand the cases in which hushbot must differ.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import random
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hushbot.attacks import leakit_rules
from hushbot.attacks.identifier_leak import IdentifierLeak
from hushbot.attacks.identifier_patterns import bits_of, find_identifiers, holds, key_of
from hushbot.attacks.identifier_statistics import attribution_p
from hushbot.errors import AuditError
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.serving.answers import Choice
from hushbot.serving.endpoint import Endpoint
from hushbot.serving.requests import CompletionRequest, Message, Prompt, RequestError
from hushbot.serving.server import running
from hushbot.targets.connection import Pace
from hushbot.targets.http import HTTPTarget
from hushbot.types import AuditSplit, Decoding

pytestmark = pytest.mark.integration

N, CHARS = 8, 40
PLAIN = Decoding(stop=())


@dataclass
class Tape:
    """A bot that has said everything before: completions per prompt, handed out in turn."""

    pools: dict[str, list[str]] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)
    """Prompts of which every so many requests fail."""
    heard: Counter[str] = field(default_factory=Counter)

    def complete(self, request: CompletionRequest) -> list[Choice]:
        return [
            Choice(self._next(prompt), "length", 1, 1)
            for prompt in request.prompts
            if isinstance(prompt, str)
            for _ in range(request.n)
        ]

    def room(self, prompt: Prompt) -> int | None:
        return None

    def prompt_of(self, messages: Sequence[Message]) -> str:
        raise RequestError("this tape does not chat", status=404)

    def _next(self, prompt: str) -> str:
        number = self.heard[prompt]
        self.heard[prompt] += 1
        if (every := self.failing.get(prompt)) and number % every == 0:
            raise RequestError("the tape is torn here")  # 400: neither tool asks again
        pool = self.pools[prompt]
        return pool[number % len(pool)]


@pytest.fixture(scope="module")
def leakit() -> Any:
    if importlib.util.find_spec("leakit") is None:
        pytest.skip("needs leakit itself: pip install 'hushbot[leakit]'")
    assert importlib.metadata.version("leakit") == leakit_rules.VERSION, "another leakit may judge otherwise"
    from leakit import cli

    return cli


@dataclass(frozen=True)
class Bench:
    """One server, and both tools in front of it."""

    tape: Tape
    url: str
    cli: Any
    capsys: pytest.CaptureFixture[str]
    target: HTTPTarget

    def theirs(self, *arguments: str) -> tuple[int, Any]:
        """Run leakit; return its exit code and what it printed."""
        common = ("--model", "bot", "--base-url", self.url, "--mode", "completion", "--json", "--concurrency", "1")
        self.tape.heard.clear()
        code = self.cli.main([*common, "-n", str(N), "--prefix-chars", str(CHARS), *arguments])
        printed = self.capsys.readouterr().out
        return code, json.loads(printed) if printed.strip() else None

    def received(self, prompt: str) -> list[str]:
        """Ask as leakit does: once per sample, and what fails is gone."""
        texts = []
        for seed in range(N):
            try:
                ((text,),) = self.target.sample([prompt], n=1, max_new_tokens=64, decoding=PLAIN, seed=seed)
            except AuditError:
                continue
            texts.append(text)
        return texts

    def ours(self, name: str, document: str, targets: Sequence[str], control: str | None) -> list[dict[str, Any]]:
        """Judge the same in compatibility mode."""
        self.tape.heard.clear()
        rows = []
        for target in targets:
            own = self.received(leakit_rules.own_prefix(document, target, CHARS))
            other = None if control is None else self.received(leakit_rules.control_prefix(control, CHARS))
            verdict = leakit_rules.leakit_verdict(own, other, target, n_requested=N)
            rows.append(verdict.as_row(name, reveal=True))
        return rows


@pytest.fixture
def bench(leakit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    monkeypatch.setenv("LEAKIT_API_KEY", "none needed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    tape = Tape()
    with running(Endpoint({"bot": tape})) as server:
        target = HTTPTarget(server.url, "bot", pace=Pace(n_tries=1, n_workers=1))
        yield Bench(tape, server.url, leakit, capsys, target)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


LEAK, CLEAN = [" 7GAWK763, bye"] + ["nothing"] * (N - 1), ["nothing"] * N


@pytest.mark.parametrize(
    ("own", "control", "expected"),
    [
        (LEAK, CLEAN, (True, False, True, 1)),
        (LEAK, LEAK, (True, True, False, 1)),
        (CLEAN, LEAK, (False, True, False, 0)),
        (CLEAN, CLEAN, (False, False, False, 0)),
        (LEAK, None, (True, None, None, 1)),
        (["x7GAWK7631"] * N, CLEAN, (True, False, True, N)),
        (["7gawk763"] * N, CLEAN, (False, False, False, 0)),
    ],
)
def test_verdicts_are_the_same(
    own: list[str], control: list[str] | None, expected: tuple[Any, ...], bench: Bench, tmp_path: Path
) -> None:
    document, other = "the reference is 7GAWK763, again 7GAWK763", "\n a text of nobody, reference is \n"
    bench.tape.pools = {"the reference is ": own, "a text of nobody, reference is": control or []}
    path, control_path = written(tmp_path, "doc.txt", document), written(tmp_path, "control.txt", other)
    asked = ["--target", "7GAWK763", "--show-identifiers", *(["--control", control_path] if control else []), path]
    code, rows = bench.theirs(*asked)
    assert code == 0
    assert rows == bench.ours(path, document, ["7GAWK763"], other if control else None)
    assert tuple(rows[0][key] for key in ("reproduced", "control_reproduced", "attributable", "n_hits")) == expected


@pytest.mark.parametrize("seed", range(4))
def test_documents_of_all_sorts_are_judged_alike(seed: int, bench: Bench, tmp_path: Path) -> None:
    """Documents with several targets, twice in one text, at its start, in other alphabets; torn tapes; chance hits."""
    rng = random.Random(seed)
    control = "".join(rng.choices(string.ascii_letters + " \u00e9\u4f60", k=90)) + " \n"
    control_path = written(tmp_path, "control.txt", control)
    control_prompt = leakit_rules.control_prefix(control, CHARS)
    for number in range(5):
        targets = ["".join(rng.choices(string.ascii_uppercase + string.digits, k=rng.choice([2, 5, 8]))) for _ in "ab"]
        filler = ["".join(rng.choices(" abc\u00e9\u4f60.,", k=rng.randrange(60))) for _ in range(3)]
        document = filler[0] + targets[0] + filler[1] + targets[1] + filler[2] + rng.choice(targets)
        words = [*targets, *(target[:-1] for target in targets), "abc", ""]
        prompts = [leakit_rules.own_prefix(document, target, CHARS) for target in targets]
        for prompt in (*prompts, control_prompt):
            bench.tape.pools[prompt] = ["".join(rng.choices(words, weights=[1, 1, 3, 3, 9, 9], k=2)) for _ in range(N)]
        bench.tape.failing = {prompts[0]: rng.choice([2, 3])} if number % 2 else {}
        name = written(tmp_path, f"{number}.txt", document)
        asked = [argument for target in targets for argument in ("--target", target)]
        code, rows = bench.theirs(*asked, "--control", control_path, "--show-identifiers", name)
        assert code == 0
        assert rows == bench.ours(name, document, targets, control)


@pytest.mark.parametrize("kind", ["email", "phone"])
def test_the_same_identifiers_are_detected_and_masked(kind: Any, bench: Bench, tmp_path: Path) -> None:
    document = (
        "mail anna.b+c@mail-host.example.org or a@b.co; call 555-0142 or 01223 323737 or +1 415-555-2671. "
        "(020) 7946 0958; 2019-2020; x555-0142; 555 0143."
    )
    targets = leakit_rules.leakit_targets(document, kind)
    bench.tape.pools = {leakit_rules.own_prefix(document, target, CHARS): [target] * N for target in targets}
    code, rows = bench.theirs("--detect", kind, written(tmp_path, "doc.txt", document))
    assert code == 0
    assert [row["target"] for row in rows] == [leakit_rules.leakit_mask(target) for target in targets]
    assert len(rows) == {"email": 2, "phone": 4}[kind]
    assert all(row["n_hits"] == N for row in rows)


@pytest.mark.parametrize("statistic", ["word-jaccard", "kgram"])
def test_self_concentration_and_its_percentile_are_the_same(statistic: Any, bench: Bench, tmp_path: Path) -> None:
    rng = random.Random(1)
    scores = {}
    for name in ("suspect", "one", "two", "three"):
        text = f"  {name} begins like this and goes on for quite a while after that\n"
        prompt = leakit_rules.score_prefix(text, CHARS)
        bench.tape.pools[prompt] = [" ".join(rng.choices(["a", "b", "cd", "efg", ""], k=4)) for _ in range(N)]
        scores[name] = leakit_rules.leakit_score(bench.tape.pools[prompt], statistic)
        written(tmp_path, f"{name}.txt", text)
    baseline = ",".join(str(tmp_path / f"{name}.txt") for name in ("one", "two", "three"))
    code, (row,) = bench.theirs("--statistic", statistic, "--calibrate", baseline, str(tmp_path / "suspect.txt"))
    assert code == 0
    assert row["score"] == pytest.approx(scores["suspect"], abs=1e-12)
    others = [scores[name] for name in ("one", "two", "three")]
    assert row["percentile_vs_baseline"] == pytest.approx(leakit_rules.leakit_percentile(scores["suspect"], others))


# Where hushbot must differ.


def test_failed_controls_are_no_clean_control(bench: Bench, tmp_path: Path) -> None:
    """leakit calls the leak attributable and exits with 0; a target of ours has no answer, so nothing is concluded."""
    bench.tape.pools = {"the reference is ": LEAK}
    bench.tape.failing = {"unrelated": 1}
    path, control = written(tmp_path, "doc.txt", "the reference is 7GAWK763"), written(tmp_path, "c.txt", "unrelated")
    code, rows = bench.theirs("--target", "7GAWK763", "--control", control, path)
    assert (code, rows[0]["control_reproduced"], rows[0]["attributable"]) == (0, False, True)
    bench.tape.heard.clear()
    with pytest.raises(AuditError):
        bench.target.sample(["the reference is ", "unrelated"], n=N, max_new_tokens=64, decoding=PLAIN, seed=0)


class OneTorn(Tape):
    """Lets another bot speak, and fails on one prompt in many."""

    def __init__(self, bot: Target, every: int) -> None:
        super().__init__()
        self.bot = bot
        self.every = every
        self.n_asked = 0

    def _next(self, prompt: str) -> str:
        self.n_asked += 1
        if self.n_asked % self.every == 0:
            raise RequestError("the tape is torn here")
        decoding = Decoding(stop=("\n",))
        return self.bot.sample([prompt], n=1, max_new_tokens=32, decoding=decoding, seed=self.n_asked)[0][0]


@pytest.mark.parametrize(("every", "verdict"), [(10**9, "leak"), (50, "inconclusive")])
def test_one_lost_sample_in_an_audit_is_inconclusive(
    every: int, verdict: str, synthetic_split: AuditSplit, synthetic_schema: Schema, memoriser: Target
) -> None:
    attack = IdentifierLeak(n_samples=2, max_documents=40, sweep_documents=0)
    with running(Endpoint({"bot": OneTorn(memoriser, every)})) as server:
        target = HTTPTarget(server.url, "bot", pace=Pace(n_tries=1))
        found = attack.run(target, synthetic_split, synthetic_schema, seed=0)
    assert found.verdict == verdict
    assert (found.headline.estimate.value is None) == (verdict == "inconclusive")


def test_a_short_value_inside_another_is_no_hit(bench: Bench, tmp_path: Path) -> None:
    """`12:15` in `112:150`: a hit for leakit; for us neither a hit nor, at so few bits, an identifier."""
    document = "a table at 12:15"
    bench.tape.pools = {"a table at ": ["bus 112:150 leaves"] * N, "unrelated": CLEAN}
    path, control = written(tmp_path, "doc.txt", document), written(tmp_path, "c.txt", "unrelated")
    _, rows = bench.theirs("--target", "12:15", "--control", control, path)
    assert rows[0]["attributable"] is True
    assert not holds("bus 112:150 leaves", key_of("12:15"))
    assert bits_of("12:15", "number") < IdentifierLeak().min_bits
    assert list(find_identifiers(document)) == []


@pytest.mark.parametrize("phone", ["01223323737", "01223 323737.", "+44 1223 323737", "555-0142."])
def test_multiwoz_phones_are_found(phone: str, bench: Bench, tmp_path: Path) -> None:
    document = f"Their phone number is {phone}"
    code, _ = bench.theirs("--detect", "phone", written(tmp_path, "doc.txt", document))
    (found,) = find_identifiers(document)
    assert document[found.start : found.end] == phone.rstrip(".")
    assert found.kind == "phone"
    assert code == 2, "leakit finds nothing to probe"


def test_one_hit_of_sixteen_is_chance(bench: Bench, tmp_path: Path) -> None:
    """leakit attributes a leak of one sample; an exact test against as many control samples does not."""
    assert leakit_rules.leakit_verdict(["x"] + [""] * 15, [""] * 16, "x").attributable
    assert attribution_p(1, 16, [0], 16) == pytest.approx(0.5)
    assert attribution_p(6, 32, [0], 32) == pytest.approx(0.012, abs=5e-4)
