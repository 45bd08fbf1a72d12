import { queryOptions } from "@tanstack/react-query";
import { readAll } from "../../api/all";
import { api, read, type Schema } from "../../api/client";

export type Membership = Schema<"Membership">;
export type Role = Membership["role"];

/** The memberships of a group. */
export const memberships = (id: number) =>
  queryOptions({
    queryKey: ["group", id, "memberships"],
    queryFn: ({ signal }) =>
      readAll((query) => read(api.GET("/api/iam/memberships/", { params: { query: { ...query, group: id } }, signal })), { most: Infinity }),
  });
