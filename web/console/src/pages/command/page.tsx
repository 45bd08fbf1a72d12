import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useParams } from "react-router";
import { asProblem } from "../../api/problem";
import { command as commandQuery, isStaff, me, POLL_MS, type Command as CommandObject } from "../../api/queries";
import { download } from "../../output/download";
import { useOutput } from "../../output/use-output";
import { Output } from "../../output/view";
import { visible } from "../../output/visible";
import { ActionError } from "../../ui/answers";
import { LinkButton } from "../../ui/button";
import { Page, PageAnswer } from "../../ui/page";
import { Same } from "../../ui/same";
import { State } from "../../ui/state";
import { Since, WithTimes } from "../../ui/time";
import { bytes, duration, leftOut } from "../../ui/words";
import { runAgain } from "../run/address";
import { OWN_LINE } from "../run/targets";
import { hasEnded } from "./state";
import { Stop } from "./stop";
import { Timeline } from "./timeline";
import "./page.css";

export default function Command() {
  const { id = "" } = useParams();
  const query = useQuery({
    ...commandQuery(id),
    // The stream reports the end. Polling reports the steps before it.
    refetchInterval: ({ state }) => (state.data && hasEnded(state.data) && state.data.state !== "stuck" ? false : POLL_MS / 2),
  });
  return (
    <PageAnswer query={query} what="command">
      {(command) => <Shown command={command} />}
    </PageAnswer>
  );
}

function Shown({ command }: { command: CommandObject }) {
  const { buffer, state: stream, problem } = useOutput(command.id);
  const user = useQuery(me()).data;
  const [isDownloaded, setIsDownloaded] = useState(false);
  const save = useMutation({ mutationFn: () => download(command.id, `${command.server_name}-${command.id}.txt`), onSuccess: () => setIsDownloaded(true) });
  const isLive = stream === "open" || stream === "connecting" || stream === "cut";
  const mayStop = isStaff(user) || command.requested_by?.id === user?.id;
  const ended = hasEnded(command);
  return (
    <Page
      title={visible(command.line)}
      heading={
        <span className="command-heading">
          <Link to={`/servers/${command.server}`}>{command.server_name}</Link>
          <span className="command-state">
            <State state={command.state}>
              {command.exit_code !== null && command.exit_code !== 0 ? `failed with exit code ${command.exit_code}` : undefined}
            </State>
            {command.state === "acked" && command.acked_at && <Since at={command.acked_at} />}
          </span>
        </span>
      }
      actions={
        <>
          {!ended || command.state === "stuck" ? mayStop && <Stop command={command} /> : null}
          {ended && (
            <LinkButton look="primary" to={runAgain(command)} state={OWN_LINE}>
              Run again
            </LinkButton>
          )}
        </>
      }
    >
      <pre className="command-line" tabIndex={0} aria-label="Command line">
        <code>{visible(command.line)}</code>
      </pre>
      <p className="muted command-facts">
        as {command.username}
        {command.groupname && ` in ${command.groupname}`}
        {command.requested_by && `, requested by ${command.requested_by.username}`}
        {command.elapsed_time !== null && `, ran ${duration(command.elapsed_time)}`}
        {command.output_bytes > 0 && `, ${bytes(command.output_bytes)} of output`}
        {command.batch && (
          <>
            , part of a <Link to={`/batches/${command.batch}`}>batch</Link>
          </>
        )}
      </p>
      <Reason command={command} />
      {command.output_truncated && (
        <p className="command-message" role="note">
          {leftOut(command.output_skipped)}
        </p>
      )}
      <Output buffer={buffer} isLive={isLive} nothing={nothing(command, isLive)} hasLinks onDownload={() => save.mutate()}>
        <span className="output-live" role="status">
          {stream === "cut"
            ? "Connection lost. It continues when the service answers."
            : isLive && command.state === "acked"
              ? "live"
              : isDownloaded
                ? "Downloaded"
                : ""}
        </span>
      </Output>
      {problem && <ActionError error={problem} />}
      <ActionError error={save.error && asProblem(save.error)} />
      <Timeline command={command} />
      <Same method="GET" path={`/api/events/commands/${command.id}/stream/`} farhand={`farhand logs -f ${command.id}`} />
    </Page>
  );
}

/** The messages that the state and the timeline already contain. */
const KNOWN = /^(?:(?:Succeeded|Failed) with exit code \d+ at|Running since) \S+\.$/;

/** Why a command waits or failed, unless the heading says all of it. */
function Reason({ command: { status } }: { command: CommandObject }) {
  if (KNOWN.test(status.message) || status.message === "") return null;
  return (
    <p className="command-message">
      <WithTimes text={status.message} />
    </p>
  );
}

function nothing(command: CommandObject, isLive: boolean) {
  if (command.state === "scheduled") return "The command has not started.";
  if (command.state === "queued") return "The command waits for the server's agent.";
  if (isLive) return hasEnded(command) ? "Loading the output…" : "No output yet.";
  return "There was no output.";
}
