import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, read, type Schema } from "../../api/client";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { State } from "../../ui/state";
import { number, plural } from "../../ui/words";

type Verified = Schema<"AuditVerified">;
const PROBLEMS = { missing: "is missing", altered: "was altered", foreign: "belongs to another chain", rewritten: "was rewritten" } as const;

/** Verifies the whole chain, in steps of what one request verifies. */
async function verify(onProgress: (links: number) => void): Promise<Verified & { total: number }> {
  let total = 0;
  for (let first: number | null = null; ;) {
    const step: Verified = await read(api.POST("/api/audit/verify/", { body: first === null ? {} : { first_link: first } }));
    total += step.links;
    onProgress(total);
    if (!step.valid || step.next_link === null) return { ...step, total };
    first = step.next_link;
  }
}

/** Verifies the chain on request: a button for the header of the page, and its outcome. */
export function useVerify() {
  const [progress, setProgress] = useState(0);
  const run = useMutation({ mutationFn: () => verify(setProgress), onMutate: () => setProgress(0) });
  const button = (
    <Button look="primary" isBusy={run.isPending} onClick={() => run.mutate()}>
      Verify the chain
    </Button>
  );
  const outcome = (
    <div className="verify">
      <span role="status">
        {run.isPending ? (
          <span className="muted">{plural(progress, "entry", "entries")} verified…</span>
        ) : run.data ? (
          <State state={run.data.valid ? "success" : "failed"}>{words(run.data)}</State>
        ) : (
          <span className="muted">Each entry contains the hash of the previous entry, so a change of an old entry is detected.</span>
        )}
      </span>
      <ActionError error={run.error} />
    </div>
  );
  return { button, outcome };
}

function words({ valid, total, unsealed, first_broken }: Verified & { total: number }) {
  if (!valid && first_broken)
    return `Entry ${number(first_broken.link)} ${PROBLEMS[first_broken.problem]}. ${plural(total, "entry before it is", "entries before it are")} as they were sealed.`;
  const rest = unsealed > 0 ? ` ${plural(unsealed, "newer event is", "newer events are")} not sealed yet.` : "";
  return `${plural(total, "entry is", "entries are")} as they were sealed.${rest}`;
}
