import { MOST_ON_A_PAGE } from "../api/all";
import { api, read } from "../api/client";
import * as session from "../api/session";
import { asProblem } from "../api/problem";
import { toast } from "../ui/toasts";

/** Ends the session on the service. An API token stays valid: only this tab forgets it. */
export async function signOut() {
  // A session that cannot be ended is still forgotten here, and ends by itself.
  await read(api.POST("/api/auth/logout/")).catch(() => undefined);
  session.signedOut();
}

/** Ends all sessions of the user, the session of this tab last. */
export async function signOutEverywhere() {
  try {
    for (;;) {
      const { results } = await read(api.GET("/api/auth/sessions/", { params: { query: { page_size: MOST_ON_A_PAGE } } }));
      const others = results.filter(({ current }) => !current);
      if (others.length === 0) break;
      await Promise.all(others.map(({ id }) => read(api.DELETE("/api/auth/sessions/{id}/", { params: { path: { id } } }))));
    }
    await signOut();
  } catch (error) {
    toast(`You are not signed out everywhere. ${asProblem(error).message}`);
  }
}
