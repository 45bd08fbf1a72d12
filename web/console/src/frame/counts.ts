import { useQuery } from "@tanstack/react-query";
import { batches, commands, live, servers } from "../api/queries";
import type { Count } from "../pages";

/** The queries behind the counts of the rail. The overview shows the same numbers. */
export const connectedServers = () => servers({ is_connected: true, page_size: 1 });
export const offlineServers = () => servers({ is_connected: false, page_size: 1 });
export const runningCommands = () => commands({ state: "sent,acked", page_size: 8 });
export const runningBatches = () => batches({ state: "running,stopping", page_size: 1 });

/** The counts beside the names of pages, undefined while unknown. */
export function useCounts(): Record<Count, number | undefined> {
  const connected = useQuery({ ...connectedServers(), ...live });
  const running = useQuery({ ...runningCommands(), ...live });
  const active = useQuery({ ...runningBatches(), ...live });
  return { servers: connected.data?.count, running: running.data?.count, batches: active.data?.count };
}
