// Creates the API reference of the documentation site: Markdown pages from docs/openapi.yaml.
// scripts/docs.mjs writes the pages. They are not committed.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { load } from "js-yaml";
import { root } from "./lib.mjs";

const METHODS = ["get", "post", "put", "patch", "delete"];
/** The tags that have their own part of the reference, with the title of the part. */
const PARTS = { Operator: "For operators", Agents: "For agents" };
/** Schemas of errors. The page of common errors describes them. */
const ERROR_SCHEMAS = ["ErrorCode", "CodedError", "InternalError", "Unavailable", "FieldErrors", "CommandErrors"];
/** Headers of every response. */
const COMMON_HEADERS = ["X-Request-Id", "Cache-Control", "X-Content-Type-Options", "X-Error-Code"];
/** The Authorization header of each security scheme, for a shell. */
const AUTHORIZATION = {
  loginToken: 'token=\\"$token\\"',
  apiToken: 'token=\\"$token\\"',
  registrationToken: 'token=\\"$registration_token\\"',
  agentKey: 'id=\\"$server_id\\", key=\\"$agent_key\\"',
  operatorToken: "Bearer $OPERATOR_TOKEN",
};
/** The maximum length of JSON that is printed on one line, in characters. */
const LINE = 100;

const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-");
/**
 * The anchors of an operation (`run-command`) and of a schema (`schema-command`). The prefix is
 * needed because an operation and a schema may have the same name.
 */
const operationAnchor = (id) => slug(id.replace(/[A-Z]/g, (letter) => `-${letter}`));
const schemaAnchor = (name) => `schema-${name.toLowerCase()}`;
const code = (text) => `\`${text}\``;
const cell = (text) => text.trim().replaceAll("|", "\\|").replace(/\s*\n\s*/g, " ");
const row = (cells) => `| ${cells.map(cell).join(" | ")} |`;
const sentence = (text) => (/[.:!?]$/.test(text) ? text : `${text}.`);

/** Returns the lines of a table, without empty columns. Returns no lines if `rows` is empty. */
function table(heads, rows) {
  if (rows.length === 0) return [];
  const used = heads.map((_, index) => rows.some((cells) => cells[index] !== ""));
  const kept = (cells) => cells.filter((_, index) => used[index]);
  return ["", row(kept(heads)), row(kept(heads).map(() => "---")), ...rows.map((cells) => row(kept(cells)))];
}

