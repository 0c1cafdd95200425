"""An OpenAI-compatible HTTP server around bots on this machine.

Guarantees: nothing of a request or an answer is logged: a line holds method, route, status, time and number of
choices. It answers to no other `Host` than its own addresses while it listens on the loopback address, so that a web
page cannot reach it under a name of its own; it has no other protection, and whoever may reach it may ask the bot
anything. An answer is whole or an error in OpenAI's shape: 400 for what is malformed or unsupported, 404 for an unknown
path or model, 405, 411, 413, 500.

Routes: `GET /v1/models`, `POST /v1/completions`, `POST /v1/chat/completions`. What tokens and offsets mean stands in
`hushbot.serving.bot`.

Voids it: whatever stands between this server and its client.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hushbot.errors import AuditError, ConfigError
from hushbot.serving.endpoint import ROUTES, Endpoint
from hushbot.serving.faults import Fault, faults_of
from hushbot.serving.requests import RequestError

if TYPE_CHECKING:
    from hushbot.protocols import Target
    from hushbot.serving.bot import Bot, PromptOf

_log = logging.getLogger(__name__)
MOST_BYTES = 4 * 2**20
_MOST_UNREAD = 16 * MOST_BYTES
_SILENCE = 60.0
"""Seconds after which a connection that says nothing is closed."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Say = Callable[[str], None]


class Server(ThreadingHTTPServer):
    """Carries requests to an endpoint.

    Args:
        endpoint: Who answers.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        say: Where a line per request goes.

    Raises:
        ConfigError: The address cannot be had.
    """

    # Joined at the end, for a process that ends while torch works in another thread is aborted.
    daemon_threads = False
    block_on_close = True

    def __init__(self, endpoint: Endpoint, host: str, port: int, say: Say) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.endpoint = endpoint
        self.say = say
        self._lines: set[socket.socket] | None = set()
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"host={host} port={port} cannot be listened on ({reason}); choose another") from error
        self.host = host

    def server_bind(self) -> None:
        """Take the address without asking a name server what it is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        """Return where clients find it."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.server_address[1]}/v1"

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection until either side ends it."""
        with self._lock:
            if self._lines is None:
                return
            self._lines.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            with self._lock:
                if self._lines is not None:
                    self._lines.discard(request)

    def server_close(self) -> None:
        """End: take in no further request, and wait for the answers that are being made."""
        with self._lock:
            lines, self._lines = self._lines or set(), None
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RD)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: a traceback may hold what was asked."""
        self.say("a connection broke")


class _Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for a `Server`."""

    protocol_version = "HTTP/1.1"
    server_version = "hushbot"
    sys_version = ""
    timeout = _SILENCE
    disable_nagle_algorithm = True  # an answer is two writes; a kernel that waits for more costs 40 ms each time
    server: Server

    def do_GET(self) -> None:
        """Answer a GET."""
        self._handle("GET")

    def do_POST(self) -> None:
        """Answer a POST."""
        self._handle("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing of what the library would: a request line may hold text."""

    def _handle(self, method: str) -> None:
        started = time.perf_counter()
        path = urlsplit(self.path).path.rstrip("/")
        shown = path if path in ROUTES else "unknown path"
        status, payload, wait = 200, dict[str, Any](), None
        try:
            self._check(method, path)
            payload = self.server.endpoint.answer(path, self._body(method))
        except RequestError as error:
            status, payload, wait = error.status, error.body, error.retry_after
        except (AuditError, ConfigError) as error:
            status, payload = 500, RequestError(str(error), status=500).body
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # whatever it is, its message may hold what was asked: only its type shows
            self.server.say(f"a request failed with {type(error).__name__} in {_place_of(error)}")
            status, payload = 500, RequestError(f"internal error ({type(error).__name__})", status=500).body
        n_choices = len(payload.get("choices", ()))
        spent = 1000 * (time.perf_counter() - started)
        self.server.say(f"{method} {shown} {status} {spent:.0f} ms {n_choices} choices")
        self._send(status, payload, wait)

    def _check(self, method: str, path: str) -> None:
        """Refuse what is not ours to answer."""
        self._is_unread = method == "POST"
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        if self.server.host in LOOPBACK and host not in LOOPBACK:
            raise RequestError("this server answers on the loopback address only", status=403)
        if path not in ROUTES:
            raise RequestError(f"there is no such path; there are {', '.join(ROUTES)}", status=404)
        if method != ROUTES[path]:
            raise RequestError(f"{path} takes {ROUTES[path]}", status=405)

    def _body(self, method: str) -> bytes:
        if method == "GET":
            return b""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or self.headers.get("Transfer-Encoding"):
            raise RequestError("a request needs a Content-Length", status=411)
        if int(length) > MOST_BYTES:
            raise RequestError(f"a request may have {MOST_BYTES} bytes; ask in parts", status=413)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionResetError("the request ended early")
        self._is_unread = False
        return body

    def _leave_unread(self) -> None:
        """Let a client whose body nobody wants finish: a connection that is closed under it loses the answer, too."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            left = _MOST_UNREAD
            while left > 0 and (piece := self.rfile.read1(2**16)):
                left -= len(piece)

    def _send(self, status: int, payload: dict[str, Any], wait: int | None) -> None:
        # The next request would begin inside a body that was not read.
        self.close_connection = self.close_connection or self._is_unread
        # Names of tokens may hold half a character; escapes can carry that, UTF-8 cannot.
        body = json.dumps(payload, allow_nan=False).encode("ascii")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if wait is not None:
            self.send_header("Retry-After", str(wait))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        pieces: Iterator[bytes] = iter((body,))
        for fault in self.server.endpoint.faults:
            pieces = _through(fault, pieces)
        for piece in pieces:
            self.wfile.write(piece)
        if self._is_unread:
            self._leave_unread()


def _place_of(error: Exception) -> str:
    """Return the line of code that failed, for whoever repairs it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _through(fault: Fault, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from fault.pieces(piece)


@contextlib.contextmanager
def serving(
    target: Target,
    *,
    name: str = "bot",
    base_name: str | None = None,
    faults: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    prompt_of: PromptOf | None = None,
    say: Say = _log.info,
) -> Iterator[str]:
    """Serve a local target in the background, and yield the address that clients are given.

    Args:
        target: A local target, with or without guards.
        name: What the model is called.
        base_name: What the model before fine-tuning, the target's reference, is called; None does not serve it.
        faults: Names out of `FAULTS`.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        prompt_of: How a chat is laid out; None does not chat.
        say: Where a line per request goes.

    Raises:
        ConfigError: The target is not local or has no reference to serve, a fault is unknown, or the address cannot
            be had.
    """
    from hushbot.serving.bot import LocalBot

    bots: dict[str, Bot] = {name: LocalBot(target, prompt_of=prompt_of)}
    if base_name is not None:
        if target.reference is None or base_name == name:
            raise ConfigError(f"base={base_name}: an untrained bot has no base to serve, and names must differ")
        bots[base_name] = LocalBot(target.reference)
    with running(Endpoint(bots, faults_of(faults)), host, port, say) as server:
        yield server.url


@contextlib.contextmanager
def running(endpoint: Endpoint, host: str = "127.0.0.1", port: int = 0, say: Say = _log.info) -> Iterator[Server]:
    """Carry requests to an endpoint in the background."""
    server = Server(endpoint, host, port, say)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
