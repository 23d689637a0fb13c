// Places in a text: line and column from 1 and in characters, as the check tells them; a page counts UTF-16 units.

/** What may be wrong at a place of a JSON text: a variable, a text or name, a comment, a number, a word, or one character. */
const IN_JSON = /\{\{[^{}"\n]*\}{0,2}|\$?\{[ \t]*\w+[ \t]*\}|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'|\\.|(?:\/\/|#)[^\n]*|[+\-.]{0,2}\d[\w.:/+\-]*|[$%<@]{0,2}[\p{L}_][\p{L}\p{N}_]*|./suy;

/** In other texts: a variable, a fragment, a sign that is not ASCII, or what stands up to a blank or a sign of a URL. */
const IN_LINE = /\{\{[^{}\n]*\}{0,2}|\$?\{[ \t]*\w+[ \t]*\}|#.*|[^\x00-\x7f]|[^\s&@/?#]+|./suy;

/** Give the offset of a place. */
export function offsetOf(text, line, column) {
  const lines = text.split("\n");
  if (line > lines.length) return text.length;
  const before = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  return before + [...lines[line - 1]].slice(0, column - 1).join("").length;
}

/** Give the piece that begins at a place, as [from, to]. What is missing at the end of a line is shown at its last character. */
export function pieceAt(text, line, column, { json = false } = {}) {
  const from = offsetOf(text, line, column);
  const ends = from === text.length || text[from] === "\n";
  if (ends) return from > 0 && text[from - 1] !== "\n" ? [from - [...text.slice(Math.max(0, from - 2), from)].at(-1).length, from] : [from, from];
  const pattern = json ? IN_JSON : IN_LINE;
  pattern.lastIndex = from;
  return [from, from + (pattern.exec(text)?.[0].length ?? 0)];
}
