// Calls from wasm that read a request's head and create a response, each in one step.

/** The headers that nearly every request needs. */
const HEADERS = ["Host", "Authorization", "Origin", "User-Agent", "X-Request-Id", "X-Forwarded-Proto"];

/**
 * The head of a request as JSON: method, URL, and the names and values of the headers above.
 * The value of a missing header is null.
 */
export function readHead({ method, url, headers }) {
  return JSON.stringify({ method, url, headers: HEADERS.map((name) => [name, headers.get(name)]) });
}

/**
 * A response. `headers` is a JSON object. `text` is the body, or undefined.
 * With `items`, `text` is the part of a JSON object before the items of a list.
 */
export function respond(status, headers, text, items) {
  const body = items === undefined ? (text ?? null) : `${text}${items}}`;
  return new Response(body, { status, headers: JSON.parse(headers) });
}

/** A static asset with our headers. `headers` is a JSON object. */
export function respondWithAsset(asset, headers) {
  return new Response(asset.body, { status: asset.status, headers: JSON.parse(headers) });
}