/** Formats JSON on one line if it is short, otherwise with at least one line per member. */
function json(value) {
  // Line breaks in strings are escaped.
  const line = JSON.stringify(value, null, 1).replace(/([[{])\n\s*|\n\s*([\]}])|\n\s*/g, (_, open, close) => open ?? close ?? " ");
  if (line.length <= LINE || typeof value !== "object" || value === null) return line;
  const members = Array.isArray(value)
    ? value.map(json)
    : Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${json(member)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${members.map((member) => `  ${member.replaceAll("\n", "\n  ")}`).join(",\n")}\n${close}`;
}

const fenced = (language, text) => ["", `\`\`\`${language}`, text.trimEnd(), "```"];
/** Returns a block that is closed until the reader opens it. */
const folded = (title, lines) => ["", `::: details ${title}`, ...lines, ":::"];
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The OpenAPI document, with methods that create the pages. */
class Document {
  constructor(document) {
    this.document = document;
    const { components } = document;
    this.components = components;
    const item = ([path, { parameters = [], ...methods }]) =>
      METHODS.filter((method) => methods[method]).map((method) => ({ ...methods[method], method, path, shared: parameters }));
    this.operations = Object.entries(document.paths).flatMap(item);
    // Catch-alls have no tags. Only agents use them.
    this.catchAlls = Object.entries(document["x-catch-alls"]).flatMap(item).map((operation) => ({ tags: ["Agents"], ...operation }));
  }

  /** Returns the value that a reference names, or the value itself. */
  resolved(value) {
    return value?.$ref ? this.resolved(value.$ref.slice(2).split("/").reduce((at, name) => at[name], this.document)) : value;
  }

  schema(name) {
    return this.components.schemas[name];
  }

  /**
   * Returns the names of the schemas that a value refers to, directly or through other schemas, in
   * the order of the document.
   */
  schemasIn(value) {
    const found = new Set();
    const visit = (part) => {
      if (typeof part !== "object" || part === null) return;
      const name = /^#\/components\/schemas\/(.*)$/.exec(part.$ref ?? "")?.[1];
      if (name && !found.has(name) && !ERROR_SCHEMAS.includes(name)) {
        found.add(name);
        visit(this.schema(name));
      }
      Object.values(part).forEach(visit);
    };
    visit(value);
    return Object.keys(this.components.schemas).filter((name) => found.has(name));
  }

  /**
   * Whether a schema is an object with fields. Such a schema has a section on each page that uses
   * it.
   */
  isObject(name) {
    return this.schema(name)?.properties !== undefined;
  }

  /** Returns a link to the description of a schema. */
  link(reference) {
    const name = reference.split("/").at(-1);
    if (ERROR_SCHEMAS.includes(name)) return `[${name}](errors.md#${schemaAnchor(name)})`;
    return this.isObject(name) ? `[${name}](#${schemaAnchor(name)})` : `[${name}](index.md#${schemaAnchor(name)})`;
  }

  /** Describes the values that a schema accepts, in a few words. */
  type(schema) {
    if (schema.$ref) return this.link(schema.$ref);
    if (schema.const !== undefined) return code(JSON.stringify(schema.const));
    const ways = schema.type ? undefined : (schema.anyOf ?? schema.oneOf);
    if (ways) return ways.map((way) => this.type(way)).join(" or ");
    if (schema.allOf) return schema.allOf.map((part) => this.type(part)).filter((part) => part !== "").join(", ");
    const limits = [];
    if (schema.enum) {
      limits.push(schema.enum.map((one) => (one === null ? "null" : code(one))).join(", "));
    } else {
      const items = schema.items ? ` of ${this.type(schema.items)}` : "";
      limits.push([schema.type ?? []].flat().map((kind) => (kind === "null" ? kind : `${schema.format ?? kind}${items}`)).join(" or "));
    }
    const range = (least, most, unit) => {
      if (least !== undefined && most !== undefined) limits.push(`${least} to ${most}${unit}`);
      else if (least !== undefined) limits.push(`at least ${least}${unit}`);
      else if (most !== undefined) limits.push(`at most ${most}${unit}`);
    };
    range(schema.minLength, schema.maxLength, " characters");
    range(schema.minimum, schema.maximum, "");
    range(schema.minItems, schema.maxItems, " items");
    range(undefined, schema.maxProperties, " members");
    if (schema.pattern && schema.pattern.length < LINE) limits.push(code(schema.pattern));
    if (schema.default !== undefined) limits.push(`default ${code(JSON.stringify(schema.default))}`);
    return limits.filter((limit) => limit !== "").join(", ");
  }

  /** Returns the codes and the field names that an error schema allows. */
  errorDetails(schema) {
    const parts = [schema, ...(schema.allOf ?? []), ...(schema.oneOf ?? []).flatMap((way) => [way, ...(way.allOf ?? [])])];
    // A body may have unknown fields. Their message is always the same.
    const fixed = (part) => (part.additionalProperties?.const ? Object.keys(part.properties) : []);
    const fields = parts.flatMap((part) => part.propertyNames?.enum ?? fixed(part)).filter((name) => !["code", "detail"].includes(name));
    const codes = parts.flatMap((part) => part.properties?.code?.enum ?? []);
    const isCommand = parts.some((part) => part.$ref?.endsWith("/CommandErrors"));
    const isFields = parts.some((part) => part.$ref?.endsWith("/FieldErrors"));
    return { fields, codes: isCommand ? ["INVALID_COMMAND"] : isFields ? ["INVALID_INPUT"] : codes };
  }

  /** Returns the section of a schema: description, type and fields. */
  section(name) {
    const schema = this.schema(name);
    const lines = ["", `### ${name} {#${schemaAnchor(name)}}`, "", sentence(schema.description)];
    if (!this.isObject(name)) return [...lines, "", `Type: ${this.type(schema)}.`];
    const required = schema.required ?? [];
    const isInput = /Input|Creation|Replacement|Changes/.test(name);
    return [...lines, ...table(["field", "type", "meaning"], Object.entries(schema.properties).map(([field, is]) => {
      const inner = is.properties
        ? ` Fields: ${Object.entries(is.properties).map(([one, of]) => `${code(one)} (${this.type(of)})`).join(", ")}.`
        : "";
      const mark = isInput && required.includes(field) ? ", **required**" : !isInput && !required.includes(field) ? ", may be absent" : "";
      return [code(field), `${this.type(is)}${mark}`, `${is.description ?? this.resolved(is).description ?? ""}${inner}`];
    }))];
  }

  /** Returns a curl command for an operation. */
  curl({ method, path, shared, parameters = [], security, requestBody }) {
    const all = [...shared, ...parameters].map((one) => this.resolved(one));
    const address = all.filter((one) => one.in === "path").reduce((at, one) => at.replace(`{${one.name}}`, one.example), path);
    const required = all.filter((one) => one.in === "query" && one.required);
    const query = required.map((one) => `${one.name}=${encodeURIComponent(one.example)}`).join("&");
    const target = `"$url${address.replace("{*rest}", "...")}${query === "" ? "" : `?${query}`}"`;
    const parts = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${target}`];
    const way = security.flatMap((one) => Object.keys(one))[0];
    if (way) parts.push(`-H "Authorization: ${AUTHORIZATION[way]}"`);
    const [media, body] = Object.entries(requestBody?.content ?? {})[0] ?? [];
    const example = body?.example ?? Object.values(body?.examples ?? {})[0]?.value;
    if (media && example !== undefined) parts.push(`-H 'Content-Type: ${media}'`, `-d ${quoted(json(example))}`);
    return parts.join(" \\\n  ");
  }

  /**
   * Returns the section of an operation. `paths` has more than one path if the operation has
   * aliases.
   */
  operationSection(operation, paths) {
    const { method, summary, description, operationId, security, requestBody, responses } = operation;
    const lines = ["", `## ${summary}${operationId ? ` {#${operationAnchor(operationId)}}` : ""}`, ""];
    lines.push(paths.map((path) => `**${method.toUpperCase()}** ${code(path)}`).join(", also "));
    if (description) lines.push("", sentence(description));
    const ways = [...new Set(security.flatMap((way) => Object.keys(way)))];
    const isOptional = security.length === 0 || security.some((way) => Object.keys(way).length === 0);
    const credential = ways.map((way) => `[${way}](index.md#credentials)`).join(" or ");
    lines.push("", `Credential: ${ways.length === 0 ? "none" : `${credential}${isOptional ? ", or none" : ""}`}.`);
    if (!operation.path.startsWith("/ws/")) lines.push(...fenced("sh", this.curl(operation)));
    const parameters = [...operation.shared, ...(operation.parameters ?? [])].map((one) => this.resolved(one));
    lines.push(...table(["parameter", "in", "type", "meaning"], parameters.filter(({ name }) => name !== "X-Request-Id").map((one) =>
      [code(one.name), one.in, `${this.type(one.schema)}${one.required && one.in !== "path" ? ", **required**" : ""}`, one.description])));
    if (requestBody) {
      const content = Object.entries(requestBody.content);
      const media = content.length > 1 ? `, as ${content.map(([name]) => code(name)).join(", ")}` : "";
      lines.push("", `Body: ${this.type(content[0][1].schema)}${requestBody.required ? "" : ", optional"}${media}.${requestBody.description ? ` ${requestBody.description}` : ""}`);
    }
    for (const [status, reference] of Object.entries(responses)) if (status < "400") lines.push(...this.success(status, this.resolved(reference)));
    lines.push(...this.errors(responses));
    return lines;
  }

  /** Describes a response that is not an error. */
  success(status, { description, content, headers }) {
    const [media, body] = Object.entries(content ?? {})[0] ?? [];
    const isText = body?.schema.type === "string";
    const shown = !body ? "no body" : isText ? code(media) : this.type(body.schema);
    const extra = Object.keys(headers ?? {}).filter((name) => !COMMON_HEADERS.includes(name));
    const lines = ["", `**${status}**: ${shown}. ${sentence(description)}`];
    if (extra.length > 0) lines.push("", `Headers: ${extra.map((name) => `[${name}](index.md#headers)`).join(", ")}.`);
    const example = body?.example ?? Object.values(body?.examples ?? {})[0]?.value;
    // An example that is a whole file does not help the reader.
    const isShown = example !== undefined && example !== null && !/html|css|javascript/.test(media);
    if (isShown) lines.push(...folded("Example of a response", isText ? fenced("text", example) : fenced("json", json(example))));
    return lines;
  }

  /**
   * Describes the errors of an operation: its own errors in a table, the common errors as links.
   */
  errors(responses) {
    const all = Object.entries(responses).filter(([status]) => status >= "400");
    const own = all.filter(([, { $ref }]) => !$ref).map(([status, { description, content }]) => {
      const [{ schema } = {}] = Object.values(content ?? {});
      const { fields, codes } = schema ? this.errorDetails(schema) : { fields: [], codes: [] };
      return [status, codes.map(code).join(", "), description, fields.map(code).join(", ")];
    });
    const common = all.filter(([, { $ref }]) => $ref).map(([status, { $ref }]) => {
      const name = $ref.split("/").at(-1);
      return `[${status}](errors.md#${slug(name)} "${name}")`;
    });
    const lines = table(["error", "code", "meaning", "fields"], own);
    return common.length === 0 ? lines : [...lines, "", `Common errors: ${common.join(", ")}.`];
  }

  /**
   * Returns the operations of a tag, each with all its paths. Operations with the same method,
   * summary and description are aliases.
   */
  grouped(tag) {
    const groups = new Map();
    for (const operation of [...this.operations, ...this.catchAlls]) {
      if (!operation.tags.includes(tag)) continue;
      const { method, summary, description } = operation;
      const key = JSON.stringify([method, summary, description]);
      const group = groups.get(key);
      if (group) group.paths.push(operation.path);
      else groups.set(key, { operation, paths: [operation.path] });
    }
    return [...groups.values()];
  }

  /** Returns the lines of a tag's page: its operations, then the objects that they use. */
  tagPage({ name, description }) {
    const groups = this.grouped(name);
    const lines = [`# ${name}`, "", sentence(description)];
    for (const { operation, paths } of groups) lines.push(...this.operationSection(operation, paths));
    const used = groups.flatMap(({ operation }) => [operation.requestBody, operation.parameters,
      Object.values(operation.responses).map((response) => this.resolved(response)).map(({ content }) => content)]);
    const objects = this.schemasIn(used).filter((schema) => this.isObject(schema));
    if (objects.length > 0) lines.push("", "## Objects", ...objects.flatMap((schema) => this.section(schema)));
    return lines;
  }

  /** The file name of a tag's page. */
  pageOf(tag) {
    return `${slug(tag)}.md`;
  }

  indexPage() {
    const { info, tags } = this.document;
    const withoutFields = Object.keys(this.components.schemas).filter((name) => !this.isObject(name) && !ERROR_SCHEMAS.includes(name));
    const types = this.schemasIn(withoutFields.map((name) => ({ $ref: `#/components/schemas/${name}` })));
    const lines = ["# API reference", "", `Version ${info.version}. Generated from the OpenAPI document, which the service returns at \`GET /api/schema/\`.`,
      "", "Try requests in a browser at `/api/docs/` of your workspace.", "", info.description];
    for (const part of ["For users", ...Object.values(PARTS)]) {
      const rows = tags.filter(({ name }) => (PARTS[name] ?? "For users") === part);
      lines.push("", `## ${part}`, ...table(["page", "content"], rows.map(({ name, description }) => [`[${name}](${this.pageOf(name)})`, description.split("\n")[0]])));
    }
    lines.push("", "## Credentials", "", "The examples read them from shell variables: `$url` is the base URL of the workspace.",
      ...table(["name", "Authorization header"], Object.entries(this.components.securitySchemes).map(([name, { description }]) => [name, description])));
    lines.push("", "## Headers", "", "Every response has `X-Request-Id`, `Cache-Control` and `X-Content-Type-Options`.",
      ...table(["header", "meaning", "example"], Object.entries(this.components.headers).map(([name, { description, example }]) => [code(name), description, code(example)])));
    return [...lines, "", "## Types", ...types.flatMap((name) => this.section(name))];
  }

  errorsPage() {
    const statuses = new Map();
    const note = (status, { $ref }) => $ref && statuses.set($ref.split("/").at(-1), status);
    for (const { responses } of [...this.operations, ...this.catchAlls]) for (const [status, one] of Object.entries(responses)) note(status, one);
    const everywhere = Object.entries(this.document["x-common-responses"]);
    for (const [status, one] of everywhere) if (/^\d+$/.test(status)) note(status, one);
    const lines = ["# Common errors", "", "The page of an operation lists its own errors, and links to these.", "", "## Forms"];
    for (const name of ERROR_SCHEMAS.filter((schema) => this.schema(schema) && schema !== "ErrorCode")) lines.push(...this.section(name));
    lines.push("", `## Codes {#${schemaAnchor("ErrorCode")}}`, "", this.schema("ErrorCode").description, "", "## Responses");
    for (const [name, { description, content }] of Object.entries(this.components.responses)) {
      const status = statuses.get(name);
      if (status !== undefined && status < "400") continue;
      const body = content?.["application/json"];
      const { codes } = body ? this.errorDetails(body.schema) : { codes: [] };
      lines.push("", `### ${[status, name].filter((part) => part).join(" ")} {#${slug(name)}}`, "", sentence(description));
      if (codes.length > 0) lines.push("", `Code: ${codes.map(code).join(", ")}.`);
      if (body?.example !== undefined) lines.push(...fenced("json", json(body.example)));
    }
    lines.push("", "## Other paths and methods", "", "These responses are not listed with the operations.",
      ...table(["status", "meaning"], everywhere.map(([status, one]) => [/^\d+$/.test(status) ? status : code(status), this.resolved(one).description])));
    return lines;
  }

  /** Returns all pages: their paths in the site and their texts. */
  pages() {
    const { tags } = this.document;
    const forUsers = tags.filter(({ name }) => !PARTS[name]);
    const others = Object.keys(PARTS).flatMap((name) => tags.filter((tag) => tag.name === name));
    const all = [["index.md", "", this.indexPage()], ["errors.md", "", this.errorsPage()],
      ...[...forUsers, ...others].map((tag) => [this.pageOf(tag.name), PARTS[tag.name] ?? "For users", this.tagPage(tag)])];
    return all.map(([path, part, lines], order) => ({
      path: `reference/${path}`,
      text: [`---`, `order: ${order}`, `part: ${part}`, `outline: 2`, `---`, "", ...lines, ""].join("\n"),
    }));
  }
}

/** Returns the pages of the reference, each as `{path, text}`. */
export const referencePages = () => new Document(load(readFileSync(join(root, "docs/openapi.yaml"), "utf8"))).pages();
