"""A hub on loopback that speaks what huggingface_hub 2 asks, and counts what it is asked.

Large files are answered by a redirect to `localhost`, another host than 127.0.0.1, as the real hub
redirects to its CDN: tokens must not follow there.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE_SUFFIX = ".safetensors"


@dataclass
class Repository:
    """Commits by their hash, and names for some of them."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # a private repository has one
    is_gated: bool = False


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    has_token: bool
    range: str | None


class FakeHub:
    """Serves until `close`."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.cut_after: dict[str, list[int]] = {}  # file -> bytes after which each next GET is cut
        self.altered: dict[str, bytes] = {}  # file -> what its GET sends instead
        self.status: int | None = None  # answers everything with this
        hub = self

        class Handler(_Handler):
            owner = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def commit(self, model: str, files: dict[str, bytes], *refs: str) -> str:
        """Adds a commit, which `refs` (main unless given) name from now on."""
        repository = self.repositories.setdefault(model, Repository())
        digest = hashlib.sha1(repr((len(repository.commits), sorted(files.items()))).encode())
        repository.commits[digest.hexdigest()] = files
        for ref in refs or ("main",):
            repository.refs[ref] = digest.hexdigest()
        return digest.hexdigest()

    def fetched(self) -> list[str]:
        """Files that were sent, by their names, sorted."""
        return sorted(
            re.split(r"/(?:resolve|cdn)/[^/]+/", asked.path, maxsplit=1)[1]
            for asked in self.asked
            if asked.method == "GET" and re.search("/(resolve|cdn)/", asked.path)
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        given = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        self.owner.asked.append(
            Asked(self.command, path, given is not None, self.headers.get("Range"))
        )
        if self.owner.status is not None:
            self._json({"error": "as told"}, self.owner.status)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            self._api(match[1], match[2], match[3], given)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/(resolve|cdn)/([^/]+)/(.+)", path):
            self._file(match[1], match[2], match[3], match[4], given)
        else:
            self._json({"error": "no such page"}, 404)

    def _api(self, model: str, what: str, revision: str, given: str | None) -> None:
        found = self._commit(model, revision, given)
        if found is None:
            return
        commit, files = found
        if what == "revision":
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": model, "modelId": model, "sha": commit, "siblings": siblings})
            return
        listed: list[dict[str, Any]] = []
        for name, data in files.items():
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data)}
            entry["oid"] = _git_sha1(data)
            if name.endswith(LARGE_SUFFIX):
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
            listed.append(entry)
        self._json(listed)

    def _file(self, model: str, how: str, revision: str, name: str, given: str | None) -> None:
        # As the real CDN: whoever was redirected there needs no token.
        token = self.owner.repositories[model].token if how == "cdn" else given
        found = self._commit(model, revision, token)
        if found is None:
            return
        commit, files = found
        if name not in files:
            self._json({"error": "no such file"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        data = files[name]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_git_sha1(data)}"'}
        if how == "resolve" and name.endswith(LARGE_SUFFIX):
            headers["X-Linked-ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
            headers["X-Linked-Size"] = str(len(data))
            headers["Location"] = (
                f"http://localhost:{self.owner.port}/{model}/cdn/{commit}/{name}?Signature=secret"
            )
            self._answer(302, b"", headers)
            return
        data = self.owner.altered.get(name, data)
        self._send(name, data, headers)

    def _send(self, name: str, data: bytes, headers: dict[str, str]) -> None:
        status = 200
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if match:
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            data, status = data[start:], 206
        cuts = self.owner.cut_after.get(name, [])
        if self.command == "GET" and cuts:
            headers["Content-Length"] = str(len(data))
            self._answer(status, data[: cuts.pop(0)], headers)
            self.close_connection = True
            return
        self._answer(status, data, headers)

    def _commit(
        self, model: str, revision: str, given: str | None
    ) -> tuple[str, dict[str, bytes]] | None:
        repository = self.owner.repositories.get(model)
        is_known = any(given == other.token for other in self.owner.repositories.values())
        if given is not None and given != "stranger" and not is_known:
            message = "Invalid credentials in Authorization header"
            self._json({"error": message}, 401, {"X-Error-Message": message})
        elif repository is None or (repository.token is not None and given != repository.token):
            status = 401 if given is None else 404  # as the real hub: it does not tell which
            self._json({"error": "Repository not found"}, status, {"X-Error-Code": "RepoNotFound"})
        elif repository.is_gated:
            self._json({"error": "Access is restricted"}, 403, {"X-Error-Code": "GatedRepo"})
        else:
            commit = repository.refs.get(revision, revision)
            if commit in repository.commits:
                return commit, repository.commits[commit]
            self._json({"error": "Invalid rev"}, 404, {"X-Error-Code": "RevisionNotFound"})
        return None

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._answer(status, json.dumps(value).encode(), headers or {})

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
