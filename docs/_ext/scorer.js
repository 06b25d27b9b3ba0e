// The order of search results: pages that answer "how do I" first, then topics, then the reference. Names of the API and the glossary
// follow. Without this, Sphinx puts every object and every term of the glossary first, and all pages that have the words are equal: here
// a page gains for each word of the question that is among its search words, see search_words.py.
var Scorer = {
  folders: [
    ["howto/", 3],
    ["start/", 2.4],
    ["topics/guarantee-tests", 0.2],
    ["topics/", 2.6],
    ["more/", 2.2],
    ["reference/glossary", 0.2],
    ["reference/api", 0.6],
    ["reference/", 1.6],
  ],
  other: 0.4, // internals and the code map
  perWord: 6,
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const [, factor] = Scorer.folders.find(([folder]) => docname.startsWith(folder)) ?? [, Scorer.other];
    if (kind === "object") return score * Math.min(factor, 0.6);
    const words = kind === "text" ? Scorer.searchWords(docname) : new Set();
    return (score + Scorer.perWord * Scorer.question().filter((word) => words.has(word)).length) * factor;
  },
  stems: (text) => {
    const stemmer = new Stemmer();
    return splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word)).map((word) => stemmer.stemWord(word));
  },
  question: () => Scorer.stems(new URLSearchParams(window.location.search).get("q") ?? ""),
  searchWords: (docname) => {
    const number = Search._index.docnames.indexOf(docname);
    const entries = Object.entries(Search._index.indexentries).filter(([, places]) => places.some(([file]) => file === number));
    return new Set(entries.flatMap(([entry]) => Scorer.stems(entry)));
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
