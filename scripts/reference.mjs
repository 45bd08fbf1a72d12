// `npm run reference`: makes docs/reference.md of docs/openapi.yaml. With `--check`, it only tells whether that was done.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { load } from "js-yaml";
import { fail, root, say } from "./lib.mjs";

const document = load(readFileSync(join(root, "docs/openapi.yaml"), "utf8"));
const target = join(root, "docs/reference.md");
const methods = ["get", "post", "put", "patch", "delete"];

/** What a reference leads to, or the value itself. */
const resolved = (value) => (value?.$ref ? resolved(value.$ref.slice(2).split("/").reduce((at, name) => at[name], document)) : value);
const nameOf = (reference) => reference.split("/").at(-1);
const link = (name) => `[${name}](#${name.toLowerCase()})`;
const cell = (text) => text.trim().replaceAll("|", "\\|").replace(/\s*\n\s*/g, " ");
const row = (...cells) => `| ${cells.map(cell).join(" | ")} |`;
const table = (head, rows) => (rows.length === 0 ? [] : ["", row(...head), row(...head.map(() => "---")), ...rows.map((cells) => row(...cells))]);

/** A value as JSON: in a line where that is short, else with a line for each member. */
function json(value) {
  const whole = JSON.stringify(value);
  if (whole.length <= 150 || typeof value !== "object" || value === null) return whole;
  const members = Array.isArray(value) ? value.map(json) : Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${json(member)}`);
  const indented = members.map((member) => `  ${member.replaceAll("\n", "\n  ")}`).join(",\n");
  return Array.isArray(value) ? `[\n${indented}\n]` : `{\n${indented}\n}`;
}

const code = (value) => ["", "```json", json(value), "```"];

/** What a schema takes, in a few words. */
function type(schema) {
  if (schema.$ref) return link(nameOf(schema.$ref));
  if (schema.const !== undefined) return `\`${JSON.stringify(schema.const)}\``;
  for (const ways of [schema.anyOf, schema.oneOf]) {
    if (ways && !schema.type) return ways.map(type).join(" or ");
  }
  if (schema.allOf) return schema.allOf.map(type).filter((part) => part !== "").join(", ");
  const limits = [];
  const kinds = [schema.type ?? []].flat();
  if (schema.enum) {
    limits.push(schema.enum.map((one) => (one === null ? "null" : `\`${one}\``)).join(", "));
  } else if (kinds.length > 0) {
    const of = schema.items ? ` of ${type(schema.items)}` : "";
    limits.push(kinds.map((kind) => (kind === "null" ? kind : `${schema.format ?? kind}${of}`)).join(" or "));
  }
  const range = (least, most, what) => {
    if (least !== undefined && most !== undefined) limits.push(`${least} to ${most}${what}`);
    else if (least !== undefined) limits.push(`from ${least}${what}`);
    else if (most !== undefined) limits.push(`up to ${most}${what}`);
  };
  range(schema.minLength, schema.maxLength, " characters");
  range(schema.minimum, schema.maximum, "");
  range(undefined, schema.maxItems, " items");
  range(undefined, schema.maxProperties, " members");
  if (schema.pattern) limits.push(`\`${schema.pattern}\``);
  if (schema.default !== undefined) limits.push(`default \`${JSON.stringify(schema.default)}\``);
  return limits.join(", ");
}

/** The names of the fields, and the codes, that a refusal can have. */
function details(schema) {
  if (!schema) return "";
  const parts = [schema, ...(schema.allOf ?? []), ...(schema.oneOf ?? []).flatMap((way) => [way, ...(way.allOf ?? [])])];
  // With a body, any other field can be unknown: those have one message.
  const known = (part) => (part.additionalProperties?.const ? Object.keys(part.properties) : []);
  const names = parts.flatMap((part) => part.propertyNames?.enum ?? known(part));
  const codes = parts.flatMap((part) => part.properties?.code?.enum ?? []);
  return [names, codes].filter((list) => list.length > 0).map((list) => `: ${list.map((name) => `\`${name}\``).join(", ")}`).join("");
}

function body(content) {
  const kinds = Object.entries(content ?? {});
  if (kinds.length === 0) return "";
  const [, { schema }] = kinds[0];
  const shown = schema.type === "string" ? "" : type(schema);
  const media = kinds.map(([name]) => name).filter((name) => name !== "application/json" || kinds.length > 1);
  return `${shown}${details(schema)}${media.length > 0 ? ` (${media.map((name) => `\`${name}\``).join(", ")})` : ""}`;
}

