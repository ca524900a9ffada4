"""The web page: `/` and its files below `/static/`, from the package.

The content security policy allows only files of this origin and no inline script or style, so that
a text in the page can never become code. The page works offline: it refers to no other address.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join([
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'",
    "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
])  # fmt: skip
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page, with the headers of its response."""

    content: bytes
    headers: dict[str, str]

    @classmethod
    def read(cls, name: str) -> PageFile:
        """Read a file of the page from the package."""
        content = files("regard.serve").joinpath(FOLDER, name).read_bytes()
        suffix = name[name.rindex(".") :]
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, {
            **HEADERS, "Content-Type": TYPES[suffix], "ETag": tag, "Cache-Control": "no-cache",
        })  # fmt: skip

    def response(self, request: Request) -> Response:
        """The file, or 304 if the browser has the current version."""
        known = request.headers.get("if-none-match", "").split(",")
        if self.headers["ETag"] in (tag.strip().removeprefix("W/") for tag in known):
            return Response(status_code=304, headers=self.headers)
        return Response(self.content, headers=self.headers)


def page_routes() -> list[Route]:
    """The routes of the page. All its files are in memory (about 100 kB)."""
    folder = files("regard.serve").joinpath(FOLDER)
    names = [each.name for each in folder.iterdir() if each.name.endswith((".css", ".js", ".svg"))]
    page, parts = PageFile.read("index.html"), {name: PageFile.read(name) for name in names}

    async def index(request: Request) -> Response:
        return page.response(request)

    async def static(request: Request) -> Response:
        file = parts.get(request.path_params["name"])
        if file is None:
            return Response("not found\n", 404, headers=HEADERS, media_type="text/plain")
        return file.response(request)

    return [Route("/", index), Route("/static/{name}", static)]
