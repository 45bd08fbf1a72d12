import { useConnection } from "../live/connection";

/** Says that the service does not answer. Disappears when it answers again. */
export function ConnectionNote() {
  const isConnected = useConnection();
  return (
    <div role="status" className={isConnected ? "visually-hidden" : "connection-note"}>
      {isConnected ? "" : "No connection to the service. What you see may be old. Trying again…"}
    </div>
  );
}
