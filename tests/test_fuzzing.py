"""What bots, servers and run directories hand us is read or refused by a `HushbotError`; never a hang.

Each test prints how many inputs it tried; see `fuzzing.py` for how to try more.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hushbot.attacks.quiz_records import RecordFile
from hushbot.composition import compose, decisive, find_problems
from hushbot.corpora.split import check_manifest
from hushbot.errors import DataError, HushbotError
from hushbot.evaluation.audited import setting_of
from hushbot.evaluation.documents import split_sha256
from hushbot.evaluation.following import Progress
from hushbot.evaluation.gate import Budget, judge, read_budget
from hushbot.prompts import parse_state, read_changes, read_state
from hushbot.run import RunDirectory, config_sha256, read_report
from hushbot.training.stack import build_stack
from hushbot.types import AuditReport, Decoding

ROOT = Path(__file__).resolve().parents[1]


def _fuzzing() -> Any:
    spec = importlib.util.spec_from_file_location("fuzzing", Path(__file__).with_name("fuzzing.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzzing"] = module  # a NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


fuzzing = _fuzzing()
SEED, Tell, tell, seconds, named = fuzzing.SEED, fuzzing.Tell, fuzzing.tell, fuzzing.seconds, fuzzing.named
as_json, hunt, taking_turns = fuzzing.as_json, fuzzing.hunt, fuzzing.taking_turns
mutated_bytes, mutated_values = fuzzing.mutated_bytes, fuzzing.mutated_values

# What bots write


STATES = (
    "restaurant(food=thai, area=the north); taxi(leaveat=17:30)",
    "none",
    "hotel(name='a, b=c', stars=4|5)",
    "restaurant(food=thai); drop taxi(leaveat)",
)


def _texts() -> Iterator[str]:
    for content in mutated_bytes([text.encode() for text in STATES], SEED):
        yield content.decode(errors="surrogateescape")


def test_states(tell: Tell) -> None:
    def read(text: str) -> None:
        read_state(text)
        read_changes(text)
        parse_state(text)

    tell("states", hunt(read, _texts(), seconds=seconds(0.375)))


@settings(deadline=2000, max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet=st.characters() | st.sampled_from("()=,;|\\'\"\n -"), max_size=200))
def test_any_text_is_a_state_or_refused(text: str) -> None:
    found = read_state(text)
    try:
        parsed = parse_state(text)
    except HushbotError:
        return
    assert parsed == found.state


# What servers answer


def answer_to(body: Mapping[str, Any]) -> dict[str, Any]:
    """Answer as a sound server does whose tokens are characters."""
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    n_new, choices = body.get("max_tokens", 16), []
    for prompt in prompts:
        for _ in range(body.get("n") or 1):
            text = (prompt if body.get("echo") else "") + " hello"[:n_new]
            choices.append({"index": len(choices), "text": text, "finish_reason": "length"})
            if body.get("logprobs") is not None:
                scores: list[float | None] = [-1.0] * len(text)
                scores[:1] = [None] if body.get("echo") else scores[:1]
                best = [
                    None if score is None else {token: score, "q": -2.5}
                    for token, score in zip(text, scores, strict=True)
                ]
                choices[-1]["logprobs"] = {"tokens": list(text), "token_logprobs": scores, "top_logprobs": best}
    return {"id": "x", "choices": choices, "usage": {"completion_tokens": n_new}}


CHAT_SCORES = {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -2.0}]}]}
CUT = {"tokens": ["Caf", "\ufffd", "\ufffd", " b", "bytes:\\xc3"], "token_logprobs": [None, -1.0, -1.0, -2.0, -1.0]}
TEXT = "Café bé"


def test_answers(tell: Tell) -> None:
    from hushbot.targets.http_answers import read_echo, read_next, read_texts

    asked = {"prompt": TEXT, "max_tokens": 2, "echo": True, "logprobs": 1}
    seeds = [answer_to(asked), answer_to({"prompt": "a", "n": 2}), answer_to({"prompt": "a", "logprobs": 5})]
    seeds += [{"choices": [{"text": "a", "logprobs": scores}]} for scores in (CHAT_SCORES, CUT)]
    readers = (lambda x: read_texts(x, 1), lambda x: read_texts(x, 2), read_next, lambda x: read_echo(x, TEXT, 2))

    def read(given: tuple[int, Any]) -> None:
        readers[given[0]](given[1])

    streams = [named(i, mutated_values(seeds, SEED + i)) for i in range(len(readers))]
    tell("answers", hunt(read, taking_turns(*streams), seconds=seconds(0.5)))


@settings(deadline=5000, max_examples=200, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["é", "\ufffd", "a", "\ufffda", "éé", "<0xC3>", ""]), max_size=60), st.data())
def test_spelling_a_text_in_cut_characters_takes_no_time(tokens: list[str], data: st.DataObject) -> None:
    from hushbot.targets.http_answers import read_echo

    text = "".join(data.draw(st.sampled_from(["é", "a", "éé"])) for _ in tokens)
    answer = {"choices": [{"logprobs": {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens)}}]}
    try:
        with fuzzing.limited():
            found = read_echo(answer, text, 0)
    except HushbotError:
        return
    assert len(found.starts) == len(found.logprobs) <= len(tokens)


class Saboteur:
    """A connection to a server that answers soundly, but for some mutated answers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.n_sound = self.rng.choice((0, 1, 3, 8, 20, 40))

    def __call__(self, method: str, path: str, body: bytes | None) -> Any:
        sound = {"data": [{"id": "bot"}]} if body is None else answer_to(json.loads(body))
        self.n_sound -= 1
        if self.n_sound >= 0 or self.rng.random() < 0.5:
            return sound
        stream = mutated_values([sound], self.rng.randrange(2**32))
        next(stream)
        return next(stream)