/** The headers of an answer that not every answer has. */
function headers(response) {
  const common = ["X-Request-Id", "Cache-Control", "X-Content-Type-Options", "X-Error-Code"];
  const names = Object.keys(response.headers ?? {}).filter((name) => !common.includes(name));
  return names.map((name) => `\`${name}\``).join(", ");
}

function responses(all) {
  return table(["status", "meaning", "body", "headers"], Object.entries(all).map(([status, reference]) => {
    const response = resolved(reference);
    return [status, response.description, body(response.content), headers(response)];
  }));
}

function operation(method, path, it, shared) {
  const lines = ["", `### ${method.toUpperCase()} ${path}`, "", `${it.summary}.${it.description ? ` ${it.description}` : ""}`];
  const ways = it.security.flatMap((way) => Object.keys(way));
  const optional = it.security.length === 0 || it.security.some((way) => Object.keys(way).length === 0);
  lines.push("", ways.length === 0 ? "No credential." : `Credential: ${ways.map((way) => `\`${way}\``).join(" or ")}${optional ? ", or none" : ""}.`);
  const parameters = [...(shared ?? []), ...(it.parameters ?? [])].map(resolved).filter(({ name }) => name !== "X-Request-Id");
  lines.push(...table(["parameter", "in", "type", "meaning"], parameters.map((one) => [`\`${one.name}\``, one.in, type(one.schema), one.description])));
  if (it.requestBody) {
    const { content, required, description } = it.requestBody;
    lines.push("", `Body${required ? "" : " (may be missing)"}: ${body(content)}.${description ? ` ${description}` : ""}`);
    lines.push(...code(Object.values(content)[0].example));
  }
  lines.push(...responses(it.responses));
  const good = Object.entries(it.responses).find(([status]) => status.startsWith("2"))?.[1]?.content?.["application/json"];
  const shown = good?.example ?? Object.values(good?.examples ?? {})[0]?.value;
  if (shown !== undefined && shown !== null && it.operationId !== "schema") lines.push(...code(shown));
  return lines;
}

function* operations(items) {
  for (const [path, item] of Object.entries(items)) {
    for (const method of methods) if (item[method]) yield [method, path, item[method], item.parameters];
  }
}

const lines = [
  "# Reference", "",
  "<!-- Made of openapi.yaml by `npm run reference`. -->", "",
  "Every endpoint, field, error and header. The guide is [api.md](api.md); programs read `GET /api/schema/`, or [openapi.yaml](openapi.yaml), which this page is made of.", "",
  document.info.description, "", "## Credentials", "",
];
for (const [name, { description }] of Object.entries(document.components.securitySchemes)) lines.push(`- \`${name}\`: ${description}`);
lines.push("", "## Headers", "", "Every answer has `X-Request-Id`, `Cache-Control` and `X-Content-Type-Options`. A request may have `X-Request-Id`.");
lines.push(...table(["header", "meaning", "example"], Object.entries(document.components.headers).map(([name, { description, example }]) => [`\`${name}\``, description, `\`${example}\``])));
for (const tag of document.tags) {
  lines.push("", `## ${tag.name}`, "", tag.description);
  for (const [method, path, it, shared] of operations(document.paths)) if (it.tags.includes(tag.name)) lines.push(...operation(method, path, it, shared));
}
lines.push("", "## Catch-alls", "", "Paths of agents that OpenAPI has no form for.");
for (const [method, path, it] of operations(document["x-catch-alls"])) lines.push(...operation(method, path, it));
lines.push("", "## Everywhere", "", "What other paths and methods are answered with.", ...responses(document["x-common-responses"]));
lines.push("", "## Objects");
for (const [name, schema] of Object.entries(document.components.schemas)) {
  lines.push("", `### ${name}`, "", schema.description);
  if (schema.type !== "object") lines.push("", `Type: ${type(schema)}.`);
  const required = schema.required ?? [];
  const fields = Object.entries(schema.properties ?? {}).map(([field, is]) => {
    const inner = is.properties ? ` Its fields: ${Object.entries(is.properties).map(([one, of]) => `\`${one}\` (${type(of)})`).join(", ")}.` : "";
    return [`\`${field}\``, `${type(is)}${required.includes(field) ? "" : ", may be missing"}`, `${is.description ?? ""}${inner}`];
  });
  lines.push(...table(["field", "type", "meaning"], fields));
}

const text = `${lines.join("\n")}\n`;
if (process.argv.includes("--check")) {
  let there = "";
  try {
    there = readFileSync(target, "utf8");
  } catch {
    // It was never made.
  }
  if (there !== text) fail("docs/reference.md is not what docs/openapi.yaml makes: run npm run reference");
} else {
  writeFileSync(target, text);
  say("docs/reference.md is made");
}
