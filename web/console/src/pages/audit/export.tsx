import { useMutation } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { api, read } from "../../api/client";
import { saveFile } from "../../output/download";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { toast } from "../../ui/toasts";
import { number, plural } from "../../ui/words";
import type { AuditEvent } from "./event";
import type { AuditQuery } from "./query";

const PAGE_SIZE = 100;
/** The newest events of a longer list. `farhand audit list` and the API have the others. */
const MAX_EVENTS = 20_000;

/** Reads the events that match now, newest first. */
async function collect(query: AuditQuery, signal: AbortSignal, onProgress: (events: number) => void): Promise<{ events: AuditEvent[]; count: number }> {
  // Newer events would move the pages.
  const fixed = { ...query, occurred_at__lt: query.occurred_at__lt ?? new Date().toISOString() };
  const events: AuditEvent[] = [];
  for (let page = 1; ; page += 1) {
    const { count, results } = await read(api.GET("/api/audit/events/", { params: { query: { ...fixed, page, page_size: PAGE_SIZE } }, signal }));
    events.push(...results);
    onProgress(events.length);
    if (results.length === 0 || events.length >= Math.min(count, MAX_EVENTS)) return { events, count };
  }
}

/** Saves the matching events as a file with one JSON object on each line. */
export function Export({ query, count }: { query: AuditQuery; count: number }) {
  const controller = useRef<AbortController>(null);
  const [progress, setProgress] = useState(0);
  const run = useMutation({
    mutationFn: () => {
      controller.current = new AbortController();
      setProgress(0);
      return collect(query, controller.current.signal, setProgress);
    },
    onSuccess: ({ events, count: all }) => {
      const lines = events.map((event) => `${JSON.stringify(event)}\n`);
      saveFile(new Blob(lines, { type: "application/jsonl" }), `audit-${new Date().toISOString().slice(0, 10)}.jsonl`);
      toast(
        all > events.length
          ? `The newest ${number(events.length)} of ${plural(all, "event")} are saved.`
          : `${plural(events.length, "event is", "events are")} saved.`,
      );
    },
  });
  const wasStopped = controller.current?.signal.aborted === true;
  if (run.isPending) {
    return (
      <>
        <span className="muted number" role="status">
          {number(progress)} of {number(Math.min(count, MAX_EVENTS))}
        </span>
        <Button onClick={() => controller.current?.abort()}>Stop</Button>
      </>
    );
  }
  return (
    <>
      {!wasStopped && <ActionError error={run.error} />}
      <Button disabled={count === 0} onClick={() => run.mutate()}>
        Download
      </Button>
    </>
  );
}
