"""A stand-in for the W&B server: takes what the real client sends, keeps it, and can fail on demand.

    with WandbServer() as server:
        environment["WANDB_BASE_URL"] = server.url
        ...
        server.runs["<run id>"].history

Covers what wandb-core 0.31 asks for: GraphQL's Viewer, ServerFeatures, UpsertBucket, RunResumeStatus, CreateRunFiles
and RunStoppedStatus, the file stream, and the upload of files; artifacts, from CreateArtifact to CommitArtifact.
"""

import gzip
import json
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ENTITY = "lab"


@dataclass(kw_only=True)
class Run:
    """What the server knows of one run."""

    project: str = ""
    group: str = ""
    job_type: str = ""
    name: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    system_metrics: list[Any] = field(default_factory=list)
    exit_code: int | None = None
    complete: bool = False


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the client dropped the line: it may
            super().handle_error(request, client_address)


class WandbServer:
    """Serves on a free port of the loopback. `fail_with` (a status) makes every later answer that error."""

    def __init__(self, *, fail_with: int | None = None) -> None:
        self.fail_with = fail_with
        self.runs: dict[str, Run] = {}
        self.requests: list[str] = []
        """`POST /graphql UpsertBucket` and the like, in order."""
        """The variables of each."""
        self.artifacts: dict[str, dict[str, bytes]] = {}
        """Of those that are committed, by name: the files."""
        self._artifacts: dict[str, tuple[str, dict[str, bytes]]] = {}
        """All, by id."""
        self._http = _QuietServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> "WandbServer":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """From here on the port refuses connections."""
        self._http.shutdown()
        self._http.server_close()

    def run(self, run_id: str) -> Run:
        return self.runs.setdefault(run_id, Run())

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in query:
            return {"upsertBucket": self._upsert(variables)}
        if "bucket(name" in query:
            if (run_id := variables["name"]) not in self.runs:
                return {"model": None}
            bucket = self._bucket(run_id)
            return {"model": bucket["project"] | {"bucket": bucket}}
        if "rtifact" in query:
            return self._artifact(query, variables)
        if "createRunFiles" in query:
            where = f"{self.url}/upload/{variables.get('run')}"
            files = [{"name": name, "uploadUrl": f"{where}/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "UnVuOjE=", "uploadHeaders": [], "files": files}}
        if "viewer" in query:
            viewer = {"id": "VXNlcjox", "entity": ENTITY, "username": ENTITY, "flags": "{}", "teams": {"edges": []}}
            return {"viewer": viewer, "serverInfo": None}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        if "stopped" in query:
            return {"project": {"run": {"stopped": False}}}
        return {}

    def file_stream(self, run_id: str, body: dict[str, Any]) -> None:
        run = self.run(run_id)
        files = body.get("files") or {}
        for name, kept in (("wandb-history.jsonl", run.history), ("wandb-events.jsonl", run.system_metrics)):
            if chunk := files.get(name):  # as W&B does: what is there from the offset on is replaced
                kept[chunk["offset"] :] = [json.loads(line) for line in chunk["content"]]
        for line in files.get("wandb-summary.json", {"content": []})["content"]:
            run.summary.update(json.loads(line))
        if body.get("complete"):
            run.complete, run.exit_code = True, body["exitcode"]

    def _bucket(self, run_id: str) -> dict[str, Any]:
        """All that a client asks for, of a run that it makes or continues."""
        run = self.runs[run_id]
        return {
            "id": "UnVuOjE=",
            "name": run_id,
            "displayName": run.name,
            "description": None,
            "sweepName": None,
            "summaryMetrics": json.dumps(run.summary),
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]),
            "eventsTail": "[]",
            "config": json.dumps({name: {"value": value} for name, value in run.config.items()}),
            "tags": run.tags,
            "wandbConfig": json.dumps({"t": {}}),
            "project": {"id": "UHJvamVjdDox", "name": run.project, "entity": {"id": "RW50aXR5OjE=", "name": ENTITY}},
        }

    def _artifact(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "createArtifact(" in query:
            one = f"artifact-{len(self._artifacts)}"
            self._artifacts[one] = variables["input"]["artifactCollectionName"], {}
            made = {"id": one, "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
            return {"createArtifact": {"artifact": made}}
        if "createArtifactFiles(" in query:
            edges = []
            for file in variables["input"]["artifactFiles"]:
                name, one = file["name"], file["artifactID"]
                upload = {"uploadUrl": f"{self.url}/artifact/{one}/{name}", "uploadHeaders": []}
                edges.append({"node": {"storagePath": name, "artifact": {"id": one}} | upload})
            return {"createArtifactFiles": {"files": {"edges": edges}}}
        for call in ("createArtifactManifest", "updateArtifactManifest"):
            if f"{call}(" in query:
                file = {"id": "f", "uploadUrl": f"{self.url}/manifest", "uploadHeaders": []}
                return {call: {"artifactManifest": {"id": "m", "file": file}}}
        if "commitArtifact(" in query:
            name, files = self._artifacts[variables["artifactID"]]
            self.artifacts[name] = files
            return {"commitArtifact": {"artifact": {"id": variables["artifactID"], "digest": ""}}}
        return {"project": None}  # asked for the type of a collection, which is not there yet

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        run_id = variables["name"]
        run = self.run(run_id)
        run.complete = False
        run.project = variables.get("project") or run.project
        run.group = variables.get("groupName") or run.group
        run.job_type = variables.get("jobType") or run.job_type
        run.name = variables.get("displayName") or run.name
        run.tags = variables.get("tags") or run.tags
        if variables.get("config"):
            run.config = {name: entry["value"] for name, entry in json.loads(variables["config"]).items()}
        return {"bucket": self._bucket(run_id), "inserted": True}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:  # noqa: N802  (the name is http.server's)
                content = self._body()
                path = urlsplit(self.path).path
                is_json = self.headers.get("Content-Type", "").startswith("application/json")
                body = json.loads(content) if is_json else {}
                server.requests.append(f"POST {path} {body.get('operationName') or ''}".strip())
                if server.fail_with is not None:
                    self._answer(server.fail_with, {"errors": [{"message": f"status {server.fail_with} on demand"}]})
                elif path == "/graphql":
                    data = server.graphql(body["query"], body.get("variables") or {})
                    self._answer(200, {"data": data})
                elif path.endswith("/file_stream"):
                    server.file_stream(path.split("/")[4], body)
                    self._answer(200, {})
                else:
                    self._answer(404, {})

            def do_PUT(self) -> None:  # noqa: N802
                body, path = self._body(), self.path.split("/", 3)
                server.requests.append(f"PUT {self.path}")
                if path[1] == "artifact":
                    server._artifacts[path[2]][1][path[3]] = body
                self._answer(server.fail_with or 200, {})

            def do_GET(self) -> None:  # noqa: N802
                self._answer(404, {})

            def _body(self) -> bytes:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Silent."""

        return Handler
