// The client of the public API. Paths, parameters, bodies and responses have the types of
// docs/openapi.yaml, so a use that the document does not allow does not compile.
import type { components, paths } from "#schema";
import createClient from "openapi-fetch";
import { asProblem, problemOf } from "./problem";
import * as session from "./session";

type Schemas = components["schemas"];
/** A schema of the document by its name. */
export type Schema<Name extends keyof Schemas> = Schemas[Name];

export const authorization = (token: string) => `token="${token}"`;

/** Ends the session if a response says that its token is not valid. */
export function endIfRefused(status: number, code: string | null, token: string | null) {
  if (status === 401 || (status === 403 && code === "INVALID_TOKEN")) session.ended(token);
}

export const api = createClient<paths>({ baseUrl: "/" });
api.use({
  onRequest({ request }) {
    const token = session.token();
    if (token !== null) request.headers.set("Authorization", authorization(token));
  },
});

interface Answer<Data> {
  data?: Data;
  error?: unknown;
  response: Response;
}

/**
 * The data of a response. Throws a `Problem` for an error, so that queries and mutations have one
 * kind of failure.
 */
export async function read<Data>(call: Promise<Answer<Data>>): Promise<Data> {
  const token = session.token();
  const { data, error, response } = await call.catch((cause: unknown) => {
    throw cause instanceof DOMException ? cause : asProblem(cause);
  });
  if (response.ok) return data as Data;
  const problem = problemOf(response.status, error, response.headers.get("X-Request-Id"));
  endIfRefused(problem.status, problem.code, token);
  throw problem;
}
