"""A request of the gateway as its handlers see it, and what they answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from django.http import HttpResponse

from django_delayq.console.documents import plain
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.problems import GatewayProblem

PROBLEM_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCall:
    """One request that may be carried out. `path`: what stood in its address; `query`: its parameters. `job`: the id for a job that it
    schedules; `again`: it may have been carried out before, up to any point; `key`: its `Idempotency-Key`; `patience`: seconds for
    which it may be waited.
    """

    token: Token
    body: dict[str, Any]
    path: Mapping[str, str]
    query: Mapping[str, str]
    job: UUID
    again: bool
    key: str | None = None
    patience: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAnswer:
    """What is sent back. `body`: JSON, but for ids and dates."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: GatewayProblem) -> GatewayAnswer:
        """A refusal."""
        return cls(status=problem.status, body=problem.document(), headers=problem.headers)

    def settled(self) -> GatewayAnswer:
        """The same as JSON has it."""
        return GatewayAnswer(status=self.status, body=json.loads(json.dumps(self.body, default=plain)), headers=self.headers)

    def response(self) -> HttpResponse:
        """As Django sends it. Nobody keeps a copy."""
        content = json.dumps(self.body, default=plain) + "\n"  # in ASCII: what a job holds may be half of a surrogate pair
        kind = PROBLEM_TYPE if self.status >= 400 else "application/json"
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **self.headers}
        return HttpResponse(content, status=self.status, content_type=kind, headers=headers)
