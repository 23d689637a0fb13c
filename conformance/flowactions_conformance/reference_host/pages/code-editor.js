// A text field for JSON with variables: highlighted, with line numbers, and a mark on what is wrong.

import {
  Decoration, EditorState, EditorView, HighlightStyle, MatchDecorator, StateEffect, StateField, ViewPlugin, bracketMatching,
  defaultKeymap, history, historyKeymap, indentOnInput, json, keymap, lineNumbers, placeholder, syntaxHighlighting, tags,
} from "./vendor/codemirror.js";
import { offsetOf, pieceAt } from "./places.js";

const COLOURS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--code-key)" },
  { tag: tags.string, color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-value)" },
]);

const LOOK = EditorView.theme({
  "&": { fontSize: "0.88rem", border: "1px solid var(--edge)", borderRadius: "0.5rem", backgroundColor: "var(--card)" },
  "&.cm-focused": { outline: "3px solid var(--accent)", outlineOffset: "2px" },
  ".cm-scroller": { fontFamily: "ui-monospace, monospace", lineHeight: "1.5", overflow: "auto", maxHeight: "24rem" },
  ".cm-content": { caretColor: "var(--text)", padding: "0.5rem 0" },
  ".cm-gutters": { border: "0", borderRadius: "0.5rem 0 0 0.5rem", backgroundColor: "var(--sunken)", color: "var(--muted)" },
  ".cm-placeholder": { color: "var(--muted)" },
  ".cm-variable": { borderRadius: "0.25rem", backgroundColor: "var(--accent-soft)", color: "var(--accent)" },
  ".cm-mistake": { textDecoration: "underline wavy var(--bad)", backgroundColor: "var(--bad-soft)" },
  ".cm-matchingBracket, .cm-nonmatchingBracket": { backgroundColor: "var(--accent-soft)", color: "inherit" },
});

const setMarks = StateEffect.define();
const marks = StateField.define({
  create: () => Decoration.none,
  update(shown, transaction) {
    let next = shown.map(transaction.changes);
    for (const effect of transaction.effects) if (effect.is(setMarks)) next = effect.value;
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

/** Highlight what the node replaces. */
function variables(names) {
  const pattern = new RegExp(`\\{\\{(?:${names.map((name) => name.replace(/\W/g, "\\$&")).join("|")})\\}\\}`, "g");
  const matcher = new MatchDecorator({ regexp: pattern, decoration: Decoration.mark({ class: "cm-variable" }) });
  return ViewPlugin.define((view) => ({
    decorations: matcher.createDeco(view),
    update(change) { this.decorations = matcher.updateDeco(change, this.decorations); },
  }), { decorations: (plugin) => plugin.decorations });
}

/** Make the field. attributes are those of the text box; set is called with each change. */
export function codeEditor({ attributes, value, hint, rows, names, set }) {
  const view = new EditorView({
    state: EditorState.create({
      doc: value,
      extensions: [
        lineNumbers(), history(), indentOnInput(), bracketMatching(), json(), syntaxHighlighting(COLOURS), LOOK, marks,
        EditorView.lineWrapping,
        keymap.of([...defaultKeymap, ...historyKeymap]), // Tab leaves the field, as in every other
        EditorView.contentAttributes.of({ ...attributes, spellcheck: "false" }),
        EditorView.theme({ ".cm-content, .cm-gutter": { minHeight: `${rows * 1.5 + 1}em` } }),
        EditorView.updateListener.of((update) => update.docChanged && set(view.state.doc.toString())),
        ...(hint ? [placeholder(hint)] : []),
        ...(names.length ? [variables(names)] : []),
      ],
    }),
  });
  return {
    element: view.dom,
    input: view.contentDOM,
    focus: () => view.focus(),
    insert(text) {
      view.dispatch(view.state.replaceSelection(text), { userEvent: "input", scrollIntoView: true });
      view.focus();
    },
    /** Mark what is wrong at these places: [[line, column], …]. */
    mark(places) {
      const text = places.length ? view.state.doc.toString() : "";
      const pieces = places.map(([line, column]) => pieceAt(text, line, column, { json: true })).filter(([from, to]) => from < to);
      view.dispatch({ effects: setMarks.of(Decoration.set(pieces.map(([from, to]) => Decoration.mark({ class: "cm-mistake" }).range(from, to)), true)) });
    },
    goTo(line, column) {
      const anchor = offsetOf(view.state.doc.toString(), line, column);
      view.dispatch({ selection: { anchor }, scrollIntoView: true });
      view.focus();
    },
  };
}
