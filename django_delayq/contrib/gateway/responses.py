"""The responses of the gateway: answers, and problem documents (RFC 9457) for what it rejects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from django.http import HttpResponse

from django_delayq.console.export import plain


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of problem. `detail` and `remedy` are format strings."""

    status: int
    detail: str
    remedy: str


PROBLEM_TYPE: Final = "application/problem+json"
MAYBE_DONE: Final = "The request may have been carried out. If the response has a job, check it by this id."
RESEND: Final = "Send it again, with the same Idempotency-Key if it had one. This schedules no second job and settles no message twice."
REFUSALS: Final[Mapping[str, Refusal]] = {
    "length_unknown": Refusal(400, "The request has no Content-Length.", "Send Content-Length as a number."),
    "body_lost": Refusal(400, "The body is incomplete.", "Send the request again."),
    "json": Refusal(400, "The body is not valid JSON: {cause}.", "Send one JSON object in UTF-8, without NaN or infinity."),
    "idempotency_key": Refusal(400, "Idempotency-Key must be 1 to 255 printable ASCII characters.", "Send a UUID, for example."),
    "idempotency_unkept": Refusal(
        400,
        "A pull does not accept an Idempotency-Key: a stored response would return messages whose leases have expired.",
        "Send the request without it. If the response of a pull is lost, its messages are delivered again after their leases expire.",
    ),
    "query": Refusal(400, "The parameter {name} is missing or is given more than once.", "Send each parameter exactly once."),
    "token_missing": Refusal(401, "No token was sent.", "Send the header Authorization: Bearer TOKEN."),
    "token_invalid": Refusal(401, "The token is unknown, expired or revoked.", "Ask the operator of the queue for another one."),
    "verb_denied": Refusal(403, "The token is not allowed to {verb}.", "Ask the operator of the queue for this permission."),
    "queue_denied": Refusal(403, "The token does not give access to this queue.", "Ask the operator for access to the queue."),
    "task_denied": Refusal(403, "The token is not allowed to schedule this task.", "GET tasks lists the allowed tasks."),
    "secret_denied": Refusal(
        403, "The token cannot send this secret to this host.", "Ask the operator for this secret, with scheme, host and port."
    ),
    "target_denied": Refusal(403, "The token is not allowed to offer to this target.", "Ask the operator for access to the target."),
    "job_unknown": Refusal(404, "There is no job with this id or key that the token can access.", "Check the id and the queue."),
    "operation_unknown": Refusal(404, "The token has started no operation with this id.", "Check the id."),
    "queue_unknown": Refusal(404, "There is no queue with this name that the token can access.", "GET queues lists them."),
    "method": Refusal(405, "This URL does not accept {method}.", "See the Allow header for the accepted methods."),
    "key_held": Refusal(
        409,
        "An unfinished job has this key. Its id is in holder.",
        "Cancel or reschedule it, wait for its end, or use another on_conflict.",
    ),
    "not_changed": Refusal(409, "The state of the job does not allow this: {change}.", "GET the job to see its state."),
    "too_many_jobs": Refusal(
        409, "At least {count} jobs match, and the limit is {limit}. No job was changed.", "Narrow the search, or send a higher limit."
    ),
    "queue_of_workers": Refusal(409, "Workers serve this queue, so it has no messages.", "Use POST jobs, or pull from another queue."),
    "no_deliveries": Refusal(409, "Deliveries are disabled: the project has no HTTP setting.", "Ask the operator of the queue."),
    "lease_lost": Refusal(
        409,
        "The lease has expired, or the message was already settled, so nothing was changed. Another consumer may have the message.",
        "Treat this attempt as failed. Pull with a longer lease, or extend the lease.",
    ),
    "in_progress": Refusal(409, "A request with this Idempotency-Key is in progress.", "Send it again after the time in Retry-After."),
    "key_denied": Refusal(403, "A job that the token cannot access has this key.", "Use another key or another queue."),
    "body_size": Refusal(413, "The body is larger than {limit} bytes.", "Store the content elsewhere and send its URL."),
    "payload_size": Refusal(
        413, "Arguments and meta have {size} bytes, more than {limit}.", "Store the content elsewhere and send its URL."
    ),
    "body_type": Refusal(415, "The body must be application/json in UTF-8.", "Send Content-Type: application/json."),
    "field_missing": Refusal(422, "This field is required.", "Add the field."),
    "field_unknown": Refusal(422, "Unknown field.", "Remove it. See openapi.json for the available fields."),
    "field_type": Refusal(422, "The value must be of type {expected}.", "Send a value of this type."),
    "field_value": Refusal(422, "{cause}", "See openapi.json for the allowed values."),
    "task_unknown": Refusal(422, "No task with this name is registered.", "GET tasks lists the available tasks."),
    "queue_unlisted": Refusal(422, "The project has no queue with this name.", "GET queues lists them."),
    "url_refused": Refusal(422, "{cause}", "Use an http or https URL without user name and password."),
    "target_unlisted": Refusal(422, "The project has no target with this name.", "Ask the operator of the queue."),
    "arguments": Refusal(422, "{cause}", "GET tasks lists the parameters of each task."),
    "options": Refusal(422, "{cause}", "See openapi.json for the allowed values."),
    "idempotency_reused": Refusal(422, "Another request has used this Idempotency-Key.", "Use a different key for each request."),
    "rate": Refusal(429, "More than {limit} requests in a minute.", "Wait for the time in Retry-After."),
    "store_away": Refusal(503, f"Redis does not answer. {MAYBE_DONE}", RESEND),
    "store_refused": Refusal(
        503,
        "Redis rejected the request. Nothing was changed.",
        "Send it again after the time in Retry-After, with the same Idempotency-Key if it had one.",
    ),
    "database_away": Refusal(503, f"The database does not answer. {MAYBE_DONE}", RESEND),
    "limit_away": Refusal(
        503,
        "The cache does not answer. The gateway needs it to count requests and to store settled messages, so it rejects all requests.",
        "Send the request again later. Nothing was changed.",
    ),
}


