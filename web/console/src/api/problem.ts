// Errors of requests, in the words of the service (contract 3.9).

/** A request that failed: a response with an error, or no response at all. */
export class Problem extends Error {
  constructor(
    /** The status; 0 if there was no response, -1 if the page itself failed. */
    readonly status: number,
    /** The error code of the service, if it sent one. */
    readonly code: string | null,
    detail: string,
    /** The messages for each field of the request. */
    readonly fields: Readonly<Record<string, readonly string[]>> = {},
    readonly requestId: string | null = null,
  ) {
    super(detail);
  }

  /** Whether there was no response, because the connection is lost. */
  get isOffline() {
    return this.status === 0;
  }

  /** The messages of fields that are not in `known`, for the end of a form. */
  othersThan(...known: string[]): string[] {
    return Object.entries(this.fields).flatMap(([name, messages]) => {
      if (known.includes(name)) return [];
      return name === "non_field_errors" ? messages : messages.map((message) => `${name}: ${message}`);
    });
  }
}

const DETAILS: Record<number, string> = {
  0: "The service did not answer. Check the network; this page tries again by itself.",
  413: "This is too large for one request.",
  429: "Too many requests. Wait a moment and try again.",
};

const isTexts = (value: unknown): value is string[] => Array.isArray(value) && value.every((item) => typeof item === "string");

/** The problem of a response with an error. */
export function problemOf(status: number, body: unknown, requestId: string | null): Problem {
  const members = typeof body === "object" && body !== null ? Object.entries(body) : [];
  const text = (name: string) => members.find(([key, value]) => key === name && typeof value === "string")?.[1] as string | undefined;
  const fields = Object.fromEntries(members.filter((member): member is [string, string[]] => isTexts(member[1])));
  const [first] = Object.entries(fields);
  const ofField = first && (first[0] === "non_field_errors" ? first[1][0] : `${first[0]}: ${first[1][0]}`);
  const detail = text("detail") ?? ofField ?? DETAILS[status] ?? `The service answered with ${status}.`;
  return new Problem(status, text("code") ?? null, detail, fields, requestId);
}

/** Any thrown value as a problem. `fetch` throws a TypeError without a response. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof TypeError) return new Problem(0, null, DETAILS[0]!);
  return new Problem(-1, null, error instanceof Error ? error.message : String(error));
}

/** Whether the service does not allow the request, to this user or with this token. */
export const isRefused = (error: unknown) => Boolean(error) && asProblem(error).status === 403;
