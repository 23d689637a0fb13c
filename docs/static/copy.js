// A button in each block of code copies what a reader types: of a console, the commands without prompts and without output.
"use strict";

const PROMPT = /^(?:\$|>>>|\.\.\.) /;

function typed(text) {
  const lines = text.replace(/\n$/, "").split("\n");
  if (!lines.some((line) => PROMPT.test(line))) return lines.join("\n");
  const kept = [];
  let continues = false;
  for (const line of lines) {
    if (PROMPT.test(line)) kept.push(line.replace(PROMPT, ""));
    else if (continues) kept.push(line);
    else continue;
    continues = line.endsWith("\\");
  }
  return kept.join("\n");
}

function addButtons() {
  for (const block of document.querySelectorAll("div.highlight")) {
    const code = block.querySelector("pre");
    const isOutput = block.parentElement.classList.contains("highlight-console") && !/^\$ /m.test(code.textContent);
    if (isOutput || block.parentElement.classList.contains("highlight-text")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(typed(code.textContent));
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select the text and press Ctrl+C";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    block.append(button);
  }
}

if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", addButtons);
if (typeof module !== "undefined") module.exports = { typed };
