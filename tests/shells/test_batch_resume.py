"""A batch that is killed, refused and interrupted: every request is answered once, in order."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cp_ray.batch import plan_batch, send_batch
from cp_ray.errors import ConfigError

CONCURRENCY = 4


class Answers(ThreadingHTTPServer):
    """Says each question back; `faults` of a question are used up before it is answered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self.faults: dict[str, list[int]] = {}
        self.delay_s = 0.0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = body["messages"][0]["content"]
        with self.server.lock:
            self.server.asked[question] += 1
            faults = self.server.faults.get(question)
            status = faults.pop(0) if faults else 200
        time.sleep(self.server.delay_s * random.random())
        answer: Any = {"choices": [{"message": {"content": question}}]}
        if status != 200:
            answer = {"error": {"message": "no", "type": "t"}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("x-request-id", f"of {question}")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def answering() -> Iterator[tuple[Answers, str]]:
    server = Answers()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write(source: Path, count: int) -> list[str]:
    names = [f"id {n}" for n in range(count)]
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "m",
                "messages": [{"role": "user", "content": name}],
                "documents": [f"text {n % 3}", f"text {n % 7 + 3}"],
            },
        }
        for n, name in enumerate(names)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return names


def read(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_a_batch_killed_twenty_times_is_answered_whole_and_once(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    names = write(source, 300)
    planned = plan_batch(source)
    chosen = random.Random(7)
    fork = multiprocessing.get_context("fork")
    killed = 0
    with answering() as (server, url):
        server.delay_s = 0.2  # 300 answers, 4 at a time, take 7 s: more than 20 times 0.3
        while killed < 20:
            arguments = (planned, output, url, CONCURRENCY, "none")
            run = fork.Process(target=send_batch, args=arguments, daemon=True)
            run.start()
            assert run.pid is not None
            # Half are killed at any time, half in the middle of the sending.
            time.sleep(chosen.uniform(0.02, 0.3))
            if run.exitcode is not None:
                break
            os.kill(run.pid, signal.SIGKILL)
            run.join()
            killed += 1
        assert killed == 20, "the batch was done too soon to be killed as often"
        assert not output.exists()
        server.delay_s = 0.02
        assert send_batch(planned, output, url, CONCURRENCY, "none") == 0
        answers = read(output)
        assert [answer["custom_id"] for answer in answers] == names
        for answer in answers:
            assert answer["error"] is None
            body = answer["response"]["body"]
            assert body["choices"][0]["message"]["content"] == answer["custom_id"]
        again = server.asked.total() - len(names)
        assert 0 <= again <= 20 * CONCURRENCY, "no more is redone than was in flight"
        assert send_batch(planned, output, url, CONCURRENCY, "none") == 0
        assert server.asked.total() - len(names) == again, "a complete batch sends nothing"
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out.jsonl"]


def test_a_busy_server_is_asked_again_and_a_refusal_is_final(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, 4)
    with answering() as (server, url):
        server.faults = {"id 0": [503], "id 1": [429, 500], "id 2": [400], "id 3": [503] * 4}
        assert send_batch(plan_batch(source), output, url, 2, "none") == 1
        status = [answer["response"]["status_code"] for answer in read(output)]
        assert status == [200, 200, 400, 503]
        assert read(output)[0]["response"]["request_id"] == "of id 0"
        assert read(output)[2]["response"]["body"]["error"]["message"] == "no"
        before = server.asked.copy()
        assert send_batch(plan_batch(source), output, url, 2, "none") == 1
        assert (server.asked - before).keys() == {"id 3"}, "only what may succeed now"
        status = [answer["response"]["status_code"] for answer in read(output)]
        assert status == [200, 200, 400, 200]
        assert not output.with_name("out.jsonl.partial").exists()


def test_a_line_cut_in_the_middle_is_sent_again(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    names = write(source, 3)
    journal = output.with_name("out.jsonl.partial")
    with answering() as (server, url):
        server.faults = {"id 2": [503] * 3}
        send_batch(plan_batch(source), output, url, 1, "none")
        whole = journal.read_bytes()
        journal.write_bytes(whole[:-40])
        assert send_batch(plan_batch(source), output, url, 1, "none") == 0
    assert [answer["custom_id"] for answer in read(output)] == names


@pytest.mark.parametrize("finished", [True, False])
def test_results_of_another_input_are_not_overwritten(tmp_path: Path, finished: bool) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, 3)
    with answering() as (server, url):
        server.faults = {} if finished else {"id 2": [503] * 3}
        send_batch(plan_batch(source), output, url, 1, "none")
        write(source, 4)
        with pytest.raises(ConfigError, match="another"):
            send_batch(plan_batch(source), output, url, 1, "none")


def test_two_runs_do_not_write_one_output(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, 6)
    planned = plan_batch(source)
    with answering() as (server, url):
        server.delay_s = 0.4
        first = threading.Thread(target=send_batch, args=(planned, output, url, 1, "none"))
        first.start()
        while not server.asked:
            time.sleep(0.01)
        with pytest.raises(ConfigError, match="another run"):
            send_batch(planned, output, url, 1, "none")
        first.join()
    assert len(read(output)) == 6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"custom_id": "id 0"}, "that of line 1"),
        ({"url": "/v1/embeddings"}, "only POST"),
        ({"method": "GET"}, "only POST"),
    ],
)
def test_lines_that_cannot_be_answered_name_the_fault(
    tmp_path: Path, change: dict[str, str], says: str
) -> None:
    source = tmp_path / "in.jsonl"
    write(source, 2)
    first, second = source.read_text().splitlines()
    source.write_text(first + "\n" + json.dumps({**json.loads(second), **change}))
    with pytest.raises(ConfigError, match=rf"line 2.*{says}"):
        plan_batch(source)
