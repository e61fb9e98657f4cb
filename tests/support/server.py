"""A web server on this machine, for tests of what is downloaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: object, asked: list[str], **kwargs: object) -> None:
        self.asked = asked
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:
        self.asked.append(self.path)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of a folder: its address, with a slash at the end, and the paths that were asked for so far."""
    asked: list[str] = []
    handler = partial(Handler, directory=str(folder), asked=asked)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}/", asked
        finally:
            http.shutdown()
            thread.join()
