import type { Command } from "../../api/queries";

/** The states in which a command has not ended. A stuck command may still get a result. */
export const hasEnded = ({ state }: Command) => !["scheduled", "queued", "sent", "acked"].includes(state);
