"""A hub: a real HTTP server that speaks the hub's protocol, with all its ways to fail."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"
INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)$")
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)$")
STORED = re.compile(r"/stored/([0-9a-f]{64})$")
LARGE = 1000


@dataclass
class Repository:
    """What the hub holds of one model: files by commit, and what its branches lead to."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    token: str | None = None
    is_gated: bool = False


@dataclass
class Faults:
    """What goes wrong: answers by status, transfers cut short, contents changed."""

    status: int | None = None
    cut: dict[str, list[int]] = field(default_factory=dict)  # file to bytes of its next answers
    change: dict[str, int] = field(default_factory=dict)  # file to how often it is changed
    hold: threading.Event | None = None  # answers with files wait for it
    no_ranges: bool = False


@dataclass
class FakeHub:
    """The hub, and the store on another port to which it sends for large files."""

    url: str = ""
    store: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)

    def add(self, name, files, **more):
        commits = {COMMIT: files}
        self.repositories[name] = Repository(commits, {"main": COMMIT}, **more)
        return self.repositories[name]

    def ranges(self):
        """The ranges in which files were asked for."""
        return [asked for _, path, asked in self.requests if "/api/" not in path]

    def asked(self, part):
        return [path for _, path, _ in self.requests if part in path]


def _handler(hub, is_store):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self._answer(with_body=True)

        def do_HEAD(self):
            self._answer(with_body=False)

        def log_message(self, *arguments):
            pass

        def _answer(self, with_body):
            path = unquote(urlsplit(self.path).path)
            raw = urlsplit(self.path).path
            hub.requests.append((self.command, path, self.headers.get("Range")))
            if is_store:
                if self.headers.get("Authorization"):
                    hub.leaked.append(path)
                stored = STORED.fullmatch(path)
                assert stored is not None, path
                digest = stored[1]
                for name, content in self._all_files():
                    if hashlib.sha256(content).hexdigest() == digest:
                        return self._send_file(name, content, with_body)
                return self._refuse(404, "EntryNotFound")
            if hub.faults.status:
                return self._refuse(hub.faults.status, None)
            if found := INFO.match(raw):
                return self._info(found[1], unquote(found[2]))
            if found := RESOLVE.match(path):
                return self._resolve(found[1], found[2], found[3], with_body)
            return self._refuse(404, None)

        def _all_files(self):
            for repository in hub.repositories.values():
                for files in repository.commits.values():
                    yield from files.items()

        def _may_read(self, name):
            repository = hub.repositories.get(name)
            shown = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
            if repository is None:
                # Without a token, the hub does not distinguish private from missing repositories.
                self._refuse(404 if shown else 401, "RepoNotFound")
                return False
            if repository.token and shown is None:
                self._refuse(401, "GatedRepo" if repository.is_gated else "RepoNotFound")
                return False
            if repository.token and shown != repository.token:
                if repository.is_gated:
                    self._refuse(403, "GatedRepo")
                else:
                    message = "Invalid credentials in Authorization header"
                    self._refuse(401, None, message)
                return False
            return True

        def _commit(self, name, revision):
            repository = hub.repositories[name]
            if revision in repository.commits:
                return revision
            return repository.branches.get(revision)

        def _info(self, name, revision):
            if not self._may_read(name):
                return
            commit = self._commit(name, revision)
            if commit is None:
                return self._refuse(404, "RevisionNotFound")
            files = hub.repositories[name].commits[commit]
            siblings = [_sibling(file, content) for file, content in files.items()]
            body = json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()
            self._send(200, body, {"Content-Type": "application/json"})

        def _resolve(self, name, commit, file, with_body):
            if not self._may_read(name):
                return
            content = hub.repositories[name].commits.get(commit, {}).get(file)
            if content is None:
                return self._refuse(404, "EntryNotFound")
            if len(content) >= LARGE:
                digest = hashlib.sha256(content).hexdigest()
                head = {"Location": f"{hub.store}/stored/{digest}", "X-Repo-Commit": commit}
                return self._send(302, b"", head)
            return self._send_file(file, content, with_body)

        def _send_file(self, name, content, with_body):
            if hub.faults.hold is not None:
                hub.faults.hold.wait(30)
            if hub.faults.change.get(name, 0) > 0:
                hub.faults.change[name] -= 1
                content = content[:-1] + bytes([content[-1] ^ 1])
            head = {"ETag": f'"{_git_id(content)}"', "Accept-Ranges": "bytes"}
            status, asked = 200, self.headers.get("Range")
            if asked and not hub.faults.no_ranges:
                begin, _, end = asked.removeprefix("bytes=").partition("-")
                first, last = int(begin), min(int(end or len(content)), len(content) - 1)
                head["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                status, content = 206, content[first : last + 1]
            cuts = hub.faults.cut.get(name)
            cut = cuts.pop(0) if cuts else None
            self._send(status, content if with_body else b"", head, len(content), cut)

        def _send(self, status, body, head, length=None, cut=None):
            self.send_response(status)
            for key, value in head.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True

        def _refuse(self, status, code, message=None):
            head = {"X-Error-Code": code} if code else {}
            if message:
                head["X-Error-Message"] = message
            self._send(status, b"no", head)

    return Handler


def _git_id(content):
    head = f"blob {len(content)}\0".encode()
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


def _sibling(name, content):
    sibling = {"rfilename": name, "size": len(content), "blobId": _git_id(content)}
    if len(content) >= LARGE:
        digest = hashlib.sha256(content).hexdigest()
        sibling["blobId"] = _git_id(b"pointer")
        sibling["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 134}
    return sibling


@contextmanager
def serving_hub(address="127.0.0.1"):
    """A hub on free ports of an address, as long as the body runs."""
    found = FakeHub()
    servers = []
    for is_store in (False, True):
        server = ThreadingHTTPServer((address, 0), _handler(found, is_store))
        server.daemon_threads = True
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        servers.append(server)
    found.url, found.store = (f"http://{address}:{each.server_address[1]}" for each in servers)
    try:
        yield found
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
