"""The page about django-tenants with the real package on PostgreSQL. It has an environment of its own: `make test-tenants`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.pages.blocks import DOCS, project
from tests.testing.projects import run, run_pytest

pytest.importorskip("django_tenants")
pytestmark = pytest.mark.postgres
HERE = Path(__file__).parent
CUSTOMERS = """
from django_tenants.models import DomainMixin, TenantMixin


class Client(TenantMixin):
    auto_create_schema = True


class Domain(DomainMixin):
    pass
"""
SETTINGS = """
DATABASES["default"]["ENGINE"] = "django_tenants.postgresql_backend"
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
SHARED_APPS = ["django_tenants", "customers", *(app for app in INSTALLED_APPS if app != "orders")]
TENANT_APPS = ["orders"]
INSTALLED_APPS = [*SHARED_APPS, *TENANT_APPS]
TENANT_MODEL, TENANT_DOMAIN_MODEL = "customers.Client", "customers.Domain"
"""


def test_the_recipe_keeps_the_jobs_of_two_schemas_apart(tmp_path: Path, redis_server: Any, postgres: dict[str, Any]) -> None:
    home = project(tmp_path, DOCS / "howto/django-tenants.md", HERE / "of_schemas.py")
    shutil.rmtree(home / "django_tenants")  # the stand-in
    (home / "customers").mkdir()
    (home / "customers" / "__init__.py").touch()
    (home / "customers" / "models.py").write_text(CUSTOMERS)
    with (home / "shop" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    given = {"DELAYQ_TEST_REDIS_URL": redis_server.url, "SHOP_DATABASE": json.dumps(postgres)}
    made = run(
        home, "-m", "django", "makemigrations", "--skip-checks", "customers", "orders", DJANGO_SETTINGS_MODULE="shop.settings", **given
    )
    assert made.returncode == 0, made.stdout + made.stderr
    done = run_pytest(home, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
