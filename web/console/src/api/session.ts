// The session of this browser tab: the token with which every request is signed.
//
// The token is kept in memory and in `sessionStorage`, which belongs to one tab and ends with it.
// It is never in a cookie or in `localStorage`.
import { useSyncExternalStore } from "react";

/** How the user signed in. Only a login can be ended on the service; an API token stays valid. */
export type Kind = "login" | "token";
export interface Session {
  readonly token: string;
  readonly kind: Kind;
}
/** `hasEnded`: the service refused the token, so the sign-in page says why it is shown. */
interface State {
  readonly session: Session | null;
  readonly hasEnded: boolean;
}

const KEY = "farhand.session";
const listeners = new Set<() => void>();
let state: State = { session: stored(), hasEnded: false };

function stored(): Session | null {
  try {
    const value: unknown = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
    if (typeof value !== "object" || value === null || !("token" in value) || !("kind" in value)) return null;
    const { token, kind } = value;
    return typeof token === "string" && (kind === "login" || kind === "token") ? { token, kind } : null;
  } catch {
    return null;
  }
}

function change(next: State) {
  state = next;
  if (next.session) sessionStorage.setItem(KEY, JSON.stringify(next.session));
  else sessionStorage.removeItem(KEY);
  listeners.forEach((listener) => listener());
}

export const token = () => state.session?.token ?? null;
export const begin = (session: Session) => change({ session, hasEnded: false });
export const signedOut = () => change({ session: null, hasEnded: false });

/** The service refused `refused`. Ignored if a newer session has begun. */
export function ended(refused: string | null) {
  if (state.session && state.session.token === refused) change({ session: null, hasEnded: true });
}

function subscribe(listener: () => void) {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

export const useSession = () => useSyncExternalStore(subscribe, () => state);
