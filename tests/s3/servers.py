"""Real S3 servers for tests: started on free loopback ports, ended by their own process id."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from buffer.store.s3.sigv4 import Credentials, sign

START_SECONDS = 60


@dataclass(frozen=True)
class Server:
    """A running server with one bucket in it."""

    name: str
    endpoint: str
    bucket: str = "queue-tests"
    access_key_id: str = "testkey"
    secret_access_key: str = "testsecret12345"

    @property
    def settings(self) -> dict[str, str]:
        """What `S3Config` needs to reach the bucket."""
        return {
            "bucket": self.bucket,
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }

    def request(self, method: str, path: str, body: bytes = b"") -> httpx.Response:
        """Send a signed request past the store under test."""
        headers = sign(
            method=method,
            path=path,
            query="",
            headers={"host": self.endpoint.removeprefix("http://")},
            payload_sha256=hashlib.sha256(body).hexdigest(),
            credentials=Credentials(self.access_key_id, self.secret_access_key),
            region="us-east-1",
            now_ms=time.time_ns() // 1_000_000,
        )
        with httpx.Client(trust_env=False) as client:
            return client.request(method, self.endpoint + path, headers=headers, content=body)

    def create_bucket(self) -> None:
        """Create the bucket and write to it, again and again until the server is really up."""
        deadline = time.monotonic() + START_SECONDS
        last = "no answer"
        while time.monotonic() < deadline:
            try:
                self.request("PUT", f"/{self.bucket}")
                answer = self.request("PUT", f"/{self.bucket}/started", b"yes")
                if answer.status_code == 200:
                    return
                last = f"HTTP {answer.status_code}: {answer.text[:200]}"
            except httpx.TransportError as exc:
                last = repr(exc)
            time.sleep(0.05)
        raise AssertionError(f"{self.name} did not start within {START_SECONDS} s: {last}")


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def tool(name: str) -> str:
    """Return the path of an installed command; a missing one is a failure, never a skipped test."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"the command {name} is missing; install the extra 'dev'"
    return found


@contextlib.contextmanager
def process(command: list[str], log: Path, **environ: str) -> Iterator[None]:
    """Run a server while the context is open."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**os.environ, **environ},
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.wait()


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[Server]:
    """Run SeaweedFS: checks signatures, conditions are atomic."""
    port, *others = free_ports(8)
    server = Server("SeaweedFS", f"http://127.0.0.1:{port}")
    credentials = {"accessKey": server.access_key_id, "secretKey": server.secret_access_key}
    identity = {"name": "test", "credentials": [credentials], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir(exist_ok=True)
    flags = {
        "dir": folder / "data",
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": others[0],
        "master.port.grpc": others[1],
        "volume.port": others[2],
        "volume.port.grpc": others[3],
        "filer.port": others[4],
        "filer.port.grpc": others[5],
        "s3.port": port,
        "s3.port.grpc": others[6],
        "s3.ip.bind": "127.0.0.1",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": folder / "s3.json",
        "s3.autoCreateBucket": "false",
        "s3.allowDeleteBucketNotEmpty": "false",
        "master.volumeSizeLimitMB": 1024,
        "master.electionTimeout": "1s",
        "master.heartbeatInterval": "200ms",
        "master.telemetry": "false",
        "master.volumePreallocate": "false",
        "volume.max": 50,
        "volume.preStopSeconds": 0,
    }
    command = [
        tool("weed"),
        "server",
        "-filer",
        "-s3",
        *(f"-{name}={value}" for name, value in flags.items()),
    ]
    with process(command, folder / "log"):
        server.create_bucket()
        yield server


@contextlib.contextmanager
def ministack(folder: Path) -> Iterator[Server]:
    """Run MiniStack: answers with Amazon's codes, keeps everything in memory."""
    (port,) = free_ports(1)
    server = Server("MiniStack", f"http://127.0.0.1:{port}")
    environ = {
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "LOG_LEVEL": "WARNING",
    }
    with process([tool("ministack")], folder / "log", **environ):
        server.create_bucket()
        yield server


@contextlib.contextmanager
def ceph(folder: Path) -> Iterator[Server]:
    """Run a Ceph Object Gateway on storage in memory."""
    gateway, monitor, _ = free_ports(3)
    script = Path(__file__).with_name("start_ceph.sh")
    with (folder / "log").open("wb") as log:
        started = subprocess.run(
            [script, folder / "ceph", str(gateway), str(monitor)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=START_SECONDS,
        )
    try:
        server = Server("Ceph", f"http://127.0.0.1:{gateway}")
        server.create_bucket()
        yield server
    finally:
        for pid in started.stdout.split():
            os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[Server]:
    """Run rclone's S3 server, which ignores every condition."""
    (port,) = free_ports(1)
    server = Server("rclone", f"http://127.0.0.1:{port}")
    (folder / "data" / server.bucket).mkdir(parents=True)
    keys = f"{server.access_key_id},{server.secret_access_key}"
    address = f"127.0.0.1:{port}"
    with process(
        [tool("rclone"), "serve", "s3", str(folder / "data"), "--addr", address, "--auth-key", keys],
        folder / "log",
    ):
        server.create_bucket()
        yield server


@contextlib.contextmanager
def localbucket(folder: Path) -> Iterator[Server]:
    """Run localbucket, which knows the condition for creating only."""
    (port,) = free_ports(1)
    server = Server("localbucket", f"http://127.0.0.1:{port}")
    with process([tool("localbucket"), str(folder / "data"), "--port", str(port)], folder / "log"):
        server.create_bucket()
        yield server
