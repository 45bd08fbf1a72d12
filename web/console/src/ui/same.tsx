// The same action with curl and with the command line farhand.
import { Snippet } from "./copy";

/** Quotes a text for a shell, unless it needs no quotes. */
export const quoted = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

interface Request {
  readonly method: string;
  /** Path and query. */
  readonly path: string;
  readonly body?: unknown;
}

/** The request as a curl command line. The token is the variable TOKEN. */
export function curl({ method, path, body }: Request): string {
  const address = quoted(`${location.origin}${path}`);
  const parts = [`curl -s${method === "GET" ? "" : ` -X ${method}`} ${address}`, `-H "Authorization: token=\\"$TOKEN\\""`];
  if (body !== undefined) parts.push(`-H 'Content-Type: application/json'`, `-d ${quoted(JSON.stringify(body))}`);
  return parts.join(" \\\n  ");
}

/**
 * Shows how to do the action of a page with curl and with the command line. `farhand` is null if the
 * command line has no such command.
 */
export function Same({ farhand, ...request }: Request & { farhand: string | null }) {
  return (
    <details className="same">
      <summary>The same with curl{farhand !== null && " and with farhand"}</summary>
      <Snippet label="with curl" text={curl(request)} />
      {farhand !== null && <Snippet label="with farhand" text={farhand} />}
      <p className="muted">
        <code>$TOKEN</code> is an API token. The <a href="/api/docs/">API reference</a> has every endpoint.
      </p>
    </details>
  );
}