def test_doctor_never_raises_for_what_a_server_answers(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    from hushbot.targets.connection import Connection, Pace
    from hushbot.targets.doctor import examine
    from hushbot.targets.http import HTTPTarget

    def read(seed: int) -> None:
        pace = Pace(n_workers=1, pause=0.0)
        connection = Connection("http://localhost:1/v1", pace=pace)
        monkeypatch.setattr(connection, "_once", Saboteur(seed))
        target = HTTPTarget("http://localhost:1/v1", "bot", pace=pace, connection=connection)
        try:
            diagnosis = examine(target)
        except HushbotError as error:
            raise AssertionError("the doctor must find, not raise") from error
        if diagnosis.tier is not None:
            bot = diagnosis.applied_to(target)
            bot.sample(["Hello"], n=2, max_new_tokens=4, decoding=Decoding(), seed=0)
            bot.logprobs(["Hello"], [" there"])

    found = hunt(read, iter(range(SEED, SEED + 10**9)), seconds=seconds(0.5))
    tell("doctor", found)


def test_bytes_of_a_server(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx2

    from hushbot.targets.connection import Connection, EndpointError, Pace, read_retry_after

    sound = json.dumps(answer_to({"prompt": "a"})).encode()
    dates = [
        b"7",
        b"1.5",
        b"Mon, 30 Nov 2026 12:00:00 GMT",
        b"Mon, 30 Nov 9999 12:00:00 -0000",
        b"Mon, 1 Jan 1 0:0:0 +2359",
    ]
    said: list[bytes] = []
    server = httpx2.MockTransport(lambda _: httpx2.Response(200, content=said[0]))
    connection = Connection("http://localhost:1/v1", pace=Pace(n_tries=1))
    monkeypatch.setattr(connection, "_client", httpx2.Client(transport=server), raising=False)
    streams = {"body": mutated_bytes([sound], SEED), "date": mutated_bytes(dates, SEED)}

    def read(given: tuple[str, bytes]) -> None:
        what, content = given
        if what == "date":
            wait = read_retry_after(content.decode("latin1"))
            assert wait is None or wait >= 0
            return
        said[:] = [content]
        connection.post("/completions", {"prompt": "a"})

    found = hunt(read, taking_turns(*(named(k, v) for k, v in streams.items())), seconds=seconds(0.5))
    tell("bytes of a server", found)
    assert issubclass(EndpointError, HushbotError)


def test_requests_to_our_own_server(tell: Tell) -> None:
    from hushbot.serving.requests import RequestError, read_chat, read_completion

    completion = {
        "model": "bot",
        "prompt": ["a", "b"],
        "n": 2,
        "max_tokens": 4,
        "echo": True,
        "logprobs": 1,
        "stop": ["\n"],
    }
    chat = {"model": "bot", "messages": [{"role": "user", "content": "hi"}], "top_logprobs": 2, "logprobs": True}

    def read(body: bytes) -> None:
        for reader in (read_completion, read_chat):
            with contextlib.suppress(RequestError):
                reader(body)

    streams = as_json(mutated_values([completion, chat], SEED)), mutated_bytes([json.dumps(chat).encode()], SEED)
    tell("requests", hunt(read, taking_turns(*streams), seconds=seconds(0.3)))


# What lies in run directories


HALF = {"value": 0.5, "low": 0.25, "high": 0.75, "level": 0.95, "n": 8, "method": "by hand"}
NONE = {"value": None, "method": "not asked"}
UNITS = {"rule": "auc", "documents": ["a", "b"], "values": [0.5, None], "sides": ["member", "nonmember"]}
ATTACK = {
    "verdict": "leak",
    "headline": {"metric": "auc", "key": "ppl/auc", "estimate": HALF},
    "metrics": {"ppl/auc": HALF, "ppl/threshold": 0.25, "queries": 3, "other": NONE},
    "control": {"nonmembers": {"ppl/auc": HALF}, "base": {"ppl/auc": NONE}},
    "blind": {"words": {"auc": HALF}},
    "threat_model": "score",
    "queries": 12,
    "seconds": 1.5,
    "records": "records/membership.parquet",
    "notes": ["a note"],
    "units": UNITS,
    "examples": [{"dialogue_id": "d0", "value": "***(3)"}],
}
REPORT = {
    "version": 1,
    "status": "complete",
    "error": None,
    "run": {
        "id": "turn_level-s0-1a2b3c4d",
        "created": "2026-01-01T00:00:00+00:00",
        "seed": 0,
        "config_sha256": "a",
        "data_sha256": "b",
        "split_sha256": "c",
        "weights_sha256": "d",
        "versions": {"torch": "2"},
        "seconds": {"train": 1.0, "utility": 1.0, "audit": 1.0},
        "tokens_trained": 10,
        "device": "cpu",
        "peak_memory_mb": {"train": 640.0},
        "seconds_per_turn": HALF,
    },
    "recipe": {
        "stack": ["dialogue_level", "dp_sgd"],
        "privacy": {
            "unit": "dialogue",
            "epsilon": 8.0,
            "delta": 1e-5,
            "accountant": "rdp",
            "noise_multiplier": 1.0,
            "sample_rate": 0.1,
            "steps": 10,
            "max_grad_norm": 1.0,
            "secure_rng": False,
        },
    },
    "data": dict.fromkeys(("members", "nonmembers", "calibration", "controls", "domains", "slots", "turns"), 2)
    | {"name": "bookings", "supervised_tokens": 5},
    "utility": {"joint_goal_accuracy": HALF, "bleu": NONE},
    "utility_protocol": {"dontcare": "strict"},
    "utility_by_domain": {"hotel": {"joint_goal_accuracy": HALF}},
    "utility_units": {"joint_goal_accuracy": {"rule": "ratio", "documents": ["a"], "values": [1.0], "weights": [2.0]}},
    "training": [{"epoch": 1, "training_loss": 1.0, "calibration_loss": 1.5, "measured": {"membership/auc": HALF}}],
    "attacks": {
        "membership": ATTACK,
        "untargeted_extraction": ATTACK | {"headline": {"metric": "state_precision@100", "estimate": HALF}},
        "canaries": ATTACK | {"metrics": {"epsilon_lower": HALF, "claimed_epsilon": 8.0, "exposure": HALF}},
        "identifier_leak": ATTACK | {"units": None, "blind": None},
    },
    "endpoint": {"model": "bot", "tier": "full", "findings": [{"name": "echo", "is_fine": True, "detail": "x"}]},
    "notes": ["a note"],
}


def reports() -> list[Any]:
    """Return reports to mutate; `HUSHBOT_FUZZ_REPORT` adds one of your own."""
    own = os.environ.get("HUSHBOT_FUZZ_REPORT")
    return [REPORT, *([json.loads(Path(own).read_text(encoding="utf-8"))] if own else [])]


def test_reports_are_read_or_refused(tmp_path: Path, tell: Tell) -> None:
    path = tmp_path / "report.json"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        found = read_report(path)
        judge(found, BUDGET)

    seeds = reports()
    streams = as_json(mutated_values(seeds, SEED)), mutated_bytes([json.dumps(one).encode() for one in seeds], SEED)
    tell("reports", hunt(read, taking_turns(*streams), seconds=seconds(0.5), place=str(path)))


def test_whatever_report_can_be_read_can_be_shown(tmp_path: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    from hushbot.evaluation.card import write_card
    from hushbot.evaluation.page import write_page
    from hushbot.evaluation.report import print_summary
    from hushbot.evaluation.run_reports import read_run

    monkeypatch.setattr("rich.console.Console.print", lambda *_, **__: None)
    run = tmp_path / "mine"
    run.mkdir()

    def read(value: Any) -> None:
        (run / "report.json").write_text(json.dumps(value), encoding="utf-8")
        report = read_run(run)
        write_card(report, run)
        write_page([run], run / "report.html")
        print_summary([report])

    inputs = mutated_values(reports(), SEED, is_gentle=True)
    tell("shown reports", hunt(read, inputs, seconds=seconds(1.5), place=str(run)))


def test_whatever_reports_can_be_read_can_be_compared(tmp_path: Path, tell: Tell) -> None:
    from hushbot.evaluation.comparisons import ComparisonSettings, compare_arms, comparisons_csv
    from hushbot.evaluation.tradeoff import rows_of, tradeoff_csv

    sound = AuditReport.model_validate(REPORT)
    path = tmp_path / "report.json"

    def read(value: Any) -> None:
        path.write_text(json.dumps(value), encoding="utf-8")
        both = [sound, read_report(path)]
        comparison = compare_arms(both, ComparisonSettings(n_draws=100))
        comparisons_csv(comparison)
        tradeoff_csv(rows_of(both), comparison.standings)

    inputs = mutated_values(reports(), SEED, is_gentle=True)
    tell("compared reports", hunt(read, inputs, seconds=seconds(0.5), place=str(path)))


BUDGET_SEED = {
    "version": 1,
    "required": ["membership"],
    "attacks": {"membership": {"headline": 0.1, "ppl/auc": {"max": 0.6, "use": "value"}}},
    "privacy": {"max_epsilon": 8, "max_delta": 1.0e-5, "unit": "dialogue"},
    "utility": {"joint_goal_accuracy": {"min": 0.2}},
}
BUDGET = Budget.model_validate(BUDGET_SEED)


def test_budgets(tmp_path: Path, tell: Tell) -> None:
    path, report = tmp_path / "budget.yaml", AuditReport.model_validate(REPORT)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        judge(report, read_budget(path))

    good = yaml.safe_dump(BUDGET_SEED).encode()
    streams = as_yaml(mutated_values([BUDGET_SEED], SEED)), mutated_bytes([good], SEED)
    tell("budgets", hunt(read, taking_turns(*streams), seconds=seconds(0.375), place=str(path)))


def as_yaml(values: Iterator[Any]) -> Iterator[bytes]:
    for value in values:
        yield yaml.safe_dump(value).encode("utf-8", "surrogatepass")


MANIFEST = {
    "version": 1,
    "seed": 0,
    "data_sha256": "a",
    "members": ["d1", "d2"],
    "nonmembers": ["d3", "d4"],
    "calibration": [],
    "controls": ["d5"],
    "canary_coins": {"c1": True},
    "near_duplicates": [],
    "notes": ["x"],
}


def test_manifests(tmp_path: Path, tell: Tell) -> None:
    run = RunDirectory(tmp_path)

    def read(content: bytes) -> None:
        run.manifest_path.write_bytes(content)
        with contextlib.suppress(DataError):  # which is of another run, and says so
            check_manifest(run.manifest, MANIFEST)
        split_sha256(run.manifest)

    streams = as_json(mutated_values([MANIFEST], SEED)), mutated_bytes([json.dumps(MANIFEST).encode()], SEED)
    tell("manifests", hunt(read, taking_turns(*streams), seconds=seconds(0.5), place="manifest"))


def test_configurations_of_runs(tmp_path: Path, tell: Tell) -> None:
    config = compose("train", ["recipe=counterfactual+dp_sgd", "attack=[membership]"])
    run = RunDirectory(tmp_path)

    def read(content: bytes) -> None:
        run.config_path.write_bytes(content)
        found = run.config
        config_sha256(decisive(found))
        setting_of(run, ())
        if not find_problems(found):
            build_stack(found)

    good = yaml.safe_dump(config).encode()
    streams = as_yaml(mutated_values([config], SEED)), mutated_bytes([good], SEED)
    tell("configurations", hunt(read, taking_turns(*streams), seconds=seconds(1.5)))


LEDGER = (
    b'{"ledger": "ab", "data_fingerprint": "f", "noise_multiplier": 1.0, "sample_rate": 0.1, "max_grad_norm": 1.0, '
    b'"n_dialogues": 8, "is_insecure": false, "started": "2026-01-01T00:00:00+00:00"}\n'
    b'{"step": 1, "noise_multiplier": 1.0, "sample_rate": 0.1}\n'
    b'{"step": 2, "noise_multiplier": 1.0, "sample_rate": 0.1}\n'
)


def test_ledgers(tmp_path: Path, tell: Tell) -> None:
    from hushbot.training.ledger import LedgerHeader, PrivacyLedger, read_history

    path = tmp_path / "privacy_ledger.jsonl"
    header = LedgerHeader(data_fingerprint="f", noise_multiplier=1.0, sample_rate=0.1, max_grad_norm=1.0, n_dialogues=8)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        n_before = sum(spent.steps for spent in read_history(path))
        ledger = PrivacyLedger.open(path, header)
        assert ledger.n_steps >= n_before
        ledger.close()

    found = hunt(read, mutated_bytes([LEDGER], SEED), seconds=seconds(0.5), place=str(path))
    tell("ledgers", found)


def test_notes_of_trackers(tmp_path: Path, tell: Tell) -> None:
    path = tmp_path / "csv.json"
    good = {"id": "mine-0a0a0a0a", "logged": ["utility", "membership"]}

    def read(content: bytes) -> None:
        path.write_bytes(content)
        progress = Progress(path, "mine")
        progress.is_new("utility")
        progress.keep()

    streams = as_json(mutated_values([good], SEED)), mutated_bytes([json.dumps(good).encode()], SEED)
    tell("notes of trackers", hunt(read, taking_turns(*streams), seconds=seconds(0.3), place=str(path)))


def test_stored_answers(tmp_path: Path, tell: Tell) -> None:
    from hushbot.targets.answer_store import FILE_NAME, AnswerStore

    key = b"k" * 32
    made = AnswerStore(tmp_path / "made")
    made.put({bytes([i]) * 32: b"answer" * 50 for i in range(40)} | {key: b"mine"})
    made.close()
    good = (tmp_path / "made" / FILE_NAME).read_bytes()
    folder = tmp_path / "broken"

    def read(content: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / FILE_NAME).write_bytes(content)
        store = AnswerStore(folder)
        try:
            assert store.get([key]).get(key) in (None, b"mine"), "a changed answer was handed out"
            store.put({b"new": b"x"})
        finally:
            store.close()

    found = hunt(read, mutated_bytes([good], SEED), seconds=seconds(0.5), place=str(folder))
    tell("stored answers", found)


def test_records_files(tmp_path: Path, tell: Tell) -> None:
    from hushbot.evaluation.reproduction_files import read_records

    run = RunDirectory(tmp_path)
    name = run.write_records("untargeted_extraction", [{"n_new": i, "text": "x" * i} for i in range(9)], reveal=False)
    path = tmp_path / name

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_records(run)

    found = hunt(read, mutated_bytes([path.read_bytes()], SEED), seconds=seconds(0.375), place=str(path))
    tell("records", found)


def test_record_files_of_the_quiz(tmp_path: Path, tell: Tell) -> None:
    rows = b'{"id": "a", "member": true, "city": "Ely", "text": "in Ely"}\n{"id": 2, "member": "no", "city": "York"}\n'
    table = b'id,member,city\r\na,1,"E, ly"\r\nb,0,York\r\n'
    paths = {name: tmp_path / name for name in ("rows.jsonl", "table.csv")}
    readers = {name: RecordFile(path=str(path)) for name, path in paths.items()}

    def read(given: tuple[str, bytes]) -> None:
        paths[given[0]].write_bytes(given[1])
        readers[given[0]].read()

    streams = (
        named("rows.jsonl", mutated_bytes([rows], SEED)),
        named("table.csv", mutated_bytes([table], SEED)),
    )
    tell("quiz records", hunt(read, taking_turns(*streams), seconds=seconds(0.3), place=str(tmp_path)))


def test_checkpoints(tmp_path: Path, tell: Tell) -> None:
    import torch

    from hushbot.training.callbacks import AtomicCheckpointIO

    path, reader = tmp_path / "last.ckpt", AtomicCheckpointIO()
    good = {"weights": torch.zeros(3), "epoch": 1, "loops": {"a": [1, 2]}}
    reader.save_checkpoint(good, path)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        found = reader.load_checkpoint(path)
        assert found.keys() == good.keys()
        assert found["loops"] == good["loops"]

    found = hunt(read, mutated_bytes([path.read_bytes()], SEED), seconds=seconds(0.375), place=str(path))
    tell("checkpoints", found)


def test_model_folders(tmp_path: Path, tell: Tell) -> None:
    from hushbot.training.backbone import tiny_dir
    from hushbot.training.model_folder import load_model, weights_sha256

    folder = tmp_path / "model"
    shutil.copytree(tiny_dir(), folder)
    goods = {path.name: path.read_bytes() for path in folder.iterdir()}
    small = [name for name, content in goods.items() if name.endswith(".json")]

    def read(given: tuple[str, bytes]) -> None:
        name, content = given
        (folder / name).write_bytes(content)
        try:
            weights_sha256(folder)
            load_model(folder)
        finally:
            (folder / name).write_bytes(goods[name])

    streams = [named(name, mutated_bytes([goods[name]], SEED)) for name in (*small, "model.safetensors")]
    tell("model folders", hunt(read, taking_turns(*streams), seconds=seconds(1.5), place=str(folder)))


# What is typed


WORDS = (
    "recipe",
    "attack",
    "trainer.max_epochs",
    "seed",
    "data",
    "~attack.membership",
    "+x",
    "backbone",
    "split.members",
)


def test_overrides(tell: Tell) -> None:
    values = [
        f"{word}={value}".encode() for word in WORDS for value in ("turn_level", "1", "[a,b]", "${seed}", "{a: 1}")
    ]

    def read(content: bytes) -> None:
        find_problems(compose("train", [content.decode("utf-8", "replace")]))

    tell("overrides", hunt(read, mutated_bytes(values, SEED), seconds=seconds(1.5)))


OWN = b"""# @package recipe.mine
_target_: hushbot.recipes.counterfactual.Counterfactual
defaults: [_self_]
seed: ${seed}
nested: {_target_: os.mkdir, a: [1, null, 2.5e3]}
"""


def test_own_groups(tmp_path: Path, tell: Tell) -> None:
    path = tmp_path / "recipe" / "mine.yaml"
    path.parent.mkdir()

    def read(content: bytes) -> None:
        path.write_bytes(content)
        find_problems(compose("train", ["recipe=mine"], config_dir=tmp_path))

    tell("own groups", hunt(read, mutated_bytes([OWN], SEED), seconds=seconds(1.5)))


def test_adapter_folders(tmp_path: Path, tell: Tell) -> None:
    import torch

    from hushbot.training.backbone import LoraSettings, TinyBackbone, save_model
    from hushbot.training.model_folder import RECORD_NAME, load_model

    torch.manual_seed(0)
    made = TinyBackbone(lora=LoraSettings(r=2, targets=("q_proj",))).load()
    folder = tmp_path / "adapter"
    save_model(made.model, made.tokenizer, folder)
    record = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8")) | {"settings_sha256": None}
    (folder / RECORD_NAME).write_text(json.dumps(record), encoding="utf-8")  # or every other change is known by it
    names = ("adapter_config.json", "adapter_model.safetensors", RECORD_NAME)
    goods = {name: (folder / name).read_bytes() for name in names}

    def read(given: tuple[str, bytes]) -> None:
        name, content = given
        (folder / name).write_bytes(content)
        try:
            load_model(folder)
        finally:
            (folder / name).write_bytes(goods[name])

    settings = json.loads(goods["adapter_config.json"])
    streams = [named(name, mutated_bytes([good], SEED)) for name, good in goods.items()]
    streams.append(named("adapter_config.json", as_json(mutated_values([settings], SEED))))
    tell("adapter folders", hunt(read, taking_turns(*streams), seconds=seconds(0.5)))
