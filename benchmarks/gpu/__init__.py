"""vLLM on one GPU: prefill throughput and TTFT by policy, prefill curves, sharing in flight.

`python -m benchmarks.gpu --help`; how and what: docs/gpu.md.
"""
