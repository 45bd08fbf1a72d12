// The groups of servers with equal output.
import { queryOptions } from "@tanstack/react-query";
import { api, read, type Schema } from "../../api/client";

export type Group = Schema<"BatchOutput">;
const PAGE_SIZE = 50;

export const outputs = (id: string) =>
  queryOptions({
    queryKey: ["batch", id, "outputs"],
    queryFn: ({ signal }) => read(api.GET("/api/events/batches/{id}/outputs/", { params: { path: { id }, query: { page_size: PAGE_SIZE } }, signal })),
  });

/** Names a group in the address. */
export const keyOf = ({ state, exit_code, output_sha256 }: Group) => [state, exit_code ?? "", output_sha256?.slice(0, 12) ?? ""].join(".");

/** The groups to compare after a click: at most two, the newest click last. */
export function toggled(keys: readonly string[], key: string): readonly string[] {
  return keys.includes(key) ? keys.filter((one) => one !== key) : [...keys, key].slice(-2);
}
