"""In which surroundings code runs: for which tenant, because of which request."""

from contextvars import ContextVar

tenant: ContextVar[str] = ContextVar("tenant", default="")
request_id: ContextVar[str] = ContextVar("request_id", default="")
