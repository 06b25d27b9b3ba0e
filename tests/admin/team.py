"""URLs of a project with the admin site that docs/howto/admin.md defines for a team. The example runs exactly as the page shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from django.contrib import admin
from django.urls import path

DOCS = Path(__file__).parents[2] / "docs" / "howto" / "admin.md"
[example] = [block for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "TeamJobAdmin" in block]
names: dict[str, Any] = {}
exec(example, names)
team: admin.AdminSite = names["team"]

urlpatterns = [path("admin/", admin.site.urls), path("team/", team.urls)]
