// Renders forms with react-jsonschema-form. Reads [{schema, uiSchema, formData}] from standard input, writes for
// each the ids of its controls, the options of its selects, its labels, all that can be read of it, and the config as the form completes it.
import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { JSDOM } from "jsdom";
import Form from "@rjsf/core";
import validator from "@rjsf/validator-ajv8";
import { getDefaultFormState } from "@rjsf/utils";
import { readFileSync } from "node:fs";

const complaints = [];
for (const level of ["warn", "error"]) console[level] = (...words) => complaints.push(words.join(" "));

const rendered = JSON.parse(readFileSync(0, "utf8")).map(({ schema, uiSchema, formData }) => {
  const html = renderToStaticMarkup(createElement(Form.default ?? Form, { schema, uiSchema, formData, validator: validator.default ?? validator }));
  const { document } = new JSDOM(html).window;
  const controls = [...document.querySelectorAll("input, select, textarea")];
  return {
    controls: controls.map(({ id, tagName, type }) => ({ id, tag: tagName.toLowerCase(), type })),
    options: Object.fromEntries([...document.querySelectorAll("select")].map((select) => [select.id, [...select.options].map(({ text }) => text).filter(Boolean)])),
    labels: [...document.querySelectorAll("label, legend")].map(({ textContent }) => textContent),
    read: [document.body.textContent, ...[...document.querySelectorAll("[placeholder], [title], [aria-label]")].flatMap((element) => ["placeholder", "title", "aria-label"].map((name) => element.getAttribute(name) ?? ""))],
    completed: getDefaultFormState(validator.default ?? validator, schema, formData),
    errors: (validator.default ?? validator).validateFormData(formData, schema).errors.map(({ stack }) => stack),
  };
});
process.stdout.write(JSON.stringify({ rendered, complaints }));