class GatewayProblem(Exception):
    """A rejected request. `place`: a JSON pointer into the body; `more`: more members of the problem document."""

    def __init__(
        self,
        code: str,
        place: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.place = place
        self.headers = dict(headers or {})
        self.more = dict(more or {})
        self.fields = fields

    @property
    def status(self) -> int:
        """The HTTP status."""
        return REFUSALS[self.code].status

    def document(self) -> dict[str, Any]:
        """The problem document."""
        kind = REFUSALS[self.code]
        found = {
            "type": "about:blank",
            "title": HTTPStatus(kind.status).phrase,  # RFC 9457 wants it for about:blank
            "status": kind.status,
            "code": self.code,
            "detail": kind.detail.format(**self.fields),
            "remedy": kind.remedy.format(**self.fields),
        }
        return {**found, **({} if self.place is None else {"place": self.place}), **self.more}


def pointer(*parts: object) -> str:
    """A JSON pointer (RFC 6901) made of names and numbers."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAnswer:
    """A response. `body`: JSON that may contain ids and dates."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: GatewayProblem) -> GatewayAnswer:
        """The answer for a rejected request."""
        return cls(status=problem.status, body=problem.document(), headers=problem.headers)

    def as_json(self) -> GatewayAnswer:
        """The same answer, with ids and dates as JSON has them."""
        return GatewayAnswer(status=self.status, body=json.loads(json.dumps(self.body, default=plain)), headers=self.headers)

    def response(self) -> HttpResponse:
        """The response for Django. Caches must not store it."""
        content = json.dumps(self.body, default=plain) + "\n"  # in ASCII, because jobs may contain lone surrogates
        kind = PROBLEM_TYPE if self.status >= 400 else "application/json"
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **self.headers}
        return HttpResponse(content, status=self.status, content_type=kind, headers=headers)
