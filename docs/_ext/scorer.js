// The order of search results: pages that answer "how do I" first, then topics, then the reference. Names of the API and the glossary
// follow. Without this, Sphinx puts every object and every term of the glossary first.
var Scorer = {
  folders: [
    ["howto/", 3],
    ["start/", 2.4],
    ["topics/", 2.6],
    ["more/", 2.2],
    ["reference/glossary", 0.2],
    ["reference/api", 0.6],
    ["reference/", 1.6],
  ],
  other: 0.4, // internals and the history of a job
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const [, factor] = Scorer.folders.find(([folder]) => docname.startsWith(folder)) ?? [, Scorer.other];
    return score * (kind === "object" ? Math.min(factor, 0.6) : factor);
  },
  objNameMatch: 11,
  objPartialMatch: 2,
  objPrio: { 0: 5, 1: 2, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 5,
  term: 5,
  partialTerm: 1,
};
