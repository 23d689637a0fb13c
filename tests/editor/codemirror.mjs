// What the reference host's editor uses of CodeMirror.
export { EditorState, StateEffect, StateField } from "@codemirror/state";
export { Decoration, EditorView, MatchDecorator, ViewPlugin, keymap, lineNumbers, placeholder } from "@codemirror/view";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { HighlightStyle, bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language";
export { json } from "@codemirror/lang-json";
export { tags } from "@lezer/highlight";
