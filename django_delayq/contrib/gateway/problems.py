"""What the gateway refuses, as RFC 9457 has it: a code for programs, a sentence and a remedy for people, the place in the body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of refusal. `detail` and `remedy` are filled in with the fields of the case."""

    status: int
    title: str
    detail: str
    remedy: str


REFUSALS: Final[Mapping[str, Refusal]] = {
    "length_unknown": Refusal(400, "Bad request", "The request does not say how long its body is.", "Send Content-Length as a number."),
    "body_lost": Refusal(400, "Bad request", "The body did not arrive as it was announced.", "Send the request again."),
    "json": Refusal(400, "No JSON", "The body is no strict JSON: {cause}.", "Send one JSON object in UTF-8, without NaN or infinity."),
    "idempotency_key": Refusal(
        400, "Bad header", "Idempotency-Key must be 1 to 255 printable ASCII characters.", "Send a UUID, for example."
    ),
    "idempotency_unkept": Refusal(
        400,
        "Bad header",
        "A pull takes no Idempotency-Key: an answer that is kept would give messages again whose leases are over.",
        "Send it without. What the lost answer of a pull has taken comes again when its lease has ended.",
    ),
    "query": Refusal(400, "Bad query", "The query lacks {name}, or has it more than once.", "Give each parameter once."),
    "token_missing": Refusal(401, "Token missing", "No token was sent.", "Send the header Authorization: Bearer TOKEN."),
    "token_invalid": Refusal(
        401, "Token invalid", "The token is unknown, has expired or was revoked.", "Ask the operator of the queue for another one."
    ),
    "verb_denied": Refusal(403, "Not allowed", "The token may not {verb}.", "Ask the operator of the queue for that verb."),
    "queue_denied": Refusal(403, "Not allowed", "The token does not lead to this queue.", "Ask the operator for that queue."),
    "task_denied": Refusal(403, "Not allowed", "The token may not schedule this task.", "GET tasks lists those that it may."),
    "secret_denied": Refusal(
        403,
        "Not allowed",
        "The token may not have this secret sent to this host.",
        "Ask the operator for that secret, with scheme, host and port.",
    ),
    "target_denied": Refusal(403, "Not allowed", "The token may not offer to this target.", "Ask the operator for that target."),
    "job_unknown": Refusal(404, "Not found", "No job of that id or key is known to this token.", "Check the id and the queue."),
    "queue_unknown": Refusal(404, "Not found", "No queue of that name is known to this token.", "GET queues lists them."),
    "method": Refusal(405, "Method not allowed", "This address does not take {method}.", "The header Allow lists what it takes."),
    "key_held": Refusal(
        409,
        "Key held",
        "The key is held by an unfinished job; its id is in holder.",
        "Cancel or reschedule that one, choose another on_conflict, or wait until it has ended.",
    ),
    "not_changed": Refusal(
        409, "Not changed", "The job is not in a state in which this can be done: {change}.", "GET the job says how it stands."
    ),
    "queue_of_workers": Refusal(
        409, "Queue of workers", "Workers serve this queue; it holds no messages.", "POST jobs schedules into it; pull from another."
    ),
    "no_deliveries": Refusal(
        409, "No deliveries", "The project delivers nothing: its settings have no HTTP.", "Ask the operator of the queue."
    ),
    "lease_lost": Refusal(
        409,
        "Lease lost",
        "The lease had run out, or the message was settled before, so nothing was written; another may have it.",
        "Take what was done as done by an attempt that failed; pull with a longer lease, or extend it.",
    ),
    "in_progress": Refusal(
        409,
        "In progress",
        "A request with this Idempotency-Key is being carried out.",
        "Send it again after the seconds of Retry-After.",
    ),
    "key_denied": Refusal(
        403, "Not allowed", "The key is held by a job to which this token does not lead.", "Choose another key, or another queue."
    ),
    "body_size": Refusal(413, "Too large", "The body is larger than {limit} bytes.", "Store the content, and send its address."),
    "payload_size": Refusal(
        413,
        "Too large",
        "Arguments and meta are {size} bytes, and the queue takes {limit}.",
        "Store the content, and send its address.",
    ),
    "body_type": Refusal(415, "Not JSON", "The body must be application/json in UTF-8.", "Send Content-Type: application/json."),
    "field_missing": Refusal(422, "Field missing", "This field is required.", "Give it."),
    "field_unknown": Refusal(
        422, "Field unknown", "There is no such field here.", "Leave it out; openapi.json lists those that there are."
    ),
    "field_type": Refusal(422, "Wrong type", "This must be of type {expected}.", "Send that type."),
    "field_value": Refusal(422, "Wrong value", "{cause}", "openapi.json says what may stand here."),
    "task_unknown": Refusal(422, "Task unknown", "No task of that name is registered.", "GET tasks lists those that there are."),
    "queue_unlisted": Refusal(422, "Queue unknown", "The project lists no queue of that name.", "GET queues lists them."),
    "url_refused": Refusal(422, "URL refused", "{cause}", "Give a URL of http or https, without user and password."),
    "target_unlisted": Refusal(422, "Target unknown", "The project lists no target of that name.", "Ask the operator of the queue."),
    "arguments": Refusal(422, "Wrong arguments", "{cause}", "GET tasks names the parameters of each task."),
    "options": Refusal(422, "Wrong options", "{cause}", "openapi.json says what may stand here."),
    "idempotency_reused": Refusal(
        422, "Key reused", "Another request has used this Idempotency-Key.", "Give each request a key of its own."
    ),
    "rate": Refusal(429, "Too many requests", "More than {limit} requests in a minute.", "Wait for the seconds of Retry-After."),
    "store_away": Refusal(
        503,
        "Unavailable",
        "The server of the queues does not answer; what was asked may have happened. If a job is named in job, ask for it by that id.",
        "Send the request again, with the same Idempotency-Key if it had one: that schedules no second job, and settles nothing twice.",
    ),
    "store_refused": Refusal(
        503,
        "Refused for now",
        "The server of the queues refused this; what it refused was not done.",
        "Send the request again after the seconds of Retry-After, with the same Idempotency-Key if it had one.",
    ),
    "database_away": Refusal(
        503,
        "Unavailable",
        "The database does not answer; what was asked may have happened. If a job is named in job, ask for it by that id.",
        "Send the request again, with the same Idempotency-Key if it had one: that schedules no second job, and settles nothing twice.",
    ),
    "limit_away": Refusal(
        503,
        "Unavailable",
        "The cache, which counts requests and keeps what was settled, does not answer, so none is let in.",
        "Send the request again later; nothing was done.",
    ),
}


class GatewayProblem(Exception):
    """A refusal of one request. `place`: a JSON pointer into the body; `more`: members of the answer beside the usual ones."""

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
        """Of the answer."""
        return REFUSALS[self.code].status

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = REFUSALS[self.code]
        found = {
            "type": "about:blank",
            "title": kind.title,
            "status": kind.status,
            "code": self.code,
            "detail": kind.detail.format(**self.fields),
            "remedy": kind.remedy.format(**self.fields),
        }
        return {**found, **({} if self.place is None else {"place": self.place}), **self.more}


def pointer(*parts: object) -> str:
    """The JSON pointer (RFC 6901) to what these names and numbers lead to."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
