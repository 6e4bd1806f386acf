"""A bucket of an S3 server, moto's, for tests of one machine."""

from __future__ import annotations

import socket
from typing import Any

import boto3
import httpx
from botocore.config import Config
from moto.server import ThreadedMotoServer

BUCKET = "bucket"
PREFIX = "millrace/test"


def free_port(host: str) -> int:
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


class Bucket:
    """A bucket of an S3 server, which keeps its objects while it is stopped."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host, self._port = host, free_port(host)
        self.url = f"http://{host}:{self._port}"
        self._server: ThreadedMotoServer | None = None
        self.start()
        self.client = self._client("s3")
        self.client.create_bucket(Bucket=BUCKET)

    def start(self) -> None:
        self._server = ThreadedMotoServer(self._host, self._port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        if self._server:
            self._server.stop()
        self._server = None

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            config=Config(retries={"max_attempts": 0}),
        )

    def close(self) -> None:
        if self._server is None:
            self.start()
        # All servers of a process share their state.
        httpx.post(f"{self.url}/moto-api/reset-auth", content=b"inf", trust_env=False).raise_for_status()
        httpx.post(f"{self.url}/moto-api/reset", trust_env=False).raise_for_status()
        self.stop()

    def names(self, below: str = "") -> list[str]:
        """Returns the names of all objects that contain a text."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        names = [each["Key"] for page in pages for each in page.get("Contents", [])]
        assert all(name.startswith(f"{PREFIX}/") for name in names), names
        return [name for name in names if below in name]

    def read(self, name: str) -> bytes:
        return bytes(self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read())

    def write(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=name, Body=content)

    def require_credentials(self) -> dict[str, str]:
        """Makes the server check credentials from now on; returns those that it accepts."""
        iam = self._client("iam")
        iam.create_user(UserName="server")
        policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
        iam.put_user_policy(UserName="server", PolicyName="all", PolicyDocument=policy)
        key = iam.create_access_key(UserName="server")["AccessKey"]
        httpx.post(f"{self.url}/moto-api/reset-auth", content=b"0", trust_env=False).raise_for_status()
        return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}

    @property
    def environment(self) -> dict[str, str]:
        """The settings of programs that use the bucket."""
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        return {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", **keys}
