"""The client against a small HTTP server that answers from a script."""

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import flowerbed
from flowerbed.client.retry import RetryPolicy

QUICK = RetryPolicy(max_retries=3, first_delay_s=0.001, max_delay_s=0.01)


@dataclass
class Answer:
    body: object
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeServer:
    address: str = ""
    answers: list[Answer] = field(default_factory=list)  # one a request, in order
    requests: list[tuple[str, str, dict]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length) or b"{}")
            fake.requests.append((self.command, self.path, body))
            fake.headers.append({name.lower(): value for name, value in self.headers.items()})
            answer = fake.answers.pop(0)
            text = (
                answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            )
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = answer  # noqa: N815 (the names that http.server wants)

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def client(server) -> Iterator[flowerbed.Client]:
    with flowerbed.Client(server.address, retry=QUICK) as client:
        yield client


def embeddings(*vectors: list[float], order: list[int] | None = None, **headers: str) -> Answer:
    data = [
        {"index": i, "embedding": base64.b64encode(np.array(v, "<f4").tobytes()).decode()}
        for i, v in enumerate(vectors)
    ]
    data = [data[i] for i in order] if order else data
    body = {"data": data, "model": "a/b", "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    return Answer(body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def problem(status: int, retry_after: str | None = None, **fields: object) -> Answer:
    headers = {"x-request-id": "r-1"} | ({"retry-after": retry_after} if retry_after else {})
    return Answer({"error": {"message": "no", **fields}}, status, headers)


def test_vectors_come_back_as_float32_in_the_order_of_the_texts(client, server):
    server.answers = [embeddings([1.0, 2.0], [3.0, 4.0], order=[1, 0])]
    vectors = client.embed(["one", "two"])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert vectors.flags.writeable
    expected = {"input": ["one", "two"], "encoding_format": "base64"}
    assert server.requests == [("POST", "/v1/embeddings", expected)]


def test_only_given_options_are_sent(server):
    server.answers = [embeddings([1.0])]
    with flowerbed.Client(server.address, model="a/b", api_key="key") as client:
        client.embed(("text",), prompt_name="query", dimensions=1)
    body = server.requests[0][2]
    assert (body["model"], body["prompt_name"], body["dimensions"]) == ("a/b", "query", 1)
    assert server.headers[0]["authorization"] == "Bearer key"


def test_timings_and_counts_come_from_the_headers(client, server):
    server.answers = [
        embeddings(
            [1.0],
            x_flowerbed_step_us="1200",
            x_flowerbed_queue_us="30",
            x_flowerbed_truncated="1",
            x_flowerbed_space="abc",
            x_request_id="r-9",
        )
    ]
    answer = client.embed_detailed(["text"])
    assert (answer.step_us, answer.queue_us, answer.num_truncated) == (1200, 30, 1)
    assert (answer.space, answer.request_id, answer.num_tokens) == ("abc", "r-9", 7)


def test_a_bare_string_is_refused_before_it_is_sent(client, server):
    with pytest.raises(TypeError, match="put it in a list"):
        client.embed("text")
    assert server.requests == []


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_server_is_asked_again(client, server, status):
    server.answers = [problem(status), problem(status, retry_after="0"), embeddings([1.0])]
    assert client.embed(["text"]).tolist() == [[1.0]]
    assert len(server.requests) == 3


def test_after_the_last_retry_the_error_is_raised(client, server):
    server.answers = [problem(429, code="overloaded")] * 4
    with pytest.raises(flowerbed.RequestError) as caught:
        client.embed(["text"])
    assert (caught.value.status, caught.value.kind) == (429, "overloaded")
    assert len(server.requests) == 4


@pytest.mark.parametrize("status", [400, 404, 413, 500, 504])
def test_other_errors_are_not_sent_again(client, server, status):
    server.answers = [problem(status)]
    with pytest.raises(flowerbed.RequestError):
        client.embed(["text"])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "fields", [{"param": "input", "index": 3}, {"param": "input[3]"}], ids=["index", "brackets"]
)
def test_an_error_names_the_field_and_the_input(client, server, fields):
    server.answers = [problem(400, code="invalid_input", **fields)]
    with pytest.raises(flowerbed.RequestError, match="no") as caught:
        client.embed(["text"] * 4)
    error = caught.value
    assert (error.field, error.index, error.kind) == ("input", 3, "invalid_input")
    assert error.request_id == "r-1"


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"", b"[1]", b'{"error": "text"}'])
def test_an_answer_that_is_no_error_object_is_quoted(client, server, body):
    server.answers = [Answer(body, 502)]
    with pytest.raises(flowerbed.RequestError, match="the server answered 502"):
        client.embed(["text"])


def test_missing_rows_are_an_error_and_never_a_shorter_array(client, server):
    server.answers = [embeddings([1.0])]
    with pytest.raises(flowerbed.RequestError, match="1 rows for 2 texts"):
        client.embed(["one", "two"])


def test_a_server_that_is_down_is_named(server):
    with flowerbed.Client("http://127.0.0.1:9") as client:
        assert client.ready() is False
        with pytest.raises(flowerbed.RequestError, match=r"127\.0\.0\.1:9.*is the server running"):
            client.embed(["text"])


def test_models_and_ready(client, server):
    server.answers = [Answer({"data": [{"id": "a/b"}]}), Answer({}), Answer({}, 503)]
    assert client.models() == ["a/b"]
    assert client.ready() is True
    assert client.ready() is False


@pytest.mark.parametrize(
    ("retry_after", "delay_s"), [("0", 0.0), ("2", 2.0), ("0.5", 0.5), ("86400", 10.0)]
)
def test_the_servers_time_is_honoured_up_to_the_cap(retry_after, delay_s):
    assert RetryPolicy().delay_s(0, retry_after) == delay_s


@pytest.mark.parametrize(
    "retry_after", [None, "soon", "-1", "nan", "Wed, 21 Oct 2026 07:28:00 GMT"]
)
def test_without_a_usable_time_the_delay_doubles(retry_after):
    for num_retries in range(12):
        longest_s = min(0.2 * 2**num_retries, 10.0)
        assert longest_s / 2 <= RetryPolicy().delay_s(num_retries, retry_after) <= longest_s


def test_IN_08_no_texts_give_no_rows_of_the_models_size(server: FakeServer) -> None:
    row = base64.b64encode(np.zeros(4, "<f4").tobytes()).decode()
    server.answers = [
        Answer(
            {
                "model": "m",
                "data": [{"index": 0, "embedding": row}],
                "usage": {"prompt_tokens": 3, "total_tokens": 3},
            }
        )
    ]
    with flowerbed.Client(server.address) as client:
        vectors = client.embed([])
    assert vectors.shape == (0, 4)
    assert vectors.dtype == np.float32
