"""An independent server: transformers' own, which tells texts and says nothing of what it leaves out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

import pytest

from hushbot.errors import UnsupportedError
from hushbot.targets.connection import Connection, EndpointError, Pace
from hushbot.targets.doctor import examine
from hushbot.targets.http import HTTPTarget
from hushbot.types import Decoding

SECONDS = 120


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HTTPTarget]:
    """Serve the tiny backbone, or skip where what `transformers serve` needs is not installed."""
    command = Path(sys.executable).with_name("transformers")
    missing = [name for name in ("fastapi", "uvicorn", "openai") if find_spec(name) is None]
    if missing or not command.exists():
        pytest.skip(f"needs `pip install 'transformers[serving]'`: {', '.join(missing) or 'its command'} is not there")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with as_file(files("hushbot") / "assets" / "tiny") as model:
        arguments = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        quiet = subprocess.DEVNULL
        server = subprocess.Popen([str(command), *arguments], env=environment, stdout=quiet, stderr=quiet)
        try:
            target = HTTPTarget(f"http://127.0.0.1:{port}/v1", str(model), pace=Pace(timeout=60))
            wait_for(target.connection, server)
            yield target
        finally:
            server.terminate()
            server.wait(30)


def wait_for(connection: Connection, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends and server.poll() is None:
        try:
            connection.get("/models")
        except EndpointError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"transformers serve did not answer within {SECONDS} s")


@pytest.mark.integration
def test_transformers_serve_is_of_the_text_tier(endpoint: HTTPTarget) -> None:
    diagnosis = examine(endpoint)
    found = {name: is_fine for name, is_fine, _ in diagnosis.findings}
    assert diagnosis.tier == "text"
    assert (found["liveness"], found["determinism"]) == (True, True)
    assert (found["next_token"], found["echo"]) == (False, False)


@pytest.mark.integration
def test_it_draws_nothing_where_the_model_says_greedy(endpoint: HTTPTarget) -> None:
    target = examine(endpoint).applied_to(endpoint)
    assert not target.is_random
    with pytest.raises(UnsupportedError, match="draws nothing"):
        target.sample(["User:"], n=2, max_new_tokens=4, decoding=Decoding(), seed=0)
    ((first, second),) = target.sample(["User:"], n=2, max_new_tokens=4, decoding=Decoding(temperature=0), seed=0)
    assert first == second
