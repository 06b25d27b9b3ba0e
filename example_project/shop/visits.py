"""The requests that the web server logs: those of people, and errors."""

import logging

# Requests that pages make on their own, and those of the warehouse and the payment provider.
BY_THEMSELVES = ("/static/", "/favicon.ico", "/queue/v1/", "/provider/")
ASKED_EVERY_SECOND = "/state/"


class Visits(logging.Filter):
    """A filter for `django.server`. The first arguments of its records are the request line and the status."""

    def filter(self, record):
        if record.levelno > logging.INFO or not isinstance(record.args, tuple) or len(record.args) < 2:
            return True
        _, _, path = str(record.args[0]).partition(" ")
        path = path.partition(" ")[0].partition("?")[0]
        return not path.startswith(BY_THEMSELVES) and not path.endswith(ASKED_EVERY_SECOND)
