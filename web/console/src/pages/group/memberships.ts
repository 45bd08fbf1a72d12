import { queryOptions } from "@tanstack/react-query";
import { api, read, type Schema } from "../../api/client";

export type Membership = Schema<"Membership">;
export type Role = Membership["role"];

/** All memberships of a group. */
export const memberships = (id: number) =>
  queryOptions({
    queryKey: ["group", id, "memberships"],
    queryFn: async ({ signal }) => {
      const found: Membership[] = [];
      for (let page = 1; ; page += 1) {
        const { count, results } = await read(api.GET("/api/iam/memberships/", { params: { query: { group: id, page, page_size: 100 } }, signal }));
        found.push(...results);
        if (found.length >= count || results.length === 0) return found;
      }
    },
  });
