"""The files of the dashboard, read when they are first requested, and again if they change."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from agentbus.web.etags import etag_of, matches

if TYPE_CHECKING:
    from starlette.datastructures import Headers

FOLDER = os.path.join(os.path.dirname(__file__), "static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}
_SMALL = 512


class _File(msgspec.Struct, frozen=True):
    changed: tuple[int, int]
    content: bytes
    packed: bytes | None
    etag: str
    type: str


class StaticFiles:
    """Serves the files below ``static/``: ``/`` is ``index.html``, ``/static/app.js`` is ``app.js``."""

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}

    def find(self, path: str, headers: Headers) -> Response | None:
        """Return the response for a path; None if there is no such file."""
        name = "index.html" if path == "/" else path.removeprefix("/static/") if path.startswith("/static/") else None
        file = None if name is None else self._load(name)
        if file is None:
            return None
        packed = file.packed is not None and "gzip" in headers.get("accept-encoding", "")
        tag = file.etag[:-1] + '-gz"' if packed else file.etag
        if matches(tag, headers.get("if-none-match")):
            response = Response(status_code=304)
        else:
            response = Response(file.packed if packed else file.content)
            # Not media_type, to which a charset would be added.
            response.headers["Content-Type"] = file.type
            if packed:
                response.headers["Content-Encoding"] = "gzip"
        response.headers["ETag"] = tag
        response.headers["Cache-Control"] = "no-cache"
        response.headers["Vary"] = "Accept-Encoding"
        return response

    def _load(self, name: str) -> _File | None:
        parts = name.split("/")
        kind = TYPES.get(os.path.splitext(name)[1])
        # Plain names only: a path cannot leave the folder, nor reach a hidden file.
        if kind is None or not all(part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts):
            return None
        if any(part.startswith(".") for part in parts):
            return None
        path = os.path.join(self._folder, *parts)
        try:
            found = os.lstat(path)
            changed = (found.st_mtime_ns, found.st_size)
            file = self._files.get(name)
            if file is None or file.changed != changed:
                with open(path, "rb") as source:
                    content = source.read()
                packed = gzip.compress(content, 9, mtime=0) if len(content) > _SMALL else None
                file = self._files[name] = _File(changed, content, packed, etag_of(content), kind)
        except OSError:
            return None
        return file
