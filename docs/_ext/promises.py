"""Promises: an anchor and a link to its tests for each promise of a page, and the page of these tests. The data is tests/promises."""

from __future__ import annotations

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tests.promises import PROMISES

PAGES = ("topics/guarantees", "topics/security")
SLUGS = {promise.heading: slug for slug, promise in PROMISES.items()}


class PromiseTests(SphinxDirective):
    """A section for each promise, with the tests that prove it."""

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for slug, promise in PROMISES.items():
            lines += [f"(tests-{slug})=", f"## {promise.heading}", "", f"{{ref}}`Promise <{slug}>`", ""]
            lines += [f"- `{test}`" for test in promise.tests]
            lines += [f"- {promise.besides}"] if promise.besides else []
            lines.append("")
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Adds to the section of each promise its slug as an anchor, and a link to its tests."""
    page = app.env.docname
    if page not in PAGES:
        return
    labels = app.env.domains.standard_domain
    for section in doctree.findall(nodes.section):
        heading = section[0].astext().replace("’", "'")
        slug = SLUGS.get(heading)
        if slug is None:
            continue
        section["ids"].insert(0, slug)
        labels.anonlabels[slug] = page, slug
        labels.labels[slug] = page, slug, heading
        app.env.metadata[page]["myst_slugs"][slug] = section.line, slug, heading  # for links of Markdown
        link = addnodes.pending_xref(
            "", nodes.inline("", "Tests"), refdomain="std", reftype="ref", reftarget=f"tests-{slug}", refexplicit=True, refdoc=page
        )
        last = section[-1]
        if isinstance(last, nodes.paragraph):
            last += [nodes.Text(" "), link]
        else:
            section += nodes.paragraph("", "", link)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("doctree-read", anchors)
    app.add_directive("promise-tests", PromiseTests)
    return {"parallel_read_safe": True}
