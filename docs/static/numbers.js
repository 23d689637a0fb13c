// The search finds numbers of three digits, such as 429. Sphinx leaves out words that are only digits.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return; // not the page of the search
  const parse = Search._parseQuery;
  Search._parseQuery = (query) => {
    const [text, wanted, excluded, shown, objects] = parse(query);
    for (const word of splitQuery(query.trim())) {
      if (/^\d{3}$/.test(word)) {
        wanted.add(word);
        shown.add(word);
      }
    }
    return [text, wanted, excluded, shown, objects];
  };
});
