import { authorization } from "../api/client";
import { problemOf } from "../api/problem";
import * as session from "../api/session";

/** Saves the whole kept output of a command as a file (contract 7.9). */
export async function download(id: string, name: string) {
  const response = await fetch(`/api/events/commands/${id}/output/`, { headers: { Authorization: authorization(session.token() ?? "") } });
  if (!response.ok) throw problemOf(response.status, await response.json().catch(() => null), null);
  saveFile(await response.blob(), name);
}

/** Saves a file through the browser. */
export function saveFile(content: Blob, name: string) {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}
