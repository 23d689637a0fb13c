// A message as people in the workspace see it. Text is only ever set as text: nothing in a message is executed.
// As in the real thing, a mark counts only at a word's edge: snake_case_names stay as they are.
const MARKS = /(?<!\w)(?:\*(?<strong>[^*\n]+)\*|_(?<em>[^_\n]+)_|~(?<s>[^~\n]+)~|`(?<code>[^`\n]+)`)(?!\w)/g;

function unescaped(text) {
  return text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

/** Give the parts of a message: texts, and elements for what is marked. */
export function formatted(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(MARKS)) {
    parts.push(unescaped(text.slice(end, match.index)));
    const [tag, inner] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    const marked = document.createElement(tag);
    marked.textContent = unescaped(inner);
    parts.push(marked);
    end = match.index + match[0].length;
  }
  return [...parts, unescaped(text.slice(end))];
}
