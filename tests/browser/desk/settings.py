"""The example's settings with the desk's tasks and queues."""

from settings import *  # noqa: F403  # the example's own
from settings import DELAYQ, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.browser.desk"]
DELAYQ["QUEUES"] |= {"mail": {}, "reports": {}, "stock": {}, "letters": {}}
DELAYQ["CARRIERS"] = ["tests.carriers.Customer"]
DELAYQ["RETENTION"] = {"succeeded": "30d"}  # by default, the jobs of a week ago are gone
