"""Which requests the web server logs: those that tell what people do, and whatever goes wrong."""

import logging

# Of pages: what they load, and what they ask for by themselves. Of programs: the warehouse's calls, and the provider's answers.
BY_THEMSELVES = ("/static/", "/favicon.ico", "/queue/v1/", "/provider/")
ASKED_EVERY_SECOND = "/state/"


class Visits(logging.Filter):
    """Of `django.server`, whose records have the first line of the request and the status as their first arguments."""

    def filter(self, record):
        if record.levelno > logging.INFO or not isinstance(record.args, tuple) or len(record.args) < 2:
            return True
        _, _, path = str(record.args[0]).partition(" ")
        path = path.partition(" ")[0].partition("?")[0]
        return not path.startswith(BY_THEMSELVES) and not path.endswith(ASKED_EVERY_SECOND)
