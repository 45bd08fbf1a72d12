import type { User } from "../../api/queries";
import { SelectField } from "../../ui/field";

const RANKS = [
  ["user", "User: the servers of their groups"],
  ["staff", "Staff: manages servers, groups and users"],
  ["superuser", "Superuser: manages everything"],
] as const;
export type Rank = (typeof RANKS)[number][0];

export const rankOf = ({ is_superuser, is_staff }: Pick<User, "is_superuser" | "is_staff">): Rank => (is_superuser ? "superuser" : is_staff ? "staff" : "user");

/** Staff change ordinary users, superusers change all users (contract 5.2). */
export const mayChange = (caller: User, user: User) => caller.is_superuser || (caller.is_staff && rankOf(user) === "user");

/** The fields of a request for a rank. */
export const rankFields = (rank: Rank) => ({ is_staff: rank === "staff" || rank === "superuser", is_superuser: rank === "superuser" });

/** Only superusers give ranks. */
export function RankField({ caller, value, onChange, errors }: { caller: User; value: Rank; onChange: (rank: Rank) => void; errors: readonly string[] }) {
  if (!caller.is_superuser) return null;
  return <SelectField label="Rank" options={RANKS} value={value} errors={errors} onChange={(event) => onChange(event.target.value as Rank)} />;
}
