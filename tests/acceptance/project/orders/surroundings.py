"""The context of the code that runs: the tenant and the request."""

from contextvars import ContextVar

tenant: ContextVar[str] = ContextVar("tenant", default="")
request_id: ContextVar[str] = ContextVar("request_id", default="")
