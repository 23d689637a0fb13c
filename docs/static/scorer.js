// How the search orders pages: what one does first, then what one looks up, then why it is so.
"use strict";

const PLACES = [
  [/^docs\/tutorials\//, 20],
  [/^docs\/how-to\//, 20],
  [/^docs\/(?:index|glossary)$/, 10],
  [/^docs\/(?:reference|explanation)\//, 10],
  [/^docs\/decisions\//, -20],
  [/^CHANGELOG$/, -20],
];

var Scorer = {
  // A result is [docname, title, anchor, description, score, filename].
  score: ([page, , , , score]) => score + (PLACES.find(([place]) => place.test(page))?.[1] ?? 0),
  // Below are Sphinx' own figures, which this file replaces as a whole.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

if (typeof module !== "undefined") module.exports = { Scorer };
