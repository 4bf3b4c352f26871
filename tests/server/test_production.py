"""A server as in production: TLS, tokens, batching, a managed service's variables, SIGTERM."""

import http.client
import json
import shutil
import ssl
import subprocess
import threading
import time

import grpc
import pytest

from tests.server.serving import Serving

pytestmark = pytest.mark.tf

LIMIT_S = 60
TOKEN = "a-long-secret"
STATUS_REQUEST = b"\x0a\x06\x0a\x04half"  # GetModelStatusRequest { model_spec { name: "half" } }


def certificate(folder):
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", key, "-out", cert,
        ],
        capture_output=True, check=True,
    )  # fmt: skip
    config = folder / "ssl.config"
    texts = {"server_key": key.read_text(), "server_cert": cert.read_text()}
    config.write_text("".join(f"{name}: {json.dumps(text)}\n" for name, text in texts.items()))
    return config, cert


class Secure(Serving):
    """A server behind TLS and a token."""

    def connection(self):
        context = ssl.create_default_context(cafile=self.cert)
        return http.client.HTTPSConnection("localhost", self.rest[1], timeout=60, context=context)

    def send(self, method, target, body=None, headers=None, timeout=60):
        connection = self.connection()
        try:
            given = {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers
            connection.request(method, target, body, given)
            answer = connection.getresponse()
            return answer.status, dict(answer.headers.items()), answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def secure(tmp_path_factory, shared):
    folder = tmp_path_factory.mktemp("secure")
    model = shared / "tfserving" / "models" / "saved_model_half_plus_two_cpu"
    shutil.copytree(model, folder / "half")
    config, cert = certificate(folder)
    (folder / "tokens").write_text(f"another\n{TOKEN}\n\n")
    (folder / "batching").write_text(
        "max_batch_size { value: 16 }\nallowed_batch_sizes: [4, 16]\nnum_batch_threads { value: 2 }"
    )
    Secure.cert = cert
    server = Secure(
        folder, f"--ssl_config_file={config}", f"--auth_token_file={folder / 'tokens'}",
        "--enable_batching", f"--batching_parameters_file={folder / 'batching'}",
        "--drain_seconds=1.5", "--access_log=text", "--file_system_poll_wait_seconds=0.2",
        environment={
            "AIP_STORAGE_URI": f"{folder / 'half'}/", "AIP_HEALTH_ROUTE": "/v1/endpoints/7",
            "AIP_PREDICT_ROUTE": "/v1/endpoints/7:predict", "AIP_HTTP_PORT": "1",
        },
    )  # fmt: skip
    try:
        yield server.wait()
    finally:
        server.stop()


def test_a_token_is_needed_but_not_for_the_probes(secure):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        status, answer, body = secure.send("GET", "/v1/models/half", None, headers)
        assert (status, answer["www-authenticate"]) == (401, "Bearer")
        assert list(json.loads(body)) == ["error"]
        assert secure.send("GET", "/", None, headers)[0] == 401
    for path in ("/healthz", "/readyz", "/v1/endpoints/7"):
        assert secure.send("GET", path, None, {})[0] == 200
    assert secure.send("GET", "/v1/models/half")[0] == 200


def test_the_routes_of_a_managed_service(secure):
    status, _, body = secure.send("POST", "/v1/endpoints/7:predict", b'{"instances": [1, 4]}')
    assert (status, json.loads(body)) == (200, {"predictions": [2.5, 4.0]})
    assert secure.send("POST", "/v1/endpoints/7", b"{}")[0] in (400, 405)


def test_grpc_with_tls_and_token(secure):
    credentials = grpc.ssl_channel_credentials(secure.cert.read_bytes())
    port = secure.grpc.rpartition(":")[2]
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        call = channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
        token = (("authorization", f"Bearer {TOKEN}"),)
        assert b"\x08\x7b" in call(STATUS_REQUEST, timeout=LIMIT_S, metadata=token)  # version 123
        with pytest.raises(grpc.RpcError) as caught:
            call(STATUS_REQUEST, timeout=LIMIT_S)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_plain_http_is_refused(secure):
    connection = http.client.HTTPConnection(*secure.rest, timeout=10)
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.request("GET", "/healthz")
        connection.getresponse()
    connection.close()


class Client(threading.Thread):
    """Sends requests over one kept connection, as a proxy does, until the server says close."""

    def __init__(self, server, number):
        super().__init__()
        self._connection = server.connection()
        self._number = number
        self.answers = 0
        self.problem = ""
        self.told_to_close = False

    def run(self):
        try:
            while not self.told_to_close:
                self._one()
        except Exception as error:
            self.problem = f"after {self.answers} answers: {error!r}"
        finally:
            self._connection.close()

    def _one(self):
        body = json.dumps({"instances": [self._number, self._number + 0.5]})
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self._connection.request("POST", "/v1/models/half:predict", body, headers)
        answer = self._connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status == 200, found
        half = self._number / 2
        assert found == {"predictions": [half + 2, half + 2.25]}
        self.answers += 1
        self.told_to_close = answer.headers.get("connection") == "close"


def test_sigterm_under_load_loses_no_request(secure):
    """The last test: it ends the server."""
    clients = [Client(secure, number) for number in range(8)]
    for one in clients:
        one.start()
    while min(one.answers for one in clients) < 5:
        time.sleep(0.05)
    secure.process.terminate()
    for one in clients:
        one.join(LIMIT_S)
    assert [one.problem for one in clients] == [""] * 8
    assert all(one.told_to_close for one in clients)
    assert secure.process.wait(LIMIT_S) == 0
    assert "unloaded" in secure.log and "Traceback" not in secure.log
