"""STS and IAM on a socket, as the checks of preflight ask them: the fake AWS cannot simulate a policy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs

from collectors.aws import AwsOptions, AwsSession
from domain.clock import WallClock

ROLE_SESSION = "arn:aws:sts::111122223333:assumed-role/trimtab/i-0abc1234"
ROLE = "arn:aws:iam::111122223333:role/trimtab"
QUEUES = "arn:aws:sqs:eu-west-1:111122223333"


class Iam(BaseHTTPRequestHandler):
    """Answers as STS and IAM do, and SQS of any queue; `decisions` by action, `asked` what it was asked."""

    protocol_version = "HTTP/1.1"
    decisions: dict[str, str]
    asked: list[dict[str, list[str]]]
    behind_s = 0.0

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("X-Amz-Target") == "AmazonSQS.GetQueueAttributes":
            name = json.loads(sent)["QueueUrl"].rpartition("/")[2]
            self._answer(json.dumps({"Attributes": {"QueueArn": f"{QUEUES}:{name}"}}).encode())
            return
        form = parse_qs(sent.decode())
        self.asked.append(form)
        actions = [values[0] for name, values in sorted(form.items()) if name.startswith("ActionNames.member.")]
        results = "".join(
            f"<member><EvalActionName>{action}</EvalActionName><EvalResourceName>{form['ResourceArns.member.1'][0]}</EvalResourceName>"
            f"<EvalDecision>{self.decisions.get(action, 'allowed')}</EvalDecision></member>"
            for action in actions
        )
        body = (
            f"<R><GetCallerIdentityResult><Arn>{ROLE_SESSION}</Arn><Account>111122223333</Account>"
            f"</GetCallerIdentityResult></R>"
            if form["Action"] == ["GetCallerIdentity"]
            else f"<R><SimulatePrincipalPolicyResult><IsTruncated>false</IsTruncated><EvaluationResults>{results}"
            f"</EvaluationResults></SimulatePrincipalPolicyResult></R>"
        ).encode()
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.send_response_only(200)
        self.send_header("x-amzn-RequestId", "r-1")
        self.send_header("Date", formatdate(time.time() - self.behind_s, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running_iam() -> Iterator[tuple[type[Iam], AwsSession]]:
    """The handler of requests, and a session that reads from it."""
    handler = type("Handler", (Iam,), {"decisions": {}, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    options = AwsOptions(
        "eu-west-1", f"http://127.0.0.1:{server.server_port}", access_key_id="key", secret_access_key="secret"
    )
    session = AwsSession(options, WallClock(), read_only=True)
    try:
        yield handler, session
    finally:
        session.close()
        server.shutdown()
        server.server_close()
        thread.join()
