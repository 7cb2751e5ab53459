"""32 simulated replicas on real Ray Serve under live traffic, and pictures of the fleet page.

    python -m benchmarks.fleet_page --out docs/img [--replicas 32] [--seconds 60]

Needs Debian's chromium. Traffic: topics of Zipf popularity, conversations, the same documents in
ever another order. One replica is killed half way.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import time
from pathlib import Path

import httpx
import psutil
from ray import serve

from cp_ray.config import AppConfig
from cp_ray.demo.own_serve import own_serve
from cp_ray.deployment import app
from tests.browser.chromium import chromium

TOPICS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--concurrency", type=int, default=12)
    args = parser.parse_args()
    with own_serve(64, root=Path.cwd()) as url:
        start(url, args.replicas)
        asyncio.run(traffic(url, args))
        with chromium() as browser:
            browser.size(1440, 1500)
            for scheme in ("light", "dark"):
                browser.scheme(scheme)
                browser.open(f"{url}/fleet")
                browser.until("document.querySelector('#status').textContent.startsWith('live')")
                time.sleep(2)
                browser.screenshot(args.out / f"fleet-{scheme}.png")
            held = (
                "[...document.querySelectorAll('#recent tr')].filter(r => r.children[2].innerText"
            )
            browser.js(f"{held} === 'holder').at(-1).querySelector('button').focus()")
            browser.press("Enter")
            browser.until("!document.querySelector('#explain').hidden")
            browser.js("document.querySelector('#explain').scrollIntoView()")
            browser.screenshot(args.out / "fleet-explain.png")
            print("errors in the page:", browser.errors)


def start(url: str, replicas: int) -> None:
    config = AppConfig(
        engine="simulated",
        replicas=replicas,
        cache_tokens=24_000,
        cpus_per_replica=0.1,
        health_check_period_s=10,
        prefill_tokens_per_s=6000,
        decode_tokens_per_s=400,
    )
    began = time.monotonic()
    serve.run(app(config), name="fleet", route_prefix="/")
    while httpx.get(f"{url}/readyz", timeout=60).status_code != 200:
        time.sleep(0.5)
    print(f"{replicas} replicas up after {time.monotonic() - began:.0f} s")


async def traffic(url: str, args: argparse.Namespace) -> None:
    rng = random.Random(7)
    texts = [
        [f"topic {t} chunk {c} " + f"words{t} " * 120 for c in range(12)] for t in range(TOPICS)
    ]
    end = time.monotonic() + args.seconds
    weights = [1 / (rank + 1) for rank in range(TOPICS)]
    done = failed = 0

    async def client(http: httpx.AsyncClient, name: int) -> None:
        nonlocal done, failed
        while time.monotonic() < end:
            topic = rng.choices(range(TOPICS), weights)[0]
            documents = rng.sample(texts[topic], 6)
            body = {
                "model": "smollm2",
                "messages": [{"role": "user", "content": f"question {rng.random()}?"}],
                "documents": documents,
                "max_tokens": 8,
                "conversation": f"c{name}-{rng.randrange(40)}",
            }
            answer = await http.post(f"{url}/v1/chat/completions", json=body)
            done += 1
            failed += answer.status_code != 200

    async def kill() -> None:
        await asyncio.sleep(args.seconds * 0.7)
        found = next(p for p in psutil.process_iter(["cmdline"]) if _is_engine(p))
        os.kill(found.pid, signal.SIGKILL)

    async def watch(http: httpx.AsyncClient) -> None:
        """A person looks on, once a second."""
        slow = 0.0
        while time.monotonic() < end:
            began = time.monotonic()
            await http.get(f"{url}/fleet/data")
            slow = max(slow, time.monotonic() - began)
            await asyncio.sleep(1)
        print(f"slowest answer of /fleet/data: {slow:.2f} s")

    async with httpx.AsyncClient(timeout=60) as http:
        clients = [client(http, name) for name in range(args.concurrency)]
        await asyncio.gather(*clients, kill(), watch(http))
    print(f"{done} requests, {failed} failed, {done / args.seconds:.1f} a second")


def _is_engine(process: psutil.Process) -> bool:
    return " ".join(process.info["cmdline"] or []).startswith("ray::ServeReplica:fleet:Engine")


if __name__ == "__main__":
    main()
