"""What errors say, in the language of the page. Exceptions are English, for logs and commands; here those that people meet in the admin
are known by their sentence. What a driver, a server or another program has said stays as it was said.
"""

from __future__ import annotations

import re
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

LONGEST: Final = 2_000  # characters of a sentence of ours
CAUSE: Final = "cause"  # a group that may be such a sentence itself
WITHIN: Final = 2  # of these, how many within one another
SENTENCES: Final[tuple[tuple[str, Promise], ...]] = (
    (r"Redis at (?>(?P<where>.+?) is not available: )(?>(?P<cause>.+?)\. (?:Check|It is) ).+",
     _("Redis at %(where)s is not available: %(cause)s.")),
    (r"Redis at (?>(?P<where>.+?) answered: )(?P<cause>.+)", _("Redis at %(where)s answered: %(cause)s")),
    (r"No task named '(?P<name>.+?)' is registered in this process\..+",
     _("No task named %(name)s is registered in this process; was it renamed or removed, or is a deploy under way?")),
    (r"The queue '(?P<name>.+?)' is not listed in DELAYQ\[\"QUEUES\"\].+", _("The settings do not list the queue %(name)s.")),
    (r"these bytes are not strict JSON: .+: line (?P<line>\d+) column (?P<column>\d+) .+",
     _("Line %(line)s, column %(column)s is no JSON.")),
    (r"these bytes are not strict JSON: .+", _("That is no JSON.")),
    (r"(?>.+? cannot be called with these arguments: )missing a required (?:keyword-only )?argument: '(?P<name>.+?)'\.",
     _("The argument %(name)s is missing.")),
    (r"(?>.+? cannot be called with these arguments: )too many positional arguments\.",
     _("There are more arguments by place than the task takes.")),
    (r"(?>.+? cannot be called with these arguments: )got an unexpected keyword argument '(?P<name>.+?)'\.",
     _("The task takes no argument %(name)s.")),
    (r"(?>.+? cannot be called with these arguments: )multiple values for argument '(?P<name>.+?)'\.",
     _("The argument %(name)s is given twice, by place and by name.")),
    (r".+: the arguments are (?P<size>[\d,]+) bytes of JSON, and the limit is (?P<limit>[\d,]+) .+",
     _("The arguments are %(size)s bytes of JSON, and the limit is %(limit)s.")),
    (r"(?P<actor>.+) is no longer active, so nothing more is done in their name\.",
     _("%(actor)s is no longer active, so nothing more is done in their name.")),
    (r"(?P<actor>.+) has no longer the permission (?P<permission>\S+)\.", _("%(actor)s has no longer the permission %(permission)s.")),
)  # fmt: skip
# Where something is looked for, its first place counts ("(?>"): to try the others too would take the square of the length of a text
# that anybody may have written.
_KNOWN: Final = [(re.compile(pattern, re.DOTALL), said) for pattern, said in SENTENCES]


def worded(error: object, *, within: int = WITHIN) -> str:
    """An error, or what it said, for the reader of a page; as it is, where it is not known here. `within`: how deep to go on."""
    text = str(error)
    if len(text) > LONGEST:
        return text  # a pattern with two gaps would try all pairs of places
    for pattern, said in _KNOWN:
        if found := pattern.fullmatch(text):
            groups = found.groupdict()
            return str(said) % {
                name: worded(value, within=within - 1) if name == CAUSE and within else value
                for name, value in groups.items()
            }
    return text
