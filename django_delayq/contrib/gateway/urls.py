"""The addresses of the gateway, for `include`. The API itself is versioned by where a project includes it."""

from __future__ import annotations

from django.urls import path

from django_delayq.contrib.gateway import gate
from django_delayq.contrib.gateway.openapi import openapi
from django_delayq.contrib.gateway.routes import ROUTES, Route

app_name = "delayq_gateway"
_by_path: dict[str, dict[str, Route]] = {}
for _route in ROUTES:
    _by_path.setdefault(_route.path, {})[_route.method] = _route

urlpatterns = [
    path("openapi.json", gate.for_programs(openapi), name="openapi"),
    *(path(address.replace("{", "<str:").replace("}", ">"), gate.view(routes)) for address, routes in _by_path.items()),
]
