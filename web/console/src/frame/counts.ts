import { useQuery } from "@tanstack/react-query";
import { connectedServers, live, runningBatches, runningCommands } from "../api/queries";
import type { Count } from "../pages";

/** The counts beside the names of pages, undefined while unknown. */
export function useCounts(): Record<Count, number | undefined> {
  const connected = useQuery({ ...connectedServers(), ...live });
  const running = useQuery({ ...runningCommands(), ...live });
  const active = useQuery({ ...runningBatches(), ...live });
  return { servers: connected.data?.count, running: running.data?.count, batches: active.data?.count };
}
