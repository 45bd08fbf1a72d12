// Does in JavaScript what the service does for every request: reads the same request headers,
// creates an id, and sets the same response headers.

/** Reads a request. */
export function begin({ method, url, headers }) {
  const authority = url.indexOf("://") + 3;
  const path = url.indexOf("/", authority);
  const [pathname, query = ""] = url.slice(path).split("?");
  const [host, origin, forwarded] = ["Host", "Origin", "X-Forwarded-Proto"].map((name) => headers.get(name));
  const id = headers.get("X-Request-Id") ?? crypto.randomUUID();
  const isEncrypted = forwarded === "https" || url.startsWith("https:");
  return { method, pathname, query, base: url.slice(0, path), host, origin, isEncrypted, id, now: Date.now(), authorization: headers.get("Authorization") };
}

/** Creates a JSON response. */
export const json = ({ id }, body) =>
  new Response(body, {
    headers: { "X-Request-Id": id, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Content-Type": "application/json" },
  });
