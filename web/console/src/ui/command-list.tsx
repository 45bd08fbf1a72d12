import { Link } from "react-router";
import type { Command } from "../api/queries";
import { visible } from "../output/visible";
import { State } from "./state";
import { Since, Time } from "./time";
import { duration } from "./words";

/** Commands in short rows. `isOfOneServer` leaves out the name of the server. */
export function CommandList({ commands, isOfOneServer = false }: { commands: readonly Command[]; isOfOneServer?: boolean }) {
  return (
    <ul className="command-list">
      {commands.map((command) => (
        <li key={command.id}>
          <State state={command.state} />
          <Link to={`/commands/${command.id}`} className="mono ellipsis" title={visible(command.line)}>
            {visible(command.line)}
          </Link>
          {!isOfOneServer && <span className="ellipsis">{command.server_name}</span>}
          <span className="muted number">
            {command.state === "acked" && command.acked_at ? (
              <Since at={command.acked_at} />
            ) : command.elapsed_time === null ? (
              ""
            ) : (
              duration(command.elapsed_time)
            )}
          </span>
          <span className="muted">
            <Time at={command.scheduled_at} />
          </span>
        </li>
      ))}
    </ul>
  );
}
