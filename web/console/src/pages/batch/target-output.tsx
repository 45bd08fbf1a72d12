import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { Link } from "react-router";
import { command as commandQuery } from "../../api/queries";
import { useOutput } from "../../output/use-output";
import { Output } from "../../output/view";
import { Button } from "../../ui/button";
import { State } from "../../ui/state";
import { WithTimes } from "../../ui/time";
import { duration } from "../../ui/words";
import { Stop } from "../command/stop";
import { reasonOf, type Target } from "./targets";

interface TargetOutputProps {
  target: Target;
  /** Whether the user may stop its command. */
  mayStop: boolean;
  onClose: () => void;
}

/** The output of one server of a batch, live. */
export function TargetOutput({ target, mayStop, onClose }: TargetOutputProps) {
  const element = useRef<HTMLElement>(null);
  useEffect(() => {
    // The effect must not return the promise that new browsers return here.
    element.current?.scrollIntoView({ block: "nearest" });
  }, [target.server]);
  const { server, server_name, state, exit_code, command } = target;
  const reason = reasonOf(target);
  return (
    <section className="target-output stack" aria-label={`Server ${server_name}`} ref={element}>
      <header className="row-of">
        <h2>
          <Link to={`/servers/${server}`}>{server_name}</Link>
        </h2>
        <State state={state}>{exit_code ? `failed with exit code ${exit_code}` : undefined}</State>
        {target.elapsed_time !== null && <span className="muted number">{duration(target.elapsed_time)}</span>}
        <span className="target-tools row-of">
          {command && <Link to={`/commands/${command}`}>Open the command</Link>}
          {command && mayStop && ["sent", "running"].includes(state) && <StopOne id={command} />}
          <Button look="quiet" onClick={onClose} aria-label={`Close the output of ${server_name}`}>
            Close
          </Button>
        </span>
      </header>
      {reason && (
        <p>
          <WithTimes text={reason} />
        </p>
      )}
      {command ? (
        <Live key={command} id={command} isLive={["queued", "sent", "running"].includes(state)} />
      ) : (
        !reason && <p className="muted">It has not started here.</p>
      )}
    </section>
  );
}

function StopOne({ id }: { id: string }) {
  const { data } = useQuery(commandQuery(id));
  return data ? <Stop command={data} /> : null;
}

function Live({ id, isLive }: { id: string; isLive: boolean }) {
  const { buffer, state, problem } = useOutput(id);
  return (
    <Output buffer={buffer} isLive={isLive} nothing={isLive ? "No output yet." : "There was no output."}>
      <span className="output-live" role="status">
        {problem ? problem.message : state === "cut" ? "Connection lost. It continues when the service answers." : isLive && state === "open" ? "live" : ""}
      </span>
    </Output>
  );
}
