import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useRef, useState, type FormEvent, type KeyboardEvent } from "react";
import { Link, useLocation } from "react-router";
import { api, read } from "../../api/client";
import { command as commandQuery, commands, type Server } from "../../api/queries";
import { useOutput } from "../../output/use-output";
import { Output } from "../../output/view";
import { visible } from "../../output/visible";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { State } from "../../ui/state";
import { Since, WithTimes } from "../../ui/time";
import { duration } from "../../ui/words";
import { hasEnded } from "../command/state";
import { Stop } from "../command/stop";

/**
 * A line to fill in. It is not in the address, because a link from another person must not fill it in.
 */
export interface PromptState {
  readonly line: string;
}

/** A line to run on the server, and its output below. The arrow keys bring back earlier lines. */
export function Prompt({ server }: { server: Server }) {
  const { state } = useLocation() as { state: PromptState | null };
  const [line, setLine] = useState(state?.line ?? "");
  const [current, setCurrent] = useState<string | null>(null);
  const client = useQueryClient();
  const earlier = useQuery(commands({ server: server.id, page_size: 50 })).data?.results ?? [];
  const lines = [...new Set(earlier.map((command) => command.line))];
  const [back, setBack] = useState(-1);
  const run = useMutation({
    mutationFn: (text: string) => read(api.POST("/api/events/commands/", { body: { server: server.id, line: text } })),
    onSuccess: (command) => {
      client.setQueryData(commandQuery(command.id).queryKey, command);
      void client.invalidateQueries({ queryKey: ["commands"] });
      setCurrent(command.id);
      setLine("");
      setBack(-1);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (line.trim() !== "" && !run.isPending) run.mutate(line);
  };
  const onKey = (event: KeyboardEvent) => {
    const step = event.key === "ArrowUp" ? 1 : event.key === "ArrowDown" ? -1 : 0;
    const next = back + step;
    if (step === 0 || next < -1 || next >= lines.length) return;
    event.preventDefault();
    setBack(next);
    setLine(next === -1 ? "" : lines[next]!);
  };
  return (
    <section className="prompt" aria-label="Run a command">
      <form className="prompt-line" onSubmit={submit}>
        <span className="mono muted" aria-hidden="true">
          $
        </span>
        <input
          className="mono"
          aria-label={`Command for ${server.name}`}
          placeholder="uptime"
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          value={line}
          onChange={(event) => setLine(event.target.value)}
          onKeyDown={onKey}
        />
        <Button look="primary" type="submit" isBusy={run.isPending} disabled={!server.is_connected}>
          Run
        </Button>
      </form>
      {!server.is_connected && <p className="muted">The agent is not connected. “Run with options” can wait for it.</p>}
      <ActionError error={run.error} />
      {current && <Current key={current} id={current} />}
    </section>
  );
}

function Current({ id }: { id: string }) {
  const { data: command } = useQuery({ ...commandQuery(id), refetchInterval: ({ state }) => (state.data && hasEnded(state.data) ? false : 1_000) });
  const { buffer, state } = useOutput(id);
  const isScrolled = useRef(false);
  if (!command) return null;
  const isLive = !hasEnded(command);
  return (
    <div
      className="output-short"
      ref={(element) => {
        if (element && !isScrolled.current) element.scrollIntoView({ block: "nearest" });
        isScrolled.current = true;
      }}
    >
      <div className="prompt-state">
        <State state={command.state}>{command.exit_code ? `failed with exit code ${command.exit_code}` : undefined}</State>
        <span className="muted">
          {command.state === "acked" && command.acked_at ? (
            <Since at={command.acked_at} />
          ) : command.elapsed_time === null ? (
            ""
          ) : (
            duration(command.elapsed_time)
          )}
        </span>
        <Link to={`/commands/${id}`} className="mono ellipsis">
          {visible(command.line)}
        </Link>
        {isLive && <Stop command={command} />}
      </div>
      {command.state === "failed" && command.output_bytes === 0 && (
        <p className="error">
          <WithTimes text={command.status.message} />
        </p>
      )}
      <Output buffer={buffer} isLive={isLive} nothing={isLive ? "No output yet." : state === "complete" ? "There was no output." : "Loading the output…"}>
        <span className="output-live" role="status">
          {state === "cut" ? "Connection lost. It continues when the service answers." : ""}
        </span>
      </Output>
    </div>
  );
}
