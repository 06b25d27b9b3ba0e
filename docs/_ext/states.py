"""The table of moves between states, from `django_delayq.states.TRANSITIONS`."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Transitions(SphinxDirective):
    """A row for each move."""

    def run(self) -> list[nodes.Node]:
        from django_delayq.states import TRANSITIONS

        lines = ["| Verb | From | To | Script |", "|---|---|---|---|"]
        lines += [f"| {move.verb} | {move.before or '–'} | {move.after} | {move.script} |" for move in TRANSITIONS]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_directive("delayq-transitions", Transitions)
    return {"parallel_read_safe": True}
