import { Link } from "react-router";
import { visible } from "../../output/visible";
import { Button } from "../../ui/button";
import { State } from "../../ui/state";
import { Time } from "../../ui/time";
import { useAttention } from "../../ui/use-attention";
import { lookOfOutcome, type AuditEvent } from "./event";

interface DetailsProps {
  event: AuditEvent;
  onClose: () => void;
  onFilter: (changes: { actor?: string; object?: string }) => void;
}

/** The page of an object, if it has one. */
const PAGES: Record<string, string> = {
  command: "/commands/",
  batch: "/batches/",
  server: "/servers/",
  schedule: "/schedules/",
  script: "/scripts/",
  group: "/groups/",
};

/** Everything that an audit event has. */
export function EventDetails({ event, onClose, onFilter }: DetailsProps) {
  const { occurred_at, actor, credential, action, object, outcome, remote_ip, request_id, details, link, hash } = event;
  const element = useAttention<HTMLElement>(event.id);
  const path = object?.id && PAGES[object.type];
  const facts: readonly (readonly [string, React.ReactNode])[] = [
    ["When", <Time at={occurred_at} form="exact" />],
    ["Outcome", <State state={lookOfOutcome(outcome)}>{outcome}</State>],
    ["Actor", `${visible(actor.name ?? "–")} (${actor.type})`],
    ["Credential", credential ? `${credential.type} ${credential.id ?? ""}` : "none"],
    [
      "Object",
      object ? (
        path ? (
          <Link to={`${path}${object.id}`}>{`${object.type} ${visible(object.name ?? object.id ?? "")}`}</Link>
        ) : (
          `${object.type} ${visible(object.name ?? object.id ?? "")}`
        )
      ) : (
        "–"
      ),
    ],
    ["Address", <span className="mono">{remote_ip ?? "–"}</span>],
    ["Request", <span className="mono">{request_id ?? "–"}</span>],
    ["Entry", link === null ? "not sealed yet" : link],
    ["Hash", <span className="mono">{hash ?? "–"}</span>],
  ];
  return (
    <aside className="panel audit-event" aria-label="Event" ref={element} tabIndex={-1}>
      <header>
        <h2 className="mono">{action}</h2>
        <Button look="quiet" aria-label="Close the event" onClick={onClose}>
          Close
        </Button>
      </header>
      <div className="panel-body stack">
        <dl className="audit-facts">
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        {Object.keys(details).length > 0 && (
          <pre className="audit-json" tabIndex={0} role="region" aria-label="Details">
            {visible(JSON.stringify(details, null, 2))}
          </pre>
        )}
        <div className="row-of">
          {object?.id && <Button onClick={() => onFilter({ object: object.id ?? "" })}>Only this object</Button>}
          {actor.name && <Button onClick={() => onFilter({ actor: actor.name ?? "" })}>Only {visible(actor.name)}</Button>}
        </div>
      </div>
    </aside>
  );
}
