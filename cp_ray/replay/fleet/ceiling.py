"""What no policy can pass: chains a second in a closed loop, from the model of time alone.

A run of Q chains, N at a time, on R replicas, takes T seconds. Two things bound T from below.

Work. Each replica's steps fill at most T. With S steps of at least f = fixed_s in all, D tokens of
answers behind first tokens, each d = decode_s of its step, and P seconds of prefill that no cache
saves,

    R T >= S f + D d + P.

Patience. A chain is with one replica at a time, so all stays together are at most N T; and whoever
is in a step stays for all of it. With a_s answers in step s, the sum of a_s being D, and a step of
prefill at least for each of the K requests,

    N T >= sum of (f + d a_s) a_s + K f + P >= f (D + K) + d D^2 / S + P.       (Cauchy-Schwarz)

Few, full steps help the first and hurt the second; the least T has S where both are equal. P counts
what is new in every request and each distinct block once in the whole fleet: caches without limit,
routed without a fault. Steps of prefill delay answers in the same step, which is left out, so even
such a fleet stays below the ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from cp_ray.errors import ConfigError
from cp_ray.replay.fleet.cell import Hardware, step_cost
from cp_ray.replay.fleet.clock import SerialRates, StepCost
from cp_ray.replay.fleet.workload import Workload


def chains_ceiling(workload: Workload, hardware: Hardware, clients: int) -> float:
    """Chains a second that no policy passes, `clients` chains at a time over the whole fleet.

    Raises ConfigError where a request has several followers: then more than `clients` run.
    """
    jobs = workload.jobs
    before = [job.after for job in jobs if job.after is not None]
    if len(set(before)) < len(before):
        raise ConfigError("--arrivals closed: a request has several followers", param="arrivals")
    chains = len(jobs) - len(before)
    clients = min(clients, chains)
    answers = sum(job.output_tokens - 1 for job in jobs)
    if hardware.model == "serial":
        rates = SerialRates()
        prefill = _least_prefill_s(workload, StepCost(0.0, 1 / rates.prefill_tokens_per_s, 0.0))
        stay = prefill + answers / rates.decode_tokens_per_s
        return chains / max(prefill / hardware.replicas, stay / clients)
    cost = step_cost(hardware)
    prefill = _least_prefill_s(workload, cost)
    work = answers * cost.decode_s + prefill
    stay = (answers + len(jobs)) * cost.fixed_s + prefill
    crowd = cost.decode_s * answers * answers
    # (S f + work) / R = (stay + crowd / S) / N; S = 0 where work alone decides.
    a, b = clients * cost.fixed_s, clients * work - hardware.replicas * stay
    root = math.sqrt(b * b + 4 * a * hardware.replicas * crowd)
    steps = (root - b) / (2 * a)
    return chains * hardware.replicas / (steps * cost.fixed_s + work)


def _least_prefill_s(workload: Workload, cost: StepCost) -> float:
    """Seconds of prefill whatever is cached: every question, each other piece once."""
    once: dict[Hashable, int] = {}
    seconds = 0.0
    for job in workload.jobs:
        request = job.request
        head = sum(tokens for _, tokens in job.head)
        # A later turn's repeated blocks may have become references.
        ahead = 0 if job.remembers else head + sum(request.block_tokens)
        seconds += cost.chunk_s(ahead, request.question_tokens)
        once |= dict(job.head)
        once |= dict(zip(request.context, request.block_tokens, strict=True))
    return seconds + sum(cost.chunk_s(0, tokens) for tokens in once.values())
