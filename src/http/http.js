// Requests and responses, in one call from wasm each.

/** The headers that are read of nearly every request. */
const HEADERS = ["Host", "Authorization", "Origin", "X-Request-Id", "X-Forwarded-Proto"];

/** A request's head as JSON: its method, its URL, and the names and values of those headers, with null for a missing one. */
export function readHead({ method, url, headers }) {
  return JSON.stringify({ method, url, headers: HEADERS.map((name) => [name, headers.get(name)]) });
}

/** A response. `headers` is a JSON object; `text` is the body, if there is one, and goes before a list's `items`. */
export function respond(status, headers, text, items) {
  const body = items === undefined ? (text ?? null) : `${text}${items}}`;
  return new Response(body, { status, headers: JSON.parse(headers) });
}

/** A static asset with our headers. `headers` is a JSON object. */
export function respondWithAsset(asset, headers) {
  return new Response(asset.body, { status: asset.status, headers: JSON.parse(headers) });
}
