"""AppConfig: every setting, once. The only reader of settings; unknown keys fail.

`serve run cp_ray.app key=value ...` and the `args` of a Serve config file both end here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from cp_ray.errors import ConfigError
from cp_ray.setting_types import JsonDict, Key, Keys, Names, reveal

MOST_FOLLOWED = 1 << 16


DataPlane = Literal["ingress", "direct"]


class AppConfig(BaseModel):
    """Settings of one cp_ray application. Sizes in tokens or bytes, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    # What is served.
    engine: Literal["vllm", "sglang", "simulated"] = "vllm"
    engine_python: str | None = Field(
        default=None,
        description="python of the engine replicas' own environment; it holds cp_ray and the same "
        "Ray, too. Default: the python that Ray runs on",
    )
    model: str = Field(
        default="smollm2",
        description="'smollm2' (first run, no hub needed), a local folder, or a hub name",
    )
    served_model_name: str | None = Field(default=None, description="default: the model's name")
    replicas: int = Field(default=1, ge=1, le=256, description="or the fewest: max_replicas")
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="more than `replicas`: as many run as target_ttft_s needs; default: `replicas`",
    )
    target_ttft_s: float = Field(
        default=2.0, gt=0, description="mean time to first token for which replicas are added"
    )
    scale_up_after_s: float = Field(
        default=30.0, ge=1, description="what is measured before replicas are added is a mean of"
    )
    scale_down_after_s: float = Field(
        default=300.0, ge=0, description="how long fewer must do before replicas are taken away"
    )
    max_model_len: int | None = Field(default=None, ge=64)
    engine_kwargs: JsonDict = Field(
        default_factory=dict, description="passed to vLLM's AsyncEngineArgs, or to sglang.Engine"
    )

    # How much is reused.
    reuse: Literal["plain", "route", "full"] = Field(
        default="full",
        description="plain: Serve's own router; route: order kept, replica chosen by prefix; "
        "full: ordering, de-duplication and routing",
    )
    partial_overlap_tokens: int = Field(
        default=24,
        ge=0,
        description="in later turns of a conversation: what a pointer must save; 0 = no pointers",
    )
    lift_documents: bool = Field(
        default=False,
        description="treat <document> elements and JSON search results in messages as `documents`",
    )
    canary_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="of requests served without reordering, to test its loss; 0 = no test",
    )
    guardrail_loss: float = Field(
        default=0.01, ge=0, lt=1, description="of mean score (POST /v1/score) that is accepted"
    )
    guardrail_alpha: float = Field(
        default=0.01, gt=0, lt=1, description="chance of switching reordering off wrongly"
    )
    index_records: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="requests the index remembers, about 1.5 KB each; beyond it the oldest goes",
    )
    prewarm: bool = Field(
        default=False,
        description="idle replicas prefill ahead: one that joins what is asked most, those that "
        "stay the conversations of one that leaves",
    )
    index: str | None = Field(default=None, description="offline index file to start warm from")
    alpha: float = Field(default=0.001, ge=0, le=0.01, description="Eq. 1's weight of positions")
    keep_top: int = Field(
        default=0, ge=0, description="so many best documents stay in front, in their order"
    )
    max_displacement: int | None = Field(
        default=None, ge=0, description="places a document may move; default: any number"
    )

    # Resources of one engine replica.
    cpus_per_replica: float = Field(default=0.5, ge=0)
    gpus_per_replica: float = Field(default=0.0, ge=0)
    tensor_parallel_size: int = Field(default=1, ge=1)
    across_hosts: bool = Field(
        default=False,
        description="tensor parallel ranks of one replica may lie on several hosts (engine=vllm)",
    )
    max_ongoing_requests: int = Field(default=32, ge=1, description="per replica")
    max_queued_requests: int = Field(default=1000, ge=1, description="per ingress; then 503")
    health_check_period_s: float = Field(default=2.0, gt=0)
    health_check_timeout_s: float = Field(default=120.0, gt=0)

    # Redis.
    redis_url: SecretStr | None = Field(
        default=None, description="default: an embedded Valkey server, started and stopped with us"
    )
    conversation_ttl_s: int = Field(default=3600, ge=1)
    conversation_max_bytes: int = Field(
        default=8 << 20, ge=1024, description="of one conversation's texts; then it begins afresh"
    )
    reports_kept: int = Field(
        default=100_000,
        ge=100,
        description="eviction reports kept in Redis, some 250 bytes each; who reads later than "
        "that asks for a dump",
    )

    # Router.
    data_plane: DataPlane = Field(
        default="ingress",
        description="how answers travel: through the Router, or from the engine replica past it, "
        "by HAProxy (docs/operations.md says what Serve must be started with)",
    )
    ingress_replicas: int = Field(default=1, ge=1)
    window_ms: float = Field(default=5.0, ge=0, le=1000)
    window_max: int = Field(default=64, ge=1)
    plan_deadline_ms: float = Field(default=250.0, gt=0)
    tokenizer_cache_tokens: int = Field(
        default=8_000_000,
        ge=1000,
        description="of tokenized texts that a Router keeps, 4 bytes each; a text counts 64 more",
    )
    api_keys: Keys = Field(
        default_factory=dict,
        description="tenant -> bearer keys parted by spaces, or their sha256:HEX; empty = open",
    )
    share_public: Names = Field(
        default=(), description="tenants whose prompts of public documents only are cached for all"
    )
    tenant_requests_per_minute: int | None = Field(default=None, ge=1)
    tenant_tokens_per_minute: int | None = Field(default=None, ge=1, description="in and out")
    tenant_max_calls: int | None = Field(default=None, ge=1, description="at a time")

    operator_key: Key | None = Field(
        default=None, description="bearer key for /fleet; without it and api_keys it is open"
    )
    record: str | None = Field(
        default=None,
        description="folder on the index actor's host: record ids and lengths of all traffic there",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="collector of OpenTelemetry traces, by OTLP over HTTP: "
        "http://HOST:4318/v1/traces; needs cp-ray[otel]",
    )
    trace_share: float = Field(
        default=1.0, gt=0, le=1, description="of requests traced that come without a traceparent"
    )

    # Limits, enforced with 400, 413 or 422.
    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    max_documents: int = Field(default=256, ge=1)
    max_document_bytes: int = Field(default=1 << 20, ge=1)
    max_output_tokens: int = Field(default=4096, ge=1)

    # The simulated engine (engine=simulated), and the size of every cache that is capped.
    cache_tokens: int | None = Field(default=None, ge=64, description="KV cache of one replica")
    page_size: int = Field(
        default=16, ge=1, description="cache block of the simulated engine and of SGLang, tokens"
    )
    simulated_device: str = Field(
        default="h200-qwen3-32b",
        description="whose measured prefill times it has (cp_ray/workers/curves); where none were "
        "measured, 20,000 tokens/s are assumed, and it says so",
    )
    prefill_tokens_per_s: float | None = Field(
        default=None, gt=0, description="a constant rate in place of the measured curve"
    )
    decode_tokens_per_s: float = Field(default=100.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        """Name the nearest right key; pydantic would print the whole input, secrets included."""
        if not isinstance(values, dict):
            return values
        for key in values.keys() - cls.model_fields.keys():
            near = get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else "it does not exist."
            known = ", ".join(cls.model_fields)
            raise ConfigError(f"unknown setting {key!r}: {hint} Settings: {known}", param=str(key))
        return values

    @model_validator(mode="after")
    def _together(self) -> Self:
        """SGLang's ranks are processes of its replica; a fleet grows by what was planned."""
        if self.engine == "sglang" and self.across_hosts:
            raise ConfigError(
                "across_hosts=true is not possible with engine=sglang, whose ranks are processes "
                "of one replica: leave across_hosts out and set replicas=, or use engine=vllm",
                param="across_hosts",
            )
        if self.most_replicas < self.replicas:
            raise ConfigError(
                f"max_replicas={self.max_replicas} is less than replicas={self.replicas}, the "
                "fewest: raise it, or leave it out for a fixed number",
                param="max_replicas",
            )
        if self.data_plane == "direct" and self.prewarm:
            raise ConfigError(
                "prewarm needs data_plane=ingress: on the direct data plane the Router makes no "
                "prompts it could repeat",
                param="prewarm",
            )
        if self.scales and self.reuse == "plain":
            raise ConfigError(
                "max_replicas needs plans, whose estimates it goes by, and reuse=plain makes none: "
                "set reuse=route or reuse=full, or leave max_replicas out",
                param="max_replicas",
            )
        return self

    def to_json(self) -> str:
        """Every setting, secrets in the clear, for our own processes: `model_validate_json`."""
        return json.dumps(self.model_dump(mode="python"), default=reveal)

    @property
    def most_replicas(self) -> int:
        """Engine replicas that there may be."""
        return self.max_replicas if self.max_replicas is not None else self.replicas

    @property
    def scales(self) -> bool:
        """Whether the number of replicas follows the load."""
        return self.most_replicas != self.replicas

    @property
    def followed_requests(self) -> int:
        """How many requests an engine follows: not more than the index could know of."""
        return min(MOST_FOLLOWED, self.index_records)

    @property
    def public_model_name(self) -> str:
        """The name clients send as `model`."""
        return self.served_model_name or self.model


def parse_settings(settings: Sequence[str]) -> AppConfig:
    """`key=value` words of a command line; ConfigError names the setting and the fix."""
    values: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{setting!r} is no setting: write it as KEY=VALUE", param=setting)
        values[key] = value
    try:
        return AppConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"setting {name!r}: {first['msg']}", param=name) from None
