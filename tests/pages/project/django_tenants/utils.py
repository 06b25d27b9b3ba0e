"""A stand-in for the package of that name, which needs PostgreSQL: the schema is a name on the connection, and nothing more."""

from contextlib import contextmanager
from types import SimpleNamespace

from django.db import connection

connection.schema_name = "public"
NAMES = ("public", "bikes", "boats")


def get_public_schema_name():
    return "public"


def get_tenant_model():
    def exclude(schema_name):
        return [SimpleNamespace(schema_name=name) for name in NAMES if name != schema_name]

    return SimpleNamespace(objects=SimpleNamespace(exclude=exclude))


@contextmanager
def schema_context(name):
    before, connection.schema_name = connection.schema_name, name
    try:
        yield
    finally:
        connection.schema_name = before
